"""Everything that the Lua scripts and Python must agree on, stated once.

The scripts name these values in capitals (`STATE_LEASED`, `RECORD_FORMAT`, `EXTRA_ERRORS`). `scripts.py` replaces the
names by the values of `LUA_CONSTANTS` when it puts a script together: a name costs nothing when the script runs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from msgspec import Struct

from holdfast.core import fairness
from holdfast.core.budgets import RECORD_BYTES
from holdfast.core.codes import EVENT_CODES, EVENT_KINDS, KEY_POLICY_CODES, OUTCOME_CODES, REASON_CODES, STATE_CODES
from holdfast.core.events import EventKind
from holdfast.core.explain import AHEAD_LIMIT, OTHERS_LIMIT, OTHERS_SCAN
from holdfast.core.job import ERRORS_KEPT, PURGE_COUNT_MS, PURGE_COUNTS_DROPPED, AttemptError, Backoff

FORMAT = 7
"""The number of this layout. A store with another number is refused."""

NONE = -1
PRIORITY_BAND = 2**49
"""What the scores of waiting jobs differ by from one priority to the next. Above every time."""
"""Stands for a number that is not given: no time, no sequence number, no state."""

# Records --------------------------------------------------------------------------------------------------------

FIELDS = (
    ("state", "B"), ("attempts", "B"), ("spent", "B"), ("spent_state", "B"), ("events", "I4"),
    ("reason", "B"), ("flags", "B"), ("worker_size", "B"), ("priority", "B"), ("extra_size", "I4"),
    ("visible_at", "I8"), ("token", "I8"), ("deadline", "I8"), ("claimed_at", "I8"), ("finished_at", "I8"),
    ("expires_at", "I8"), ("ttl", "I8"),
    ("max_attempts", "B"), ("type_size", "B"), ("key_size", "H"), ("static_size", "I4"), ("request_size", "H"),
    ("payload_size", "I4"), ("seq", "I8"), ("enqueued_at", "I8"),
)  # fmt: skip
"""The head of a record, in order. The fields from `max_attempts` on never change.

After the head come type, settings, request id, idempotency key and payload, which never change, and then worker, extra
and result, which do. `spent` is the outcome that the token was spent on, `spent_state` the state that it led to.
`events` is the number of the job's last event.
"""
_SIZES = {"B": 1, "H": 2, "I4": 4, "I8": 8}
_PYTHON_FORMATS = {"B": "B", "H": "H", "I4": "I", "I8": "Q"}

HEAD = struct.Struct("<" + "".join(_PYTHON_FORMATS[format_] for _, format_ in FIELDS))
KEY = struct.Struct("<BQ")
"""An idempotency key in a record: policy and ttl, followed by the key."""

FLAG_SEPARATE_PAYLOAD = 1
"""The payload is kept in a hash of its own."""
FLAG_RESULT_IN_BLOB = 2
FLAG_REQUEST_IS_ID = 4
"""The request id equals the job's id and is not stored again."""
FLAG_FLOW_STEP = 8


def _lua_format(*names: str) -> str:
    """The format of Lua's `struct` that unpacks these fields of a head, in their order there, and skips the others."""
    parts = [format_ if not names or name in names else "x" * _SIZES[format_] for name, format_ in FIELDS]
    return f"'<{''.join(parts)}'"


def _positions() -> dict[str, int]:
    """Where each field begins, counted from 1 as Lua does."""
    positions: dict[str, int] = {}
    at = 1
    for name, format_ in FIELDS:
        positions[f"AT_{name.upper()}"] = at
        at += _SIZES[format_]
    return positions


class Static(Struct, array_like=True, frozen=True):
    """Settings that many jobs share."""

    codec: str
    version: int
    backoff: Backoff
    timeout_ms: int | None
    result_ttl_ms: int
    headers: dict[str, str] | None


class RecordExtra(Struct, array_like=True):
    """Fields that most jobs do not have. Lua writes them too, and writes 1.0 as 1."""

    replays: int
    fraction: float | bool
    """The progress; False for none."""
    message: str
    errors: list[AttemptError]
    released_for: str = ""
    first_released_at: int = 0


class ErrorArgument(Struct, array_like=True, frozen=True):
    """An error as a script gets it: what the record keeps, and what the event says."""

    type: str
    message: str
    traceback: str
    short_message: str
    fingerprint: str


# The log --------------------------------------------------------------------------------------------------------

_ERROR_DATA = ("type", "message", "fingerprint")
EVENT_DATA: dict[EventKind, tuple[str, ...]] = {
    "enqueued": ("priority", "max_attempts", "visible_at"),
    "claimed": ("visible_at", "deadline"),
    "extended": ("deadline",),
    "progressed": ("fraction", "message"),
    "retried": ("visible_at", *_ERROR_DATA),
    "released": ("visible_at", "reason"),
    "expired": ("visible_at", *_ERROR_DATA),
    "completed": (),
    "failed": ("reason", *_ERROR_DATA),
    "canceled": ("by",),
    "replayed": ("visible_at", "replays", "by"),
    "purged": ("purge", "series", "by"),
}
"""The values that an event has in addition to the common ones, by kind. '' stands for no reason and for no operator."""
EVENT_SIZES = tuple(len(EVENT_DATA[kind]) for kind in EVENT_KINDS)
EVENT_COMMON = 8
"""Kind, lane, id, type, attempt, token, worker and number. Lane, type and worker are positions in the dictionary."""

# Replies --------------------------------------------------------------------------------------------------------

