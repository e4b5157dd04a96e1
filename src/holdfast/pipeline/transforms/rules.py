"""The rules of the contract that a job's history can show, each as a condition in SQL on one event.

An event is seen with what came before it in its job (`violations.suspects`):

    previous    the event before
    change      the last transition before: enqueued, claimed, ...; `extended` and `progressed` are none
    born        the last `enqueued` before
    due_at, until, bound, highest
                the last visible_at, deadline and max_attempts before, and the highest token

The table is read from the top, and an event is charged with the first rule that it breaks, so that one fault makes
one finding. A null condition is no violation.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.pipeline.transforms.histories import ENDS, NOTES


@dataclass(frozen=True)
class Check:
    """One way to break a rule. A gap in the log between the event named by `since` and this one may explain it."""

    rule: str
    broken: str
    explanation: str
    since: str = "change"
    needs: str = ""
    """`extensions`: it holds only where these are recorded; `clock`: only if the clock was not set back."""


def one_of(*names: str) -> str:
    """A list for SQL."""
    return "(" + ", ".join(f"'{name}'" for name in names) + ")"


WAITS = ("enqueued", "retried", "released", "expired", "replayed")
"""After these a job waits."""
ACKS = ("completed", "failed", "retried", "released", *NOTES)
"""What the holder of a lease does."""
KINDS = (*WAITS, "claimed", *NOTES, *ENDS, "purged")

_IS_ACK = f"kind IN {one_of(*ACKS)}"
_IS_NOTE = f"kind IN {one_of(*NOTES)}"
_WAITED = f"change.kind IN {one_of(*WAITS)}"
_LEASED = "change.kind = 'claimed'"
_LIVE = f"({_WAITED} OR {_LEASED})"
_ENDED = f"change.kind IN {one_of(*ENDS)}"
_RAN_OUT = "(kind = 'expired' OR (kind = 'failed' AND reason <=> 'lease_expired'))"
_LATE = f"{_LEASED} AND {_IS_ACK} AND NOT {_RAN_OUT} AND at >= until"
_COUNTED = "change.attempt - int(change.kind = 'released')"

CHECKS = (
    # Is it an event, and is the log whole?
    Check("EVENT-1", f"kind NOT IN {one_of(*KINDS)}", "there is no event `{kind}`", "previous"),
    Check("EVENT-1", "previous.position = position", "`{kind}` is in the log twice", "previous"),
    Check(
        "EVENT-1",
        f"NOT {_IS_NOTE} AND (kind, at, attempt, token) = "
        "(previous.kind, previous.at, previous.attempt, previous.token)",
        "`{kind}` was recorded twice",
        "previous",
    ),
    Check("EVENT-1", "kind != 'enqueued' AND previous IS NULL", "`{kind}` of a job that was not enqueued before"),
    # Events of a job are numbered from 1 on; 0: from before they were.
    Check("EVENT-1", "kind = 'enqueued' AND number > 1", "`{kind}` is event {number} of its job, not the first"),
    Check(
        "EVENT-1",
        "kind != 'enqueued' AND previous.number > 0 AND number > previous.number + 1",
        "`{kind}` is event {number} of its job and comes after event {previous.number}: what is between is missing",
        "previous",
    ),
    Check(
        "EVENT-1",
        "kind != 'enqueued' AND previous.number > 0 AND number <= previous.number",
        "`{kind}` is event {number} of its job and comes after event {previous.number}",
        "previous",
    ),
    Check(
        "EVENT-1",
        "kind NOT IN ('enqueued', 'claimed') AND change IS NOT NULL AND token > highest",
        "`{kind}` with token {token}, of which there is no claim",
    ),
    # Is there such a move?
    Check("ENQ-2", f"kind = 'enqueued' AND {_LIVE}", "enqueued again while it was live, after `{change.kind}`"),
    Check("CLAIM-1", f"kind = 'claimed' AND {_LEASED}", "claimed while the lease {change.token} had not ended"),
    Check("CANCEL-1", f"{_IS_ACK} AND change.kind = 'canceled'", "`{kind}` after it was canceled"),
    Check(
        "STATE-3",
        f"kind = 'replayed' AND ({_LIVE} OR change.kind IN ('completed', 'canceled'))",
        "replayed after `{change.kind}`: only a failed job can be",
    ),
    Check("STATE-2", f"kind NOT IN ('enqueued', 'replayed', 'purged') AND {_ENDED}", "`{kind}` after `{change.kind}`"),
    Check("STATE-2", "kind != 'enqueued' AND change.kind = 'purged'", "`{kind}` after it was purged"),
    Check("KEEP-1", f"kind = 'purged' AND {_LIVE}", "purged while it was live, after `{change.kind}`"),
    Check("LEASE-2", f"kind = 'extended' AND {_WAITED}", "extended although `{change.kind}` had ended the lease"),
    Check("LEASE-1", f"{_IS_ACK} AND {_WAITED}", "`{kind}` although `{change.kind}` had ended the lease"),
    Check("STATE-1", f"kind = 'expired' AND {_WAITED}", "`{kind}` after `{change.kind}`"),
    # Whose lease is it?
    Check(
        "LEASE-1",
        f"{_LEASED} AND ({_IS_ACK} OR kind = 'expired') AND token != change.token",
        "`{kind}` with token {token}, the lease has {change.token}",
    ),
    Check(
        "LEASE-1",
        f"{_LEASED} AND ({_IS_ACK} OR kind = 'expired') AND worker_id != change.worker_id",
        "`{kind}` by worker {worker_id}, the lease is of {change.worker_id}",
    ),
    Check("LEASE-5", "kind = 'claimed' AND token <= highest", "claimed with token {token} after token {highest}"),
    Check("LEASE-5", f"kind = 'claimed' AND token >= {2**53}", "token {token} is not below 2^53"),
    # Are attempts counted right?
    Check("RETRY-1", "kind = 'claimed' AND attempt > bound", "claimed for attempt {attempt} of {bound}", "born"),
    Check(
        "RETRY-1",
        "kind IN ('retried', 'expired') AND attempt >= bound",
        "`{kind}`, to be tried again, after attempt {attempt} of {bound}",
        "born",
    ),
    Check(
        "RETRY-1",
        "kind = 'failed' AND reason IN ('max_attempts', 'lease_expired') AND attempt < bound",
        "given up after attempt {attempt} of {bound}",
        "born",
    ),
    Check(
        "RETRY-1",
        f"attempt != IF(kind IN ('enqueued', 'replayed'), 0, {_COUNTED} + int(kind = 'claimed'))",
        "`{kind}` says attempt {attempt}, after `{change.kind}` of attempt {change.attempt}",
    ),
    # Is it the right moment?
    Check("CLAIM-2", "kind = 'enqueued' AND priority NOT BETWEEN 0 AND 9", "priority {priority} is not from 0 to 9"),
    Check(
        "ENQ-5",
        "kind = 'claimed' AND change.kind = 'enqueued' AND at < due_at",
        "claimed at {at}, asked for at {due_at}",
        needs="clock",
    ),
    Check("CLAIM-2", "kind = 'claimed' AND at < due_at", "claimed at {at}, visible from {due_at}", needs="clock"),
    Check("CLAIM-1", "kind = 'claimed' AND deadline <= at", "claimed at {at} with a lease until {deadline}"),
    Check("LEASE-3", f"{_LEASED} AND {_RAN_OUT} AND at < until", "expired at {at}, the lease ran until {until}"),
    Check("LEASE-2", "kind = 'extended' AND deadline < until", "the lease was cut from {until} to {deadline}"),
    Check(
        "LEASE-2",
        f"kind = 'extended' AND {_LATE}",
        "extended at {at}, the lease ran until {until}",
        needs="extensions",
    ),
    Check("LEASE-1", _LATE, "`{kind}` at {at}, the lease ran until {until}", needs="extensions"),
    Check("EVENT-2", "at < previous.at", "`{kind}` at {at}, after {previous.at}", "previous", "clock"),
)

# Most events are plainly right, and that is told from the event before alone: none of the checks can be true of them.
# Whoever changes a check looks here too; what is not named here is looked at by every check.
#
# All jobs go through this, so it is made of few numbers that are never null, which are quick to move and to compare.
# What an event tells by itself is worked out before it is moved, and packed into one of them.
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
    """SQL for the number that goes with the event's kind."""
    cases = " ".join(f"WHEN '{name}' THEN {number}" for name, number in numbers.items())
    return f"CASE kind {cases} ELSE {other} END"


