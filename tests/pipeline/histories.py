"""Real histories as rows of the bronze table: random operations on a memory store, and the log that they left."""

import json
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace

from holdfast.pipeline.positions import positions
from holdfast.pipeline.schemas import BRONZE_EVENTS
from holdfast.testing.conformance.spaces import Spaces
from holdfast.testing.traces import draw, open_pair
from holdfast.testing.traces.steps import TraceStep


async def random_history(seeds, steps=80, back_ms=0):
    """The logs of as many stores as there are seeds, each as a shard of its own with tenants of its own.

    With `back_ms` the clock of each store is set back by that in the middle.
    """
    rows = []
    for seed in seeds:
        events = await _trace(seed, steps, back_ms)
        rows += [to_row(event, shard=seed, tenant=f"{event.tenant}-{seed}") for event in events]
    return rows


async def _trace(seed, steps, back_ms):
    pair = await open_pair(Spaces("memory:histories"), events="all")
    random = Random(seed)
    try:
        for step in range(steps):
            if back_ms and step == steps // 2:
                # The traces' own check knows no clock that goes back.
                pair._history = SimpleNamespace(add=lambda _: None, check=lambda *_: None)
                await pair.perform(TraceStep("advance", (-back_ms,)))
            await pair.perform(draw(random, pair.world))
        return pair.store.log
    finally:
        await pair.close()


def to_row(event, shard=0, tenant=None, batch=0):
    """An event as a row, in the order of the table's columns."""
    data = event.data
    error = data.get("error", {})
    at = instant(event.at)
    return {
        "shard": shard, "position": positions("file:", event.offset)[0], "offset": event.offset, "kind": event.kind,
        "tenant": tenant or event.tenant, "queue": event.queue, "job_id": event.job_id, "type": event.type, "at": at,
        "number": event.number, "attempt": event.attempt, "token": event.token, "worker_id": event.worker_id,
        "priority": data.get("priority"), "max_attempts": data.get("max_attempts"),
        "visible_at": instant(data.get("visible_at")), "deadline": instant(data.get("deadline")),
        "reason": data.get("reason"), "error_type": error.get("type"), "error_message": error.get("message"),
        "fingerprint": error.get("fingerprint"), "data": json.dumps(data), "date": at.date(), "batch": batch,
    }  # fmt: skip


def instant(ms):
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)


def frame(spark, rows):
    """These rows as the bronze table."""
    names = BRONZE_EVENTS.fieldNames()
    return spark.createDataFrame([tuple(row[name] for name in names) for row in rows], BRONZE_EVENTS)