REFUSED_NOT_FOUND = -1
REFUSED_LEASE_LOST = -2
REFUSED_JOB_CANCELED = -3
REFUSED_LEASE_EXPIRED = -4
"""Why an acknowledgement is refused. Other replies in their place are states, which are not negative. [LEASE-1]"""
NOT_TERMINAL = 0
DONE = 1

DUPLICATE = b"d"
ALREADY_COMPLETED = b"c"
OVER_QUOTA = b"q"
PARENT_REFUSED = b"p"
NOT_FAILED = b"s"
KEY_HELD = b"k"
"""The first value of a reply that has several."""

RECORDS_MARK = 0xC1
"""The first byte of a notification that carries records: msgpack never begins with it."""
MAX_RECORDS_BYTES = 4096
"""The longest notification that carries records."""


def _numbered(prefix: str, names: Sequence[str], start: int = 1) -> dict[str, int]:
    return {f"{prefix}_{name.upper()}": n for n, name in enumerate(names, start)}


def _codes(prefix: str, codes: dict[str, int]) -> dict[str, int]:
    return {f"{prefix}_{name.upper()}": code for name, code in codes.items() if name}


def _lua_constants() -> dict[str, str]:
    numbers: dict[str, int] = {
        "NONE": NONE,
        "RECORD_SIZE": HEAD.size,
        "RECORD_BYTES": RECORD_BYTES,
        "ERRORS_KEPT": ERRORS_KEPT,
        "AHEAD_LIMIT": AHEAD_LIMIT,
        "OTHERS_LIMIT": OTHERS_LIMIT,
        "OTHERS_SCAN": OTHERS_SCAN,
        "PURGE_COUNT_MS": PURGE_COUNT_MS,
        "PURGE_COUNTS_DROPPED": PURGE_COUNTS_DROPPED,
        "TURN_COST": fairness.STRIDE,
        "MAX_PRIORITY": 9,
        "PRIORITY_BAND": PRIORITY_BAND,
        "FLAG_SEPARATE_PAYLOAD": FLAG_SEPARATE_PAYLOAD,
        "FLAG_RESULT_IN_BLOB": FLAG_RESULT_IN_BLOB,
        "FLAG_REQUEST_IS_ID": FLAG_REQUEST_IS_ID,
        "FLAG_FLOW_STEP": FLAG_FLOW_STEP,
        "REFUSED_NOT_FOUND": REFUSED_NOT_FOUND,
        "REFUSED_LEASE_LOST": REFUSED_LEASE_LOST,
        "REFUSED_JOB_CANCELED": REFUSED_JOB_CANCELED,
        "REFUSED_LEASE_EXPIRED": REFUSED_LEASE_EXPIRED,
        "NOT_TERMINAL": NOT_TERMINAL,
        "DONE": DONE,
        "MAX_RECORDS_BYTES": MAX_RECORDS_BYTES,
        "EVENT_COMMON": EVENT_COMMON,
        **_codes("STATE", {str(state): code for state, code in STATE_CODES.items()}),
        **_codes("OUTCOME", OUTCOME_CODES),
        **_codes("REASON", REASON_CODES),
        **_codes("POLICY", KEY_POLICY_CODES),
        **_codes("EVENT", EVENT_CODES),
        **_positions(),
        **_numbered("STATIC", Static.__struct_fields__),
        **_numbered("BACKOFF", Backoff.__struct_fields__),
        **_numbered("EXTRA", RecordExtra.__struct_fields__),
        **_numbered("ERROR", ErrorArgument.__struct_fields__),
        # A tenant's settings, what it keeps, a waiter's registration, and the values of a log entry after their names.
        **_numbered("SETTING", ("cost", "weight", "max_waiting", "budgets")),
        **_numbered("USAGE", ("events", "jobs", "keys", "bytes")),
        **_numbered("WAITER", ("until", "room_left", "room", "number", "lease_ms", "worker", "tenant", "queues")),
        **{f"ENTRY_{name}": 2 * n for n, name in enumerate(("COUNT", "TOTAL", "AT", "EVENTS", "USAGE"), 1)},
    }
    tags = {
        "DUPLICATE": DUPLICATE,
        "ALREADY_COMPLETED": ALREADY_COMPLETED,
        "OVER_QUOTA": OVER_QUOTA,
        "PARENT_REFUSED": PARENT_REFUSED,
        "NOT_FAILED": NOT_FAILED,
        "KEY_HELD": KEY_HELD,
    }
    texts = {
        "RECORD_FORMAT": _lua_format(),
        "CHANGING_FORMAT": _lua_format(*(name for name, _ in FIELDS[:17])).replace("x", ""),
        "CLAIM_FORMAT": _lua_format(
            "state", "attempts", "events", "extra_size", "visible_at",
            "type_size", "key_size", "static_size", "request_size", "payload_size",
        ),
        "COMPLETE_FORMAT": _lua_format(
            "state", "attempts", "spent", "events", "worker_size", "extra_size", "token", "deadline", "ttl",
            "type_size", "key_size", "static_size", "request_size", "payload_size", "seq",
        ),
        "EVENT_SIZES": f"{{ [0] = {', '.join(map(str, EVENT_SIZES))} }}",
        "RECORDS_MARK": f"'\\{RECORDS_MARK}'",
    }  # fmt: skip
    return (
        {name: str(number) for name, number in numbers.items()} | {n: repr(t.decode()) for n, t in tags.items()} | texts
    )


LUA_CONSTANTS = _lua_constants()
