"""What went wrong inside Spark, in our own words: its exceptions carry a trace through two languages."""

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
    """Raise what a task, or the data source, ran into, and not what Spark made of it."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(_FOREIGN):
            raise
        raise cause(what, str(error)) from None


def cause(what: str, text: str) -> HoldfastError:
    """Our error that Spark's text is about, or all that Spark says."""
    if not (ours := _OURS.findall(text)):
        return StoreError(f"Spark could not {what}: {_brief(text)}")
    name, said = ours[-1]
    kind = getattr(errors, name, StoreError)
    if kind is InvalidOption:
        option, _, reason = said.partition(": ")
        return InvalidOption(option, reason)
    return kind(said) if isinstance(kind, type) and issubclass(kind, StoreError) else StoreError(f"{name}: {said}")


def _brief(text: str) -> str:
    """What Spark says first, and the innermost cause where that says more."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else "it does not say why"
    causes = [match[1] for line in lines[1:] if (match := _CAUSE.fullmatch(line))]
    if not causes or causes[-1] in first:
        return first
    return causes[-1] if first.startswith("An error occurred while calling") else f"{first} Cause: {causes[-1]}"
