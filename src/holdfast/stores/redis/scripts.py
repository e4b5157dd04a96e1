"""Puts the Lua scripts together: one file for each operation, with the parts that its header says it uses.

A script begins with `head.lua` (the request and the clock), `prelude.lua` (keys) and `writes.lua` (writes and the log).
Then come the parts named after `uses:` in its header, then the operation itself. A shortcut, named after `after`, comes
right behind the head: it handles the common case and returns before the functions of the other parts are made. Names
in capitals that `layout.py` defines are replaced by their values.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from msgspec import Struct

from holdfast.stores.redis.layout import LUA_CONSTANTS

PARTS = (
    "records", "keys", "jobs", "leases", "replies", "lanes", "turns", "waiters", "log", "picking", "granting",
    "trimming", "reading",
)  # fmt: skip
"""In the order in which they build on each other."""
_NO_SCRIPTS = frozenset({*PARTS, "head", "prelude", "writes", "single_enqueue", "single_finish"})
_USES = re.compile(r"uses: ([a-z ]+)(?:, after (\w+))?$", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end\n", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"\w+")
_COMMENT = re.compile(r"[ \t]*--[^\n]*")
_CONSTANT = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
_REFUSED_WHEN_FULL = frozenset({"enqueue", "replay"})
"""Scripts that add work. A server without free memory refuses these alone, so that existing work can be finished."""

_READ_ONLY = frozenset({"standing"})
"""Scripts that the server refuses to let write."""


class Script(Struct, frozen=True):
    """A script as the server gets it, and its hash."""

    name: str
    text: str
    sha: str


def assemble(name: str, parts: dict[str, str]) -> Script:
    """Put a script together."""
    body = parts[name]
    uses = _USES.search(body)
    if uses is None:
        msg = f"{name}.lua does not say in its header what it uses"
        raise ValueError(msg)
    shortcut = [uses[2]] if uses[2] else []
    used = [part for part in PARTS if part in uses[1].split()]
    flags = "" if name in _REFUSED_WHEN_FULL else f" flags={'no-writes' if name in _READ_ONLY else 'allow-oom'}"
    joined = "\n".join(parts[part] for part in ("head", *shortcut, "prelude", "writes", *used, name))
    code = _with_constants(_without_unused(_COMMENT.sub("", joined)))
    text = f"#!lua{flags}\n{code}"
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _with_constants(text: str) -> str:
    return _CONSTANT.sub(lambda found: LUA_CONSTANTS.get(found[0], found[0]), text)


def _without_unused(text: str) -> str:
    """The script without functions that it does not call: making one takes a microsecond in every run."""
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(text)}
    used = set(_WORD.findall(_FUNCTION.sub("", text)))
    seen: set[str] = set()
    while found := (used & functions.keys()) - seen:
        seen |= found
        used.update(word for name in found for word in _WORD.findall(functions[name]))
    return _FUNCTION.sub(lambda found: found[0] if found[1] in used else "", text)


def read_parts() -> dict[str, str]:
    """The Lua files by name."""
    folder = files("holdfast.stores.redis") / "lua"
    return {file.name.removesuffix(".lua"): file.read_text("utf-8") for file in folder.iterdir()}


def _all() -> dict[str, Script]:
    parts = read_parts()
    return {name: assemble(name, parts) for name in parts if name not in _NO_SCRIPTS}


SCRIPTS = _all()
