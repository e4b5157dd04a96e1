"""Instants of the store's clock, as datetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(ms: int) -> datetime:
    """An instant of the store's clock as a datetime in UTC."""
    return EPOCH + timedelta(milliseconds=ms)
