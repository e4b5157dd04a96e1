"""Turns Spark's exceptions, which carry a trace through two languages, into short errors of our own."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

from holdfast.core import errors
from holdfast.core.errors import HoldfastError, InvalidOption, StoreError

_OURS = re.compile(r"holdfast\.core\.errors\.(\w+): (.*)")
# The head of a Java trace, or the last line of a Python one.
_CAUSE = re.compile(r"(?:Caused by: )?(?:[\w$]+\.)*(\w*(?:Error|Exception|Exit)\b.*: .+)")
_FOREIGN = ("pyspark.", "py4j.")


@contextlib.contextmanager
def plainly(what: str) -> Generator[None]:
    """Replace an exception of Spark's by the error of the task or of the data source that caused it."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(_FOREIGN):
            raise
        raise cause(what, str(error)) from None


def cause(what: str, text: str) -> HoldfastError:
    """Our own error in Spark's text, or a StoreError with the text."""
    if not (ours := _OURS.findall(text)):
        return StoreError(f"Spark could not {what}: {_brief(text)}")
    name, message = ours[-1]
    kind = getattr(errors, name, StoreError)
    if kind is InvalidOption:
        option, _, reason = message.partition(": ")
        return InvalidOption(option, reason)
    return (
        kind(message) if isinstance(kind, type) and issubclass(kind, StoreError) else StoreError(f"{name}: {message}")
    )


def _brief(text: str) -> str:
    """The first line of Spark's text, and the innermost cause if it adds something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "without a reason"
    causes = [match[1] for line in lines[1:] if (match := _CAUSE.fullmatch(line))]
    if not causes or causes[-1] in first:
        return first
    return causes[-1] if first.startswith("An error occurred while calling") else f"{first} Cause: {causes[-1]}"
