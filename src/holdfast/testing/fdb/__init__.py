"""A simulated FoundationDB: one database in memory, with the rules of the official client, and faults from a seed.

    database = SimulatedDatabase(seed=7, faults=SOME, frozen=True)
    transaction = database.transaction()
    transaction.set(b"key", b"value")
    await transaction.commit()
    database.advance(30)        # 30,000,000 versions
    database.recover()          # 100,000,000 more at once
    database.fail_commit(COMMIT_UNKNOWN_RESULT, applied=True)

It keeps what decides whether a program is right: strict serialisability by read versions and conflict ranges, snapshot
reads, a transaction's own writes, atomic operations, versionstamps, watches, limits of sizes and ages, and every error
that a retry loop meets. It has no disks, no network and no throughput to measure. What of it is an approximation: the
bytes a commit counts (within some per cent), and that a read version is always the newest.
"""

from __future__ import annotations

import threading

from holdfast.testing.fdb.database import FORCED_RECOVERY_VERSIONS, IDLE_S, RECOVERY_VERSIONS, SimulatedDatabase
from holdfast.testing.fdb.faults import NONE, SOME, Faults
from holdfast.testing.fdb.transaction import SimulatedTransaction

__all__ = [
    "FORCED_RECOVERY_VERSIONS",
    "IDLE_S",
    "NONE",
    "RECOVERY_VERSIONS",
    "SOME",
    "Faults",
    "SimulatedDatabase",
    "SimulatedTransaction",
    "drop_simulation",
    "open_simulation",
]

_lock = threading.Lock()
_by_name: dict[str, SimulatedDatabase] = {}


def open_simulation(name: str, *, seed: int = 0, faults: Faults = NONE, frozen: bool = False) -> SimulatedDatabase:
    """Return the database of this name in this process; it is made by the first who asks, and outlives its clients."""
    with _lock:
        if name not in _by_name:
            _by_name[name] = SimulatedDatabase(seed=seed, faults=faults, frozen=frozen)
        return _by_name[name]


def drop_simulation(name: str) -> None:
    """Forget a database and what is in it."""
    with _lock:
        _by_name.pop(name, None)
