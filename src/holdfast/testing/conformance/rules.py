"""The rules of the contract, and the checks that show whether a store keeps them.

A check is a coroutine over a `Harness`. Its name is a true sentence of a good store; its rule is the tag of the
contract. Decorating it with `@rule("LEASE-1")` is all it takes to belong to the suite.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from holdfast.testing.conformance.harness import Harness

Body = Callable[["Harness"], Awaitable[None]]

RULES: dict[str, str] = {
    "STATE-1": "A job is in exactly one state at every instant.",
    "STATE-2": "Terminal states never change.",
    "STATE-3": "An explicit replay makes a failed job ready again, and is recorded.",
    "TENANT-1": "Every operation names a tenant, never taken from a payload.",
    "TENANT-2": "Another tenant's job answers exactly like one that does not exist.",
    "TENANT-3": "Names are kept apart whatever characters they have; bad names are refused with the reason.",
    "TENANT-4": "Work is taken in weighted turns between the tenants that have visible work.",
    "TENANT-5": "An enqueue over a quota or budget is refused with a typed error, and changes nothing.",
    "ENQ-1": "An acknowledged enqueue is durable to the degree the store states.",
    "ENQ-2": "An id is unique within (tenant, queue); a second enqueue answers by the job's state.",
    "ENQ-3": "An idempotency key returns the first job for as long as it is held.",
    "ENQ-4": "Batches answer item by item, in order; a bad item affects no other.",
    "ENQ-5": "Delays may have any length; a waiting job is never forgotten.",
    "ENQ-6": "Payloads are bytes with a codec name and a version, up to 256 KiB.",
    "ENQ-7": "An enqueue can join the caller's transaction, where the store says so.",
    "ENQ-8": "The same request again, after a lost reply, answers `queued`.",
    "CLAIM-1": "A claim hands out up to N jobs, each with a fresh token; a job never has two live leases.",
    "CLAIM-2": "Priority first, then the moment of becoming visible, then sequence.",
    "CLAIM-3": "A claim names queues; it can wait, and wakes when a job becomes visible.",
    "CLAIM-4": "A claim never blocks on another claim.",
    "CLAIM-5": "Paused queues accept jobs and hand out none.",
    "RETRY-1": "`attempts` counts lease grants; `max_attempts` is the total number of runs.",
    "RETRY-2": "A crash or an expired lease counts: a job that kills its worker becomes a dead letter.",
    "RETRY-3": "The delay follows the stored policy; an explicit delay wins.",
    "RETRY-4": "Permanent errors fail at once; the last 10 errors are kept.",
    "RETRY-5": "A release gives the attempt back and makes the job visible at once.",
    "RETRY-6": "A release can give a reason, and the job records since when every worker has given it.",
    "LEASE-1": "Acknowledgements need the current token; the first rule that applies gives the answer.",
    "LEASE-2": "An expired lease is never brought back; extending never shortens.",
    "LEASE-3": "Expiry is found exactly, by any claim and by the reaper.",
    "LEASE-4": "A worker judges its leases by its own clock, and renews them while a handler is busy.",
    "LEASE-5": "The token is a fence: it grows with every lease of a job.",
    "CANCEL-1": "Cancel wins, and the lease ends with it.",
    "CANCEL-2": "A running handler is notified; `only_waiting` leaves a running job alone.",
    "CANCEL-3": "Cancel answers canceled, processing, completed, failed or not_found.",
    "RESULT-1": "A result is kept for its TTL and then gone, with the record.",
    "RESULT-2": "Waiting misses no completion; a timeout leaves the job alone.",
    "RESULT-3": "Two waiters get one result from one run; a waiter that leaves frees what it held.",
    "DEAD-1": "Failed jobs are listed oldest first, filtered, replayed once, and purged.",
    "EVENT-1": "Every transition appends exactly one event.",
    "EVENT-2": "A reader that resumes misses nothing and sees nothing twice; trimming is never silent.",
    "EVENT-3": "A tenant's stream shows that tenant alone.",
    "EXPLAIN-1": "An explanation names what holds a job back and what moves it, with bounded work.",
    "KEEP-1": "Only terminal jobs are ever forgotten, after their retention.",
    "TIME-1": "Only the store's clock decides; if it jumps, nothing is lost.",
}


class Check(Struct, frozen=True):
    """One thing that a store must do."""

    rule: str
    name: str
    body: Body

    @property
    def sentence(self) -> str:
        """The name as a sentence."""
        return self.name.replace("_", " ")


_checks: dict[str, Check] = {}


def rule(tag: str) -> Callable[[Body], Body]:
    """Make a coroutine over a `Harness` a check of the rule `tag`."""
    if tag not in RULES:
        msg = f"{tag} is not a rule of the contract"
        raise ValueError(msg)

    def register(body: Body) -> Body:
        name = getattr(body, "__name__", "")
        if name in _checks:
            msg = f"two checks are called {name}"
            raise ValueError(msg)
        _checks[name] = Check(tag, name, body)
        return body

    return register


def registered() -> list[Check]:
    """The checks registered so far, in the order of the rules."""
    order = list(RULES)
    return sorted(_checks.values(), key=lambda check: order.index(check.rule))
