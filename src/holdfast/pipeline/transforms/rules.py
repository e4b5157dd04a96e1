"""The rules of the contract that a job's history can show, each as an SQL condition on one event.

A condition sees an event and what came before it in its job (`violations.suspects`):

    previous    the event before
    change      the last transition before: enqueued, claimed, ...; not `extended` and `progressed`
    born        the last `enqueued` before
    due_at, until, bound, highest
                the last visible_at, deadline and max_attempts before, and the highest token

The checks are tried from the top. An event gets the first rule that it breaks, so that one fault makes one finding. A
null condition is no violation.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.pipeline.transforms.histories import ENDS, LEASE_UPDATES


@dataclass(frozen=True)
class AuditCheck:
    """One way to break a rule. A gap in the log between the event named by `since` and this one may explain it."""

    rule: str
    broken: str
    explanation: str
    since: str = "change"
    needs: str = ""
    """`extensions`: the check is valid only if they are recorded; `clock`: only if the clock was not set back."""


def one_of(*names: str) -> str:
    """A list for SQL."""
    return "(" + ", ".join(f"'{name}'" for name in names) + ")"


WAITS = ("enqueued", "retried", "released", "expired", "replayed")
"""Events after which a job waits."""
ACKS = ("completed", "failed", "retried", "released", *LEASE_UPDATES)
"""Events by the holder of a lease."""
KINDS = (*WAITS, "claimed", *LEASE_UPDATES, *ENDS, "purged")

_IS_ACK = f"kind IN {one_of(*ACKS)}"
_IS_UPDATE = f"kind IN {one_of(*LEASE_UPDATES)}"
_WAITED = f"change.kind IN {one_of(*WAITS)}"
_LEASED = "change.kind = 'claimed'"
_LIVE = f"({_WAITED} OR {_LEASED})"
_ENDED = f"change.kind IN {one_of(*ENDS)}"
_RAN_OUT = "(kind = 'expired' OR (kind = 'failed' AND reason <=> 'lease_expired'))"
_LATE = f"{_LEASED} AND {_IS_ACK} AND NOT {_RAN_OUT} AND at >= until"
_COUNTED = "change.attempt - int(change.kind = 'released')"

CHECKS = (
    # Is it an event, and is the log complete?
    AuditCheck("EVENT-1", f"kind NOT IN {one_of(*KINDS)}", "there is no event `{kind}`", "previous"),
    AuditCheck("EVENT-1", "previous.position = position", "`{kind}` is in the log twice", "previous"),
    AuditCheck(
        "EVENT-1",
        f"NOT {_IS_UPDATE} AND (kind, at, attempt, token) = "
        "(previous.kind, previous.at, previous.attempt, previous.token)",
        "`{kind}` was recorded twice",
        "previous",
    ),
    AuditCheck("EVENT-1", "kind != 'enqueued' AND previous IS NULL", "`{kind}` of a job that was not enqueued before"),
    # Events of a job are numbered from 1. Number 0 is from before they were numbered.
    AuditCheck("EVENT-1", "kind = 'enqueued' AND number > 1", "`{kind}` is event {number} of its job, not the first"),
    AuditCheck(
        "EVENT-1",
        "kind != 'enqueued' AND previous.number > 0 AND number > previous.number + 1",
        "`{kind}` is event {number} of its job and comes after event {previous.number}: what is between is missing",
        "previous",
    ),
    AuditCheck(
        "EVENT-1",
        "kind != 'enqueued' AND previous.number > 0 AND number <= previous.number",
        "`{kind}` is event {number} of its job and comes after event {previous.number}",
        "previous",
    ),
    AuditCheck(
        "EVENT-1",
        "kind NOT IN ('enqueued', 'claimed') AND change IS NOT NULL AND token > highest",
        "`{kind}` with token {token}, which no claim has granted",
    ),
    # Is there such a transition?
    AuditCheck("ENQ-2", f"kind = 'enqueued' AND {_LIVE}", "enqueued again while it was live, after `{change.kind}`"),
    AuditCheck("CLAIM-1", f"kind = 'claimed' AND {_LEASED}", "claimed while the lease {change.token} had not ended"),
    AuditCheck("CANCEL-1", f"{_IS_ACK} AND change.kind = 'canceled'", "`{kind}` after it was canceled"),
    AuditCheck(
        "STATE-3",
        f"kind = 'replayed' AND ({_LIVE} OR change.kind IN ('completed', 'canceled'))",
        "replayed after `{change.kind}`: only a failed job can be replayed",
    ),
    AuditCheck(
        "STATE-2", f"kind NOT IN ('enqueued', 'replayed', 'purged') AND {_ENDED}", "`{kind}` after `{change.kind}`"
    ),
    AuditCheck("STATE-2", "kind != 'enqueued' AND change.kind = 'purged'", "`{kind}` after it was purged"),
    AuditCheck("KEEP-1", f"kind = 'purged' AND {_LIVE}", "purged while it was live, after `{change.kind}`"),
    AuditCheck("LEASE-2", f"kind = 'extended' AND {_WAITED}", "extended although `{change.kind}` had ended the lease"),
    AuditCheck("LEASE-1", f"{_IS_ACK} AND {_WAITED}", "`{kind}` although `{change.kind}` had ended the lease"),
    AuditCheck("STATE-1", f"kind = 'expired' AND {_WAITED}", "`{kind}` after `{change.kind}`"),
    # Whose lease is it?
    AuditCheck(
        "LEASE-1",
        f"{_LEASED} AND ({_IS_ACK} OR kind = 'expired') AND token != change.token",
        "`{kind}` with token {token}, but the lease has {change.token}",
    ),
    AuditCheck(
        "LEASE-1",
        f"{_LEASED} AND ({_IS_ACK} OR kind = 'expired') AND worker_id != change.worker_id",
        "`{kind}` by worker {worker_id}, but the lease belongs to {change.worker_id}",
    ),
    AuditCheck("LEASE-5", "kind = 'claimed' AND token <= highest", "claimed with token {token} after token {highest}"),
    AuditCheck("LEASE-5", f"kind = 'claimed' AND token >= {2**53}", "token {token} is not below 2^53"),
    # Are attempts counted correctly?
    AuditCheck("RETRY-1", "kind = 'claimed' AND attempt > bound", "claimed for attempt {attempt} of {bound}", "born"),
    AuditCheck(
        "RETRY-1",
        "kind IN ('retried', 'expired') AND attempt >= bound",
        "`{kind}`, for another try, after attempt {attempt} of {bound}",
        "born",
    ),
    AuditCheck(
        "RETRY-1",
        "kind = 'failed' AND reason IN ('max_attempts', 'lease_expired') AND attempt < bound",
        "given up after attempt {attempt} of {bound}",
        "born",
    ),
    AuditCheck(
        "RETRY-1",
        f"attempt != IF(kind IN ('enqueued', 'replayed'), 0, {_COUNTED} + int(kind = 'claimed'))",
        "`{kind}` says attempt {attempt}, after `{change.kind}` of attempt {change.attempt}",
    ),
    # Is the time right?
    AuditCheck(
        "CLAIM-2", "kind = 'enqueued' AND priority NOT BETWEEN 0 AND 9", "priority {priority} is not from 0 to 9"
    ),
    AuditCheck(
        "ENQ-5",
        "kind = 'claimed' AND change.kind = 'enqueued' AND at < due_at",
        "claimed at {at}, but scheduled for {due_at}",
        needs="clock",
    ),
    AuditCheck(
        "CLAIM-2", "kind = 'claimed' AND at < due_at", "claimed at {at}, but visible from {due_at}", needs="clock"
    ),
    AuditCheck("CLAIM-1", "kind = 'claimed' AND deadline <= at", "claimed at {at} with a lease until {deadline}"),
    AuditCheck(
        "LEASE-3", f"{_LEASED} AND {_RAN_OUT} AND at < until", "expired at {at}, but the lease ran until {until}"
    ),
    AuditCheck("LEASE-2", "kind = 'extended' AND deadline < until", "the lease was cut from {until} to {deadline}"),
    AuditCheck(
        "LEASE-2",
        f"kind = 'extended' AND {_LATE}",
        "extended at {at}, but the lease ran until {until}",
        needs="extensions",
    ),
    AuditCheck("LEASE-1", _LATE, "`{kind}` at {at}, but the lease ran until {until}", needs="extensions"),
    AuditCheck("EVENT-2", "at < previous.at", "`{kind}` at {at}, after {previous.at}", "previous", "clock"),
)

# Most events are plainly correct: the event before is enough to see that none of the checks can apply. If you change a
# check, change this condition too. Events that it does not accept go through every check.
#
# Every event goes through this, so it uses few numbers that are never null, which are fast to shuffle and to compare.
# Facts of the event alone are computed before the shuffle and packed into one number.
KIND_NOS = {kind: number for number, kind in enumerate(KINDS, 1)}
_HELD = ("claimed", "extended")
_FOLLOWS = {
    "enqueued": ENDS,
    "claimed": WAITS,
    "canceled": (*WAITS, *_HELD),
    **dict.fromkeys(("completed", "released", "retried", "extended", "failed", "expired"), _HELD),
}
_FOR_GOOD = "reason IS NOT NULL AND reason NOT IN ('max_attempts', 'lease_expired')"


def _by_kind(numbers: dict[str, object], other: object) -> str:
    """SQL for the number of the event's kind."""
    cases = " ".join(f"WHEN '{name}' THEN {number}" for name, number in numbers.items())
    return f"CASE kind {cases} ELSE {other} END"


