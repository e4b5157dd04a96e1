"""Text from jobs and clients, made safe to print: it must not move the cursor or change the writing direction."""

from __future__ import annotations


def printable(text: str, *, lines: bool = False) -> str:
    """The text with control characters, escape sequences and direction marks written as escapes.

    Line ends and tabs are escaped, too, unless `lines` is set.
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape", "replace").decode() for c in text)


def printable_json(text: str) -> str:
    r"""The same JSON with such characters as `\u` escapes. It parses to the same value."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if code <= 0xFFFF:  # noqa: PLR2004 - beyond it JSON takes two escapes
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
