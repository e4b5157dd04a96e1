"""The Lua scripts: one file for each operation, put together with the parts it says it uses.

A script begins with the head, which knows the clock, and the prelude, which knows the keys and how to write; then come
the parts named after `uses:` in its header, then the operation. What stands there after `after` comes between head and
prelude: a shortcut for the common case, which may have ended the script before all the functions are made.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

from msgspec import Struct

PARTS = ("jobs", "once", "lanes", "turns", "offers", "log")
_OTHERS = frozenset({*PARTS, "head", "prelude", "lone_enqueue", "lone_finish"})
_USES = re.compile(r"uses: ([a-z ]+)(?:, after (\w+))?$", re.MULTILINE)
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end\n", re.MULTILINE | re.DOTALL)
_WORD = re.compile(r"\w+")
_FULL_IS_FULL = frozenset({"enqueue", "replay"})
"""What brings work is refused by a server that has no memory left; all else goes on, so that work can be finished."""


class Script(Struct, frozen=True):
    """A script as the server gets it, and the hash it is known by."""

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
    wanted = ["head", *shortcut, "prelude", *(part for part in PARTS if part in uses[1].split()), name]
    flags = "" if name in _FULL_IS_FULL else " flags=allow-oom"
    text = f"#!lua{flags}\n" + _without_unused("\n".join(parts[part] for part in wanted))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def _without_unused(text: str) -> str:
    """The script without the functions that nothing in it calls: making a function costs a microsecond each time."""
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(text)}
    used = set(_WORD.findall(_FUNCTION.sub("", text)))
    looked_at: set[str] = set()
    while found := (used & functions.keys()) - looked_at:
        looked_at |= found
        used.update(word for name in found for word in _WORD.findall(functions[name]))
    return _FUNCTION.sub(lambda found: found[0] if found[1] in used else "", text)


def read_parts() -> dict[str, str]:
    """The Lua files by name."""
    folder = files("holdfast.stores.redis") / "lua"
    return {file.name.removesuffix(".lua"): file.read_text("utf-8") for file in folder.iterdir()}


def _all() -> dict[str, Script]:
    parts = read_parts()
    return {name: assemble(name, parts) for name in parts if name not in _OTHERS}


SCRIPTS = _all()