def _is(*kinds: str, of: str = "kind_no") -> str:
    return f"{of} IN ({', '.join(str(KIND_NOS[kind]) for kind in kinds)})"


def _bits(kinds: tuple[str, ...]) -> int:
    return sum(1 << KIND_NOS[kind] for kind in kinds)


_VALID = (
    "position IS NOT NULL AND at IS NOT NULL AND attempt IS NOT NULL AND token IS NOT NULL AND coalesce(CASE "
    f"WHEN {_is('enqueued')} THEN attempt = 0 AND token = 0 AND priority BETWEEN 0 AND 9 "
    f"WHEN {_is('claimed')} THEN deadline > at AND token < {2**53} ELSE true END, false)"
)
# A bit for each kind that may come before, the lowest for no event before. 0 if the event by itself is not valid.
_MAY_FOLLOW = (
    f"IF({_VALID}, CASE kind_no "
    + " ".join(
        f"WHEN {KIND_NOS[kind]} THEN {_bits(before) | (kind == 'enqueued')}" for kind, before in _FOLLOWS.items()
    )
    + " ELSE 0 END, 0)"
)
# Whether the wait or lease before must be over (2), must not be over (0), or does not matter (1).
_IS_LATE = (
    f"CASE WHEN {_is('claimed', 'expired')} OR ({_is('failed')} AND reason <=> 'lease_expired') THEN 2 "
    f"WHEN {_is('enqueued', 'canceled')} THEN 1 ELSE 0 END"
)
_NUMBER_BIT = 24
KIND_NO = _by_kind(dict(KIND_NOS), 0)
"""The number of an event's kind, as `kind_no`."""
FACTS = {
    "code": f"kind_no + 16 * ({_IS_LATE}) + 64 * int({_is('failed')} AND NOT ({_FOR_GOOD})) + 128 * ({_MAY_FOLLOW}) "
    f"+ {1 << _NUMBER_BIT} * bigint(coalesce(number, 0))",
    "at": "coalesce(unix_micros(at), 0)",
    # The end of the wait or lease that the event begins or extends; 0 if it has none.
    "due": f"coalesce(unix_micros(IF({_is('claimed', 'extended')}, deadline, visible_at)), 0)",
    "token": "coalesce(token, 0)",
    "run": "xxhash64(worker_id, attempt, token)",
    "attempt": "coalesce(attempt, 0)",
}
"""Columns that are computed from an event and its `kind_no`, beside `position` and `max_attempts`."""
PRIOR = {"position": "", "code": 0, "at": 0, "due": 0, "token": 0, "run": 0, "attempt": 0}
"""Columns of the event before, as `prior_...`, each with its value if there is none."""
UNPACKED = {
    "kind": "code & 15",
    "prior_kind": "prior_code & 15",
    "late": "shiftright(code, 4) & 3",
    "given_up": "(code & 64) != 0",
    "follows": f"shiftright(code, 7) & {(1 << _NUMBER_BIT - 7) - 1}",
    "number": f"shiftright(code, {_NUMBER_BIT})",
    "prior_number": f"shiftright(prior_code, {_NUMBER_BIT})",
}
"""Columns that are unpacked from `code`."""

