"""Rows of a DataFrame in Python."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from pyspark.sql import DataFrame


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    """All rows by column name, with instants in UTC: Spark returns them in the time zone of this machine."""
    return [{name: _utc(value) for name, value in cast("Any", row).asDict().items()} for row in frame.collect()]


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value
