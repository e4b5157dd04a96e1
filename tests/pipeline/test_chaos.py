"""The audit over what happened while workers were killed, on each store that several processes share."""

import os
import random
import signal

import pytest

from holdfast import Queue
from holdfast.pipeline.audit import audit
from holdfast.pipeline.comparing import store_jobs
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from tests.chaos.killing import kill_at_any_moment
from tests.chaos.workers import TENANT, notes, wait_for_file
from tests.eventually import eventually
from tests.log import all_events
from tests.pipeline.conftest import STORES
from tests.pipeline.settings import only_full


@only_full
@pytest.mark.parametrize("kind", STORES)
async def test_an_audit_finds_nothing_wrong_with_workers_that_were_killed(spark, zygote, kind, request, log, tmp_path):
    url = request.getfixturevalue(f"{kind}_url")
    url += f"{'&' if '?' in url else '?'}test_clock=1"
    async with Queue(url, tenant=TENANT) as queue:
        await kill_with_a_lease_in_hand(zygote, queue, url, log, tmp_path / "go on")
        ids = ["held", *await kill_at_any_moment(zygote, queue, url, log, random.Random(11))]
        events = await all_events(queue.store)
    lake = Lake(tmp_path / "lake", create=True)
    ingest(spark, lake, IngestPlan(url))
    found = audit(spark, lake, store=store_jobs(spark, lake, url))
    assert (found.total, found.events, found.accepted, found.waiting) == (0, len(events), len(ids), 0), found.text()
    assert sum(event.kind == "expired" for event in events) > 0


async def kill_with_a_lease_in_hand(zygote, queue, url, log, go_on):
    """A worker dies during a job, which the next one is to do. Those killed at random may have done all there was."""
    await queue.enqueue(wait_for_file.message(log, str(go_on)), id="held")
    pid = await zygote.start(url, log=log)
    await eventually(lambda: notes(log, "started"))
    os.kill(pid, signal.SIGKILL)
    assert await zygote.end(pid) == -signal.SIGKILL
    go_on.touch()
    await queue.store.shift_clock(31_000)
