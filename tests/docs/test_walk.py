"""The files and functions that the architecture page and "How to add" name exist, and no walk is long."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "holdfast"
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
ADD = (ROOT / "docs/howto/add.md").read_text(encoding="utf-8")
WALK = ARCHITECTURE[ARCHITECTURE.index("## The walk") : ARCHITECTURE.index("## The HTTP service")]
NAMED = sorted(set(re.findall(r"`([\w/]+\.(?:py|sql|lua)):?([\w.]*)`", WALK)))
MAX_HOPS = 11


def functions(path: Path) -> set[str]:
    """The functions and classes of a module: by name, and by `Class.name`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            inside = [part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {node.name, *inside, *(f"{node.name}.{name}" for name in inside)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("file, name", NAMED)
def test_every_function_in_the_walk_exists(file: str, name: str) -> None:
    path = SRC / file
    if path.suffix == ".py":
        assert not name or name in functions(path)
    else:
        assert not name or re.search(rf"^-- name: {name}$", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_walk_names_every_store() -> None:
    for store in ("memory", "file", "redis", "postgres", "foundationdb", "http"):
        assert any(file.startswith(f"stores/{store}/") for file, _ in NAMED)


def test_no_walk_is_long() -> None:
    """Before a store's statement: the shared hops and those of one store."""
    enqueue, over_http = (part.partition("\n### ")[0] for part in re.split(r"### (?:Enqueue|Over HTTP)\n", WALK)[1:])
    shared, *stores = enqueue.split("\n- **")
    hops = len(re.findall(r"^\d+\. ", shared, re.MULTILINE))
    assert hops == 4
    longest = max(len(re.findall(r"^  \d+\. ", store, re.MULTILINE)) for store in stores)
    assert hops + longest <= MAX_HOPS
    assert hops + len(re.findall(r"^\d+\. ", over_http, re.MULTILINE)) <= MAX_HOPS


def test_the_files_of_how_to_add_exist() -> None:
    named = re.findall(r"`((?:src|tests|docs|scripts|examples)/[\w/.-]+\.\w+)`", ADD)
    assert len(named) > 30
    assert [name for name in named if not (ROOT / name).is_file()] == []