# Attempts used before this event, attempts after the event before, and the lowest limit that allows this event.
_USED = f"attempt - int({_is('claimed', of='kind')})"
_LEFT = f"prior_attempt - int({_is('released', of='prior_kind')})"
_MIN_BOUND = (
    f"CASE WHEN {_is('retried', 'expired', of='kind')} THEN attempt + 1 "
    f"WHEN {_is('claimed', of='kind')} OR given_up THEN attempt ELSE -1 END"
)
PLAIN = f"""
getbit(follows, prior_kind) = 1 AND position > prior_position AND at >= prior_at
AND IF({_is("enqueued", of="kind")}, number <= 1, prior_number = 0 OR number = prior_number + 1)
AND bound >= {_MIN_BOUND} AND (NOT given_up OR bound <= attempt)
AND (late = 1 OR (prior_due > 0 AND (late = 2) = (at >= prior_due)))
AND CASE
  WHEN {_is("enqueued", of="kind")} THEN true
  WHEN {_is("claimed", of="kind")} THEN {_USED} = {_LEFT} AND token > highest
  WHEN {_is("extended", of="kind")} THEN run = prior_run AND due >= prior_due
  ELSE IF({_is(*_HELD, of="prior_kind")}, run = prior_run, {_USED} = {_LEFT} AND token = prior_token) END
"""

OTHER_RULES = ("EVENT-3", "STATE-1", "LEASE-5", "EVENT-1", "LAKE-1")
"""Rules that need several jobs, the store, or the record of what was ingested (LAKE-1)."""
RULES = tuple(sorted({check.rule for check in CHECKS} | set(OTHER_RULES)))
