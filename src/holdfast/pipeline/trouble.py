"""What went wrong inside Spark, in our own words: its exceptions carry a trace through two languages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

from holdfast.core import errors
from holdfast.core.errors import HoldfastError, InvalidOption, StoreError

_OURS = re.compile(r"holdfast\.core\.errors\.(\w+): (.*)")
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
        return StoreError(f"Spark could not {what}: {text.strip()}")
    name, said = ours[-1]
    kind = getattr(errors, name, StoreError)
    if kind is InvalidOption:
        option, _, reason = said.partition(": ")
        return InvalidOption(option, reason)
    return kind(said) if isinstance(kind, type) and issubclass(kind, StoreError) else StoreError(f"{name}: {said}")
