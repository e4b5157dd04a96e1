"""Names: which are allowed, and how several of them become one key. [TENANT-3]

The rules:

    tenant      1 to 63 of letters, digits, `.` `_` `-`, starting with a letter or digit
    queue       1 to 128 of the same and `:` `/`; the prefix `holdfast:` is reserved (see RESERVED)
    job type    the same as a queue
    reason      of a release: the same as a queue
    id, key     1 to 200 bytes of UTF-8 without control characters
    operator    up to 200 characters without control characters; "": none
"""

from __future__ import annotations

import re
import unicodedata

from holdfast.core.errors import InvalidName, InvalidOption

RESERVED = "holdfast:"
"""Queues with this prefix hold Holdfast's own jobs: applications do not enqueue or claim there."""
SCHEDULES = f"{RESERVED}schedules"
FLOWS = f"{RESERVED}flows"
MOVES = f"{RESERVED}moves"
LEASE_KEYS = f"{RESERVED}lease-keys"
REVOKED = f"{RESERVED}revoked"
AUDIT = f"{RESERVED}audit"
GAUGES = f"{RESERVED}gauges"
OPERATOR = "-holdfast"
"""The tenant of an operator's own records. No token and no Queue can name it, and no list of tenants shows it."""

ID_BYTES = 200
BY_LENGTH = 200
PRIORITIES = range(10)
MAX_ATTEMPTS = range(1, 101)

_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}\Z")
_PLAIN_ID = re.compile(r"[ -~]{1,200}\Z")

_TENANT_RULE = "use 1 to 63 letters, digits, '.', '_' or '-', starting with a letter or digit"
_QUEUE_RULE = "use 1 to 128 letters, digits, '.', '_', '-', ':' or '/', starting with a letter or digit"


def check_tenant(name: str) -> str:
    """Return `name` if it may name a tenant. Raises InvalidName."""
    return _check(_TENANT, "tenant", name, _TENANT_RULE)


def check_queue(name: str) -> str:
    """Return `name` if it may name a queue. Raises InvalidName."""
    return _check(_QUEUE, "queue", name, _QUEUE_RULE)


def check_own_queue(name: str) -> str:
    """Return `name` if it may name a queue for the jobs of applications. Raises InvalidName."""
    if check_queue(name).startswith(RESERVED):
        raise InvalidName("queue", name, f"names that begin with {RESERVED!r} are reserved for schedules and flows")
    return name


def check_type(name: str) -> str:
    """Return `name` if it may name a job type. Raises InvalidName."""
    return _check(_QUEUE, "job type", name, _QUEUE_RULE)


def check_reason(name: str) -> str:
    """Return `name` if it may be the reason of a release. Raises InvalidName."""
    return _check(_QUEUE, "reason", name, _QUEUE_RULE)


def check_id(name: str, what: str = "id") -> str:
    """Return `name` if it may be a job's id or an idempotency key. Raises InvalidName."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidName(what, repr(name), "it must be a string")
    if _PLAIN_ID.match(name):
        return name
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        shown = name.encode(errors="replace").decode()
        raise InvalidName(what, shown, "it is not valid Unicode (an unpaired surrogate)") from None
    if not 1 <= size <= ID_BYTES:
        raise InvalidName(what, name, f"it is {size} bytes of UTF-8, 1 to {ID_BYTES} are allowed")
    if any(unicodedata.category(c) == "Cc" for c in name):
        raise InvalidName(what, name, "control characters are not allowed")
    return name


def as_operator(text: str) -> str:
    """`text` as the name of an operator: cut, with `?` for each character that it may not have."""
    return "".join("?" if unicodedata.category(c) in ("Cc", "Cs") else c for c in text[:BY_LENGTH])


def check_by(by: str) -> str:
    """Return `by` if it may name an operator in an event, or is "". Raises InvalidName."""
    if as_operator(by) != by:
        rule = f"use up to {BY_LENGTH} characters without control characters"
        raise InvalidName("operator", as_operator(by), rule)
    return by


def check_priority(priority: int) -> int:
    """Return `priority` if it is 0 to 9. Raises InvalidOption."""
    if type(priority) is not int or priority not in PRIORITIES:
        raise InvalidOption("priority", f"{priority!r} is not a whole number from 0 (last) to 9 (first)")
    return priority


def check_max_attempts(max_attempts: int) -> int:
    """Return `max_attempts` if it is 1 to 100. Raises InvalidOption."""
    if type(max_attempts) is not int or max_attempts not in MAX_ATTEMPTS:
        raise InvalidOption("max_attempts", f"{max_attempts!r} is not a whole number from 1 to 100")
    return max_attempts


def join_key(*parts: str) -> str:
    """Several names as one string. Different names never give the same: `a:b`+`c` is not `a`+`b:c`. [TENANT-3]"""
    return "".join(f"{len(part.encode())}:{part}" for part in parts)


def _check(pattern: re.Pattern[str], what: str, name: str, rule: str) -> str:
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidName(what, repr(name), f"it must be a string; {rule}")
    if not pattern.match(name):
        raise InvalidName(what, name.encode(errors="replace").decode(), rule)
    return name