def _is(*kinds: str, of: str = "kind_no") -> str:
    return f"{of} IN ({', '.join(str(KIND_NOS[kind]) for kind in kinds)})"


def _bits(kinds: tuple[str, ...]) -> int:
    return sum(1 << KIND_NOS[kind] for kind in kinds)


_SOUND = (
    "position IS NOT NULL AND at IS NOT NULL AND attempt IS NOT NULL AND token IS NOT NULL AND coalesce(CASE "
    f"WHEN {_is('enqueued')} THEN attempt = 0 AND token = 0 AND priority BETWEEN 0 AND 9 "
    f"WHEN {_is('claimed')} THEN deadline > at AND token < {2**53} ELSE true END, false)"
)
# A bit for each kind that it may come after, the lowest for none before; none if it is not right by itself.
_MAY_FOLLOW = (
    f"IF({_SOUND}, CASE kind_no "
    + " ".join(
        f"WHEN {KIND_NOS[kind]} THEN {_bits(before) | (kind == 'enqueued')}" for kind, before in _FOLLOWS.items()
    )
    + " ELSE 0 END, 0)"
)
# Whether what it comes after must be due (2), must not be (0), or whether that does not matter.
_IS_LATE = (
    f"CASE WHEN {_is('claimed', 'expired')} OR ({_is('failed')} AND reason <=> 'lease_expired') THEN 2 "
    f"WHEN {_is('enqueued', 'canceled')} THEN 1 ELSE 0 END"
)
_NUMBER_BIT = 24
KIND_NO = _by_kind(dict(KIND_NOS), 0)
"""Of an event, as `kind_no`."""
FACTS = {
    "code": f"kind_no + 16 * ({_IS_LATE}) + 64 * int({_is('failed')} AND NOT ({_FOR_GOOD})) + 128 * ({_MAY_FOLLOW}) "
    f"+ {1 << _NUMBER_BIT} * bigint(coalesce(number, 0))",
    "at": "coalesce(unix_micros(at), 0)",
    # When the wait or the lease ends that it begins or goes on with; 0 if it does not say.
    "due": f"coalesce(unix_micros(IF({_is('claimed', 'extended')}, deadline, visible_at)), 0)",
    "token": "coalesce(token, 0)",
    "run": "xxhash64(worker_id, attempt, token)",
    "attempt": "coalesce(attempt, 0)",
}
"""Of an event with its `kind_no`, beside `position` and `max_attempts`."""
PRIOR = {"position": "", "code": 0, "at": 0, "due": 0, "token": 0, "run": 0, "attempt": 0}
"""Of the event before, as `prior_...`, and what stands there where there is none."""
UNPACKED = {
    "kind": "code & 15",
    "prior_kind": "prior_code & 15",
    "late": "shiftright(code, 4) & 3",
    "given_up": "(code & 64) != 0",
    "follows": f"shiftright(code, 7) & {(1 << _NUMBER_BIT - 7) - 1}",
    "number": f"shiftright(code, {_NUMBER_BIT})",
    "prior_number": f"shiftright(prior_code, {_NUMBER_BIT})",
}
"""What was packed."""

