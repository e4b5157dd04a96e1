"""Arrays as text, in the server's format: the driver takes long for each element of a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def numbers(values: Iterable[int]) -> str:
    """Whole numbers."""
    return f"{{{','.join(map(str, values))}}}"


def some_numbers(values: Iterable[int | None]) -> str:
    """Whole numbers and NULLs."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def texts(values: Sequence[str]) -> str:
    """Any texts."""
    joined = '","'.join(values)
    if "\\" in joined or joined.count('"') > 2 * (len(values) - 1):
        joined = '","'.join([value.replace("\\", "\\\\").replace('"', '\\"') for value in values])
    return f'{{"{joined}"}}' if values else "{}"
