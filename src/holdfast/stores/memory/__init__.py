"""The memory store: the reference, and the store to read first. Dicts and heaps under one lock, the rules from `core`.

The parts:

    store           the `Store` methods for jobs: each takes the lock and calls one of the next four
    changes         operations on named jobs: enqueue, finish, extend, report, cancel, replay, purge, set_result_ttl
    claims          claim and reap
    reads           get, list, counts
    upkeep          pause and prune
    tables          everything the store keeps, and the steps `add`, `change` and `forget` that keep the tables in line
    jobs, queues    the job records; per queue name: what is ready, what is due later, whose turn it is
    heaps           a heap whose entries can become stale

Everything but jobs is in `holdfast.tables`: keys, the event log, settings, workers, notifications, the clock.
"""

from __future__ import annotations

import threading

from holdfast.core.errors import StoreMismatch
from holdfast.kinds import store_kind
from holdfast.opening import Options, StoreUrl
from holdfast.stores.memory.store import MemoryStore

_stores: dict[str, MemoryStore] = {}
_stores_lock = threading.Lock()


@store_kind(place="process")
def open_memory(url: StoreUrl) -> MemoryStore:
    """`memory:` is one store per process, `memory:NAME` another one. The first URL that opens it sets its options."""
    options = Options(url)
    common = options.common()
    options.finish()
    with _stores_lock:
        store = _stores.setdefault(url.rest, MemoryStore(common))
    if store.options != common and url.options:
        raise StoreMismatch(f"memory:{url.rest} is already open in this process with other options")
    return store


__all__ = ["MemoryStore", "open_memory"]
