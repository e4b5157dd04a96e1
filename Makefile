# Everything runs in .venv, made on first use and renewed when pyproject.toml changes.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
PIP_VERSION := 26.3
# One more than there are cores: tests wait for disks and processes.
TEST_JOBS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN || echo 2); echo $$((cores < 4 ? cores + 1 : 4)))

BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help demo test check lint types imports format mutants bench-quick clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/.package ## See the queue at work, on a store of its own
	@$(BIN)/python -m holdfast.demo

# Tests start many a Python: they keep what one has compiled, whatever the environment says.
test: export PYTHONDONTWRITEBYTECODE :=
test: .venv/.dev ## Run all the tests (ARGS="-k lease -x" is passed to pytest)
	$(BIN)/python -m pytest -q --durations=10 -n $(TEST_JOBS) --dist=loadgroup $(ARGS)

check: lint types imports ## Check style, format, types and who imports whom

lint: .venv/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/.dev
	$(BIN)/pyright

imports: .venv/.dev
	$(BIN)/lint-imports --no-logo

format: .venv/.dev ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

mutants: .venv/.dev ## Break the stores on purpose and see that the conformance suite notices
	$(BIN)/python -m holdfast.testing.mutants $(ARGS)

bench-quick: .venv/.bench ## Measure against other queues, in about ten minutes (ARGS="--only postgres")
	$(BIN)/python -m bench.quick $(ARGS)

clean: ## Remove .venv, caches and builds
	rm -rf .venv .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist bench/out
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# One stamp per layer: the demo needs the package alone, the checks need the tools too.
.venv/.package: pyproject.toml scripts/find-python
	@python=$$(scripts/find-python "$(PYTHON)") || exit 1; \
	echo "Setting up .venv with $$python (once)"; \
	$(BIN)/python -c "" 2>/dev/null || "$$python" -m venv --clear .venv
	@$(BIN)/python -m pip install -qq --editable .
	@touch $@

# Dependency groups need pip 25.1; a fresh venv may have an older one.
.venv/.dev: .venv/.package
	@echo "Installing the development tools (once)"
	@$(BIN)/python -m pip install -qq pip==$(PIP_VERSION)
	@$(BIN)/python -m pip install -qq --group dev
	@touch $@

.venv/.bench: .venv/.dev
	@$(BIN)/python -m pip install -qq --group bench
	@touch $@
