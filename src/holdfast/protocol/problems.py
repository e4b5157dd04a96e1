"""Errors over HTTP: of a whole request, or of one item of a batch."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType


class Problem(Struct, kw_only=True, omit_defaults=True):
    """An error, by RFC 9457. `code` is stable and safe to match on."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    args: list[Any] | UnsetType = UNSET
    """The arguments of an error of the library, in the order of its class."""
    budget: str | UnsetType = UNSET
    """The exhausted budget of the tenant, for example `max_jobs` or `requests_per_s`. [TENANT-5]"""


class ErrorInfo(Struct, kw_only=True, omit_defaults=True):
    """The error of one item of a batch. The codes are those of problems."""

    code: str
    message: str
    args: list[Any] | UnsetType = UNSET
    budget: str | UnsetType = UNSET


class Refused(Struct, kw_only=True):
    """A refused item of a batch. It affects no other item. [ENQ-4]"""

    error: ErrorInfo
