"""The checks, by topic. Importing this package registers them all."""

from holdfast.testing.conformance.checks import (
    cancel,
    claims,
    enqueue,
    keys,
    leases,
    log,
    quotas,
    results,
    retries,
    states,
    tenants,
    turns,
    waiting,
)

__all__ = [
    "cancel",
    "claims",
    "enqueue",
    "keys",
    "leases",
    "log",
    "quotas",
    "results",
    "retries",
    "states",
    "tenants",
    "turns",
    "waiting",
]
