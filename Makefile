# Everything runs in .venv, made on first use and renewed when pyproject.toml changes.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
PIP_VERSION := 26.3
# Two more than there are cores, but no more than four: tests wait for disks and processes.
TEST_JOBS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN || echo 2); echo $$((cores < 2 ? cores + 2 : 4)))

BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help demo test test-stress test-pipeline check lint types imports format mutants bench bench-quick bench-pipeline constraints sbom clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The last part of the demo runs on Spark, where there is Java: PySpark is installed when the rest has been seen.
GET_SPARK = $(MAKE) -s .venv/.spark
demo: .venv/.package ## See the queue at work, on a store of its own
	@$(BIN)/python -m holdfast demo --get-spark "$(GET_SPARK)"

# Tests start many a Python: they keep what one has compiled, whatever the environment says.
test: export PYTHONDONTWRITEBYTECODE :=
test: .venv/.dev ## Run all the tests (ARGS="-k lease -x" is passed to pytest)
	@scripts/get-programs java chromium || true
	$(BIN)/python -m pytest -q --durations=10 -n $(TEST_JOBS) --dist=loadgroup $(ARGS)

test-stress: export PYTHONDONTWRITEBYTECODE :=
test-stress: .venv/.dev ## Run all the tests while other processes keep every core busy (LOAD=8: eight of them)
	@scripts/get-programs java chromium || true
	$(BIN)/python scripts/under-load $(BIN)/python -m pytest -q -n $(TEST_JOBS) --dist=loadgroup $(ARGS)

test-pipeline: export HOLDFAST_PIPELINE := full
test-pipeline: .venv/.dev ## Run all the tests of the pipeline, also those that take long (twenty-five minutes)
	@scripts/get-programs java chromium
	$(BIN)/python -m pytest -q --durations=10 tests/pipeline $(ARGS)

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
	$(BIN)/python -m tests.mutants $(ARGS)

bench: .venv/.bench ## Measure against every peer, into docs/benchmarks.md (ARGS="--only valkey --peers huey,bullmq")
	$(BIN)/python -m bench.full $(ARGS)

bench-quick: .venv/.bench ## Measure against the strongest peers, in about two minutes (ARGS="--only postgres")
	$(BIN)/python -m bench.quick $(ARGS)

bench-pipeline: .venv/.bench ## Measure the pipeline on Spark, up to 2,000,000 events (ARGS="--events 50000")
	@scripts/get-programs java
	$(BIN)/python -m bench.pipeline $(ARGS)

# Where this machine gets its packages from must not be written down.
PLAIN_PIP := env -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null
SERVICE_EXTRAS := service redis postgres telemetry blobs

constraints: .venv/.release ## Resolve what a service image installs, with hashes, into constraints/service.txt
	@mkdir -p constraints build
	@$(BIN)/python scripts/tested-versions libraries > build/tested.txt
	$(PLAIN_PIP) CUSTOM_COMPILE_COMMAND="make constraints" .venv/release/bin/pip-compile --quiet --upgrade \
		--generate-hashes --strip-extras --no-annotate --no-emit-options --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host $(addprefix --extra ,$(SERVICE_EXTRAS)) --constraint build/tested.txt \
		--output-file constraints/service.txt pyproject.toml

sbom: .venv/.release ## List what a service image installs, as CycloneDX, in build/sbom.json
	@$(BIN)/python -m venv --clear build/image
	$(PLAIN_PIP) build/image/bin/python -m pip install -qq --require-hashes --requirement constraints/service.txt
	$(PLAIN_PIP) build/image/bin/python -m pip install -qq --no-deps .
	.venv/release/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
		--output-format JSON --output-file build/sbom.json build/image/bin/python

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
.venv/.pip: .venv/.package
	@$(BIN)/python -m pip install -qq pip==$(PIP_VERSION)
	@touch $@

.venv/.spark: .venv/.pip
	@echo "Installing PySpark for the last part (once)"
	@$(BIN)/python -m pip install -qq --group spark
	@touch $@

.venv/.dev: .venv/.pip
	@echo "Installing the development tools (once)"
	@$(BIN)/python -m pip install -qq --group dev
	@touch $@ .venv/.spark

.venv/.release: .venv/.pip
	@$(BIN)/python -m venv --clear .venv/release
	@.venv/release/bin/python -m pip install -qq pip==$(PIP_VERSION)
	@.venv/release/bin/python -m pip install -qq --group release
	@touch $@

.venv/.bench: .venv/.dev
	@$(BIN)/python -m pip install -qq --group bench
	@touch $@