# Attempts that are counted before it and behind the one before, and the least and the most that the limit can be.
_USED = f"attempt - int({_is('claimed', of='kind')})"
_LEFT = f"prior_attempt - int({_is('released', of='prior_kind')})"
_LEAST = (
    f"CASE WHEN {_is('retried', 'expired', of='kind')} THEN attempt + 1 "
    f"WHEN {_is('claimed', of='kind')} OR given_up THEN attempt ELSE -1 END"
)
PLAIN = f"""
getbit(follows, prior_kind) = 1 AND position > prior_position AND at >= prior_at
AND IF({_is("enqueued", of="kind")}, number <= 1, prior_number = 0 OR number = prior_number + 1)
AND bound >= {_LEAST} AND (NOT given_up OR bound <= attempt)
AND (late = 1 OR (prior_due > 0 AND (late = 2) = (at >= prior_due)))
AND CASE
  WHEN {_is("enqueued", of="kind")} THEN true
  WHEN {_is("claimed", of="kind")} THEN {_USED} = {_LEFT} AND token > highest
  WHEN {_is("extended", of="kind")} THEN run = prior_run AND due >= prior_due
  ELSE IF({_is(*_HELD, of="prior_kind")}, run = prior_run, {_USED} = {_LEFT} AND token = prior_token) END
"""

MORE = ("EVENT-3", "STATE-1", "LEASE-5", "EVENT-1", "LAKE-1")
"""Rules that are judged over several jobs, with the store's help, or by what was taken in to the lake: LAKE-1."""
RULES = tuple(sorted({check.rule for check in CHECKS} | set(MORE)))
