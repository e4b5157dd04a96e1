"""Filters of Spark that a reader applies itself, before it builds rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from holdfast.pipeline.reader import EventFilter

_COLUMNS = ("tenant", "queue", "kind", "type", "job_id")


def column_of(filter_: Filter) -> str:
    """The column that a filter looks at."""
    return ".".join(getattr(filter_, "attribute", ()))


def narrow(event_filter: EventFilter, filter_: Filter) -> EventFilter | None:
    """`event_filter` combined with a filter of Spark's; None if Spark must apply it."""
    column = column_of(filter_)
    if column in _COLUMNS and isinstance(filter_, (EqualTo, EqualNullSafe, In)):
        values = cast("Iterable[Any]", filter_.value if isinstance(filter_, In) else (filter_.value,))
        chosen = frozenset(value for value in values if isinstance(value, str))
        known: frozenset[str] | None = getattr(event_filter, column)
        return replace(event_filter, **{column: chosen if known is None else chosen & known})
    value: Any = getattr(filter_, "value", None)
    if column == "at" and isinstance(value, datetime):
        ms = int(value.timestamp() * 1000)
        if isinstance(filter_, (GreaterThan, GreaterThanOrEqual)):
            return replace(event_filter, since=ms if event_filter.since is None else max(ms, event_filter.since))
        if isinstance(filter_, (LessThan, LessThanOrEqual)):
            return replace(
                event_filter, until=ms + 1 if event_filter.until is None else min(ms + 1, event_filter.until)
            )
    return None
