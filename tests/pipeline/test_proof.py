"""The audit proves: whichever event is removed, doubled or altered, it is found, and nothing else is.

    python -m pytest tests/pipeline/test_proof.py                               a sample: 12 histories
    HOLDFAST_PIPELINE=full python -m pytest -s tests/pipeline/test_proof.py     600 histories

On each store half of the histories that are damaged lose or double an event in the store's log before the ingest, the
others lose or double one, or have one altered, in the lake after it; as many again are left as they are.
"""

import asyncio
import random
import sys
from collections import Counter
from itertools import cycle, islice
from typing import get_args

import pytest

from holdfast.core.events import EventKind
from holdfast.opening import open_store
from holdfast.pipeline.audit import audit
from holdfast.pipeline.comparing import store_jobs
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from tests.log import all_events
from tests.pipeline.damages import damage_lake, double_in_log, live, remove_from_log
from tests.pipeline.settings import FULL

KINDS = get_args(EventKind)
HISTORIES = 200 if FULL else 4
"""On each store: half of them are damaged."""
BEFORE = HISTORIES // 4
PER_BATCH = 10


def drawn(groups, count, chance):
    """This many groups of events, each with one of its events, of every kind in turn."""
    left = dict(groups)
    for kind in islice(cycle(chance.sample(KINDS, len(KINDS))), count):
        having = [name for name, events in left.items() if any(event.kind == kind for event in events)]
        name = chance.choice(having or sorted(left))
        events = left.pop(name)
        yield name, chance.choice([event for event in events if not having or event.kind == kind])


async def make_histories(url, names, seed):
    store = await open_store(url)
    try:
        for name in names:
            await live(store, name, random.Random(f"{seed} {name}"))
        events = {}
        for event in await all_events(store):
            events.setdefault(event.tenant, []).append(event)
        return events
    finally:
        await store.close()


@pytest.mark.timeout(1800)
def test_any_lost_duplicate_or_altered_event_is_found(spark, url, tmp_path):
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    url = f"{url}{'&' if '?' in url else '?'}test_clock=1&events=all"
    untouched, before, after = ([f"{kind}{n}" for n in range(count)] for kind, count in (
        ("untouched", HISTORIES // 2), ("before", BEFORE), ("after", HISTORIES // 2 - BEFORE)
    ))  # fmt: skip
    lake = Lake(tmp_path / "lake", create=True)
    done = Counter()

    # In the store's log, before the ingest.
    events = asyncio.run(make_histories(url, untouched + before, seed))
    for _, event in drawn({name: events[name] for name in before}, len(before), chance):
        remove = chance.random() < 0.5
        (remove_from_log if remove else double_in_log)(url, event)
        done["removed before" if remove else "doubled before", event.kind] += 1
    ingest(spark, lake, IngestPlan(url))

    # In the lake, after it: one event of a batch.
    asyncio.run(make_histories(url, after, seed))
    ingest(spark, lake, IngestPlan(url, max_events=PER_BATCH, per_partition=PER_BATCH))
    known = store_jobs(spark, lake, url)
    rows = lake.read(spark, "events").where("batch > 0").select("date", "batch", "position", "kind").collect()
    batches = {}
    # Without the last event that it has read, a lake is refused before any audit, as that of another store.
    rows.remove(max(rows, key=lambda row: row["position"]))
    for row in rows:
        batches.setdefault((row["date"], row["batch"]), []).append(row)
    damaged = []
    for (day, batch), row in drawn(batches, len(after), chance):
        how = chance.choice(("removed", "doubled", "altered"))
        damage_lake(lake, day, batch, row["position"], how, chance)
        damaged.append((day, batch))
        done[f"{how} after", row["kind"]] += 1

    found = audit(spark, lake, store=known, limit=100_000)
    tenants = {violation.tenant for violation in found.samples}
    assert tenants >= set(before), (seed, set(before) - tenants)
    assert not tenants & set(untouched), (seed, found.text())
    reported = {violation.explanation.partition(" ")[0] for violation in found.samples if violation.rule == "LAKE-1"}
    assert reported == {f"date={day}/batch={batch}" for day, batch in damaged}, (seed, found.text())
    reported = [f"{len(before)} + {len(damaged)} damaged: all found; {len(untouched)} untouched: none found"]
    reported += [f"  {how:15} {kind:12} {count}" for (how, kind), count in sorted(done.items())]
    if FULL:
        assert {kind for _, kind in done} == set(KINDS), seed
    sys.stderr.write("\n".join(["", f"seed {seed}", *reported, ""]))
    found.violations.unpersist()
    known.jobs.unpersist()
