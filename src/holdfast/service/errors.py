"""Errors as problems (RFC 9457), with stable codes. `STATUS` is the reference."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.errors import (
    HoldfastError,
    InvalidOption,
    QuotaExceeded,
    StoreBusy,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from holdfast.protocol import problems
from holdfast.telemetry import http as http_metrics

RETRY_AFTER_S = 1

STATUS: dict[str, int] = {
    # The request
    "invalid_request": 400,
    "invalid_name": 400,
    "invalid_option": 400,
    "invalid_payload": 400,
    "unknown_codec": 400,
    "unsupported": 400,
    "token_missing": 401,
    "token_invalid": 401,
    "token_expired": 401,
    "scope_missing": 403,
    "queue_forbidden": 403,
    "not_found": 404,
    "job_not_found": 404,
    "result_expired": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "not_replayable": 409,
    "lease_lost": 409,
    "lease_expired": 409,
    "job_canceled": 409,
    "events_trimmed": 410,
    "payload_too_large": 413,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "quota_exceeded": 429,
    "rate_limited": 429,
    "share_exceeded": 429,
    "headers_too_large": 431,
    # The service
    "internal_error": 500,
    "store_unavailable": 503,
    "store_busy": 503,
    "too_many_connections": 503,
    "overloaded": 503,
    "stopping": 503,
}

EARLY = frozenset({"share_exceeded", "overloaded"})
"""Refusals that are sent before the body has arrived."""
_RETRYABLE = EARLY | {
    "quota_exceeded", "rate_limited", "store_unavailable", "store_busy", "too_many_connections", "stopping"
}  # fmt: skip
_TITLES = {429: "Too many requests", 413: "Too large"}


class Refusal(HoldfastError):
    """A refusal by the service itself."""

    def __init__(self, code: str, detail: str, headers: dict[str, str] | None = None, budget: str = "") -> None:
        super().__init__(code, detail, headers, budget)
        self.code = code  # pyright: ignore[reportAttributeAccessIssue]
        self.detail, self.headers, self.budget = detail, headers or {}, budget

    def __str__(self) -> str:
        return self.detail


def invalid(detail: str) -> Refusal:
    """The refusal of a malformed request."""
    return Refusal("invalid_request", detail)


def code_of(error: BaseException) -> str:
    """The code of an error. An error without a public code is an internal one."""
    if isinstance(error, HoldfastError) and not isinstance(error, StoreMismatch) and error.code in STATUS:
        return error.code
    return "internal_error"


def detail_of(error: BaseException) -> str:
    """The text of an error. Errors of the store name hosts and files, so their text is replaced."""
    code = code_of(error)
    if code == "internal_error":
        return "an internal error; the log has it under the request's id"
    if isinstance(error, StoreUnavailable):
        return "the store cannot be reached; nothing in this request was acknowledged, try again"
    if isinstance(error, StoreBusy):
        return "the store cannot take this request now; try again"
    if isinstance(error, InvalidOption) and error.option == "store":
        return "the store refuses this"
    return str(error)


def info(error: BaseException) -> problems.ErrorInfo:
    """An error of one item of a batch."""
    return problems.ErrorInfo(code=code_of(error), message=detail_of(error), args=_args(error), budget=_budget(error))


def problem(error: BaseException) -> tuple[int, bytes, dict[str, str]]:
    """The status, body and extra headers of an error's answer."""
    code = code_of(error)
    status = STATUS[code]
    body = problems.Problem(
        type=f"urn:holdfast:problem:{code}",
        title=_TITLES.get(status) or HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail_of(error),
        args=_args(error),
        budget=_budget(error),
    )
    headers = dict(error.headers) if isinstance(error, Refusal) else {}
    if code in _RETRYABLE:
        headers.setdefault("retry-after", str(_retry_after_s(error)))
    return status, msgspec.json.encode(body), headers


def _args(error: BaseException) -> list[Any] | UnsetType:
    """The arguments of an error of the library, from which a client can build it again."""
    if isinstance(error, (Refusal, StoreError)) or code_of(error) == "internal_error":
        return UNSET
    return list(error.args)


def _budget(error: BaseException) -> str | UnsetType:
    """The exhausted budget, if that is the reason. The metrics count it."""
    budget = error.budget if isinstance(error, (Refusal, QuotaExceeded)) else ""
    if budget and http_metrics.current is not None:
        http_metrics.current.refused(budget)
    return budget or UNSET


def _retry_after_s(error: Any) -> int:
    if not isinstance(error, QuotaExceeded):
        return RETRY_AFTER_S
    return 5 if error.budget == "max_waiting" else 10
