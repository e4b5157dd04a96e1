"""The process that leads flows is killed by SIGKILL, at each step of that work.

Invariants verified:
- every flow completes in the end, once
- every step ran, after those it waits for, and is one job: it was enqueued once and completed once
- a step whose job was never cut short ran once
"""

import os
import random
import signal
from collections import defaultdict

import pytest

from holdfast import Flow
from holdfast.core.names import FLOWS
from tests.chaos.workers import TENANT, notes, work
from tests.log import all_events

KILLS = 3
# Each step, and how often a worker passes it with one flow.
STEPS = {
    "coordinator.after_claim": 1,
    "flows.after_enqueue": 3,
    "coordinator.before_finish": 1,
    "coordinator.after_finish": 1,
}


@pytest.fixture
def kind():
    return "file"


def diamond(log):
    flow = Flow("diamond", result_ttl=86400)
    a = flow.add(work.message(log), name="a")
    b, c = (flow.add(work.message(log), name=name, after=[a]) for name in "bc")
    flow.add(work.message(log), name="d", after=[b, c])
    return flow


@pytest.mark.parametrize("step", STEPS)
async def test_a_flow_whose_leader_is_killed_continues_and_no_step_becomes_two_jobs(zygote, queue, url, log, step):
    seed = int(os.environ.get("HOLDFAST_SEED", random.randrange(2**32)))
    print(f"HOLDFAST_SEED={seed}")  # noqa: T201 - shown with a failure, to replay it
    chance = random.Random(seed)
    flows = []
    for _ in range(KILLS):
        flows.append(diamond(log))
        await queue.start(flows[-1])
        pid = await zygote.start(url, log=log, failpoint=f"{step}:kill:{chance.randint(1, STEPS[step])}")
        assert await zygote.end(pid) == -signal.SIGKILL
        # The leases of the dead run out, and so do the pauses after that.
        await queue.store.shift_clock(31_000)
        while (await queue.store.reap(100, 0.5)).jobs:
            pass
        await queue.store.shift_clock(60_000)
    # Something is surely left to do: workers end when it is done, and not while they still start.
    flows.append(diamond(log))
    await queue.start(flows[-1])
    pid = await zygote.start(url, log=log, concurrency=10)
    for flow in flows:
        found = await queue.result(flow.id, queue=FLOWS, timeout=60)
        assert {name: part["state"] for name, part in found.items()} == dict.fromkeys("abcd", "completed")
    os.kill(pid, signal.SIGTERM)
    assert await zygote.end(pid) == 0
    histories = defaultdict(list)
    for event in await all_events(queue.store, TENANT):
        histories[event.job_id].append(event.kind)
    assert set(histories) == {flow.id + end for flow in flows for end in ("", "/a", "/b", "/c", "/d")}
    for kinds in histories.values():
        assert (kinds.count("enqueued"), kinds.count("completed")) == (1, 1), kinds
    ran = [id_ for id_, *_ in notes(log, "effect")]
    for flow in flows:
        a, b, c, d = (ran.index(f"{flow.id}/{name}") for name in "abcd")
        assert a < min(b, c) < max(b, c) < d
        for name in "abcd":
            id_ = f"{flow.id}/{name}"
            assert ran.count(id_) == 1 or "expired" in histories[id_]
