"""The FoundationDB store: jobs in a cluster that scales out, under a prefix of their own.

The parts:

    store                           the `Store` contract: parts of batches, each in a transaction
    keyspace                        all keys, made and read in one place
    records, entries, settings      what the values are
    transactions                    how a transaction runs: conflicts, unknown outcomes, the clock
    unit_of_work                    one transaction: what it read, and what follows from what it changed
    clock, numbers                  the store clock; sequence numbers and tokens
    changes                         operations on named jobs
    claims, picking, lanes, turns   claims: which jobs are next, and whose turn it is
    reads, listing, log             reading jobs, counts, lists and events
    upkeep, trimming                settings, workers, retention, the bounds of the log
    notifications                   hints by watches
    joining                         the caller's transaction
    database, client                what a database has to do; the official binding
    address, doctor                 the store URL; the health of the deployment
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from holdfast.kinds import store_kind
from holdfast.opening import StoreUrl

if TYPE_CHECKING:
    from holdfast.stores.foundationdb.store import FdbStore


@store_kind(install="holdfast[fdb]", space_option="prefix")
def open_fdb(url: StoreUrl) -> FdbStore:
    """`fdb:` is the cluster of this machine's cluster file, `fdb:///path/to/fdb.cluster` another one.

    `prefix` keeps several stores in one cluster apart. `simulation=NAME` is a simulated cluster in this process.
    """
    from holdfast.stores.foundationdb import address
    from holdfast.stores.foundationdb.store import FdbStore

    found = address.read(url)
    if found.simulation is None and find_spec("fdb") is None:
        raise ModuleNotFoundError(name="fdb")
    return FdbStore(found)
