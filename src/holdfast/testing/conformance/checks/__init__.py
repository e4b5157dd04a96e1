"""The checks, by topic. Importing this package registers all of them."""

from __future__ import annotations

from holdfast.testing.conformance.checks import (
    cancels,
    claims,
    clock,
    dead_letters,
    enqueue,
    events,
    keys,
    leases,
    lone,
    numbers,
    posts,
    quotas,
    refusals,
    results,
    retention,
    retries,
    states,
    tenants,
    turns,
    waiting,
)

__all__ = [
    "cancels",
    "claims",
    "clock",
    "dead_letters",
    "enqueue",
    "events",
    "keys",
    "leases",
    "lone",
    "numbers",
    "posts",
    "quotas",
    "refusals",
    "results",
    "retention",
    "retries",
    "states",
    "tenants",
    "turns",
    "waiting",
]
