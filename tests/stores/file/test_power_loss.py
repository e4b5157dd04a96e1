"""Power cuts: what was acknowledged is on the disk, whatever becomes of the rest. [ENQ-1]

A process works on a recorded disk and is killed in the middle of a write; then the disk is put back to what was
flushed, alone or with any part of what was not, and the next process goes on from there.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections import Counter

import pytest

from holdfast.core.errors import StoreError
from holdfast.store import ListQuery
from tests import powerloss
from tests.log import all_events
from tests.stores.file.support import Child, number_of, opened, payload_of, quick_check, wish

LIVES = 15
SEED = int(os.environ.get("HOLDFAST_SEED") or random.randrange(2**32))
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="power cuts are played on Linux alone")


@pytest.fixture(scope="module", autouse=True)
def _sqlite_can_be_watched():
    try:
        powerloss.check()
    except powerloss.PowerLossUnsupported as error:
        pytest.fail(f"no power cut was tested: {error}", pytrace=False)


class Promises:
    """What was acknowledged, over all lives of a disk."""

    def __init__(self):
        self.queued, self.completed, self.token = set(), set(), 0

    def with_(self, notes):
        more = Promises()
        more.queued, more.completed, more.token = set(self.queued), set(self.completed), self.token
        for note in notes:
            more.queued.update(note.get("queued", ()))
            more.completed.update(note.get("completed", ()))
            more.token = max(more.token, 0, *note.get("claimed", {}).values())
        return more

    async def broken_by(self, directory):
        """How the store in `directory` fails to keep them. It is used and changed."""
        if not self.queued and not directory.exists():
            return []
        try:
            async with opened(directory) as store:
                jobs = await _all_jobs(store)
                events = await all_events(store)
                fresh = (await store.claim(wish(1))).jobs
        except StoreError as error:
            return [str(error)]
        findings = [f"{id_} is lost" for id_ in self.queued - set(jobs)]
        findings += [f"{id_} is not done" for id_ in self.completed & set(jobs) if jobs[id_].state != "completed"]
        findings += [f"{id_} is garbled" for id_, job in jobs.items() if job.envelope.payload != payload_of(id_)]
        batches = Counter((id_.rpartition(".")[0], int(id_.rpartition("/")[2])) for id_ in jobs)
        findings += [f"{there} of {batch}" for batch, there in batches.items() if there != batch[1]]
        if [number_of(event) for event in events] != list(range(1, len(events) + 1)):
            findings.append("the log has a hole")
        if sorted(event.job_id for event in events if event.kind == "enqueued") != sorted(jobs):
            findings.append("the log does not tell of the jobs that are there")
        findings += [f"token {job.token} was given before" for job in fresh if job.token <= self.token]
        check = quick_check(directory)
        return findings if check == "ok" else [*findings, check]


async def _all_jobs(store):
    jobs, cursor, first = {}, None, True
    while first or cursor is not None:
        page = await store.list(ListQuery("acme", "mail", cursor=cursor, limit=1000))
        jobs.update({job.id: job for job in page.jobs})
        cursor, first = page.cursor, False
    return jobs


class Machine:
    """A computer whose power fails again and again."""

    def __init__(self, path, seed):
        self._path = path
        self.rng = random.Random(seed)
        self.root = path / "disk"
        self.root.mkdir()
        self.promises = Promises()
        self.lives = 0

    def live(self, least=1, most=400, *, synchronous=None, checkpoints=(5, 30, 4000)):
        """Boot, work, and be cut off in the middle of something; the record of it."""
        log = self._path / f"log-{self.lives}"
        with Child(
            "be_cut_off", root=self.root, log=log, name=f"{self.lives}", seed=self.rng.getrandbits(32),
            die_at=self.rng.randint(least, most), synchronous=synchronous, checkpoints=checkpoints,
        ) as child:  # fmt: skip
            child.dies()
        self.lives += 1
        return powerloss.Disk(log)

    async def broken_by_cut(self, disk, moment, rng=None):
        """What is broken after a cut at `moment`."""
        into = self._path / "cut"
        shutil.rmtree(into, ignore_errors=True)
        notes = disk.cut(moment, into, rng)
        return await self.promises.with_(notes).broken_by(into / "deep" / "store")

    def go_on_from(self, disk, moment, rng):
        """Have the disk be what a cut at `moment` left."""
        shutil.rmtree(self.root)
        self.promises = self.promises.with_(disk.cut(moment, self.root, rng))


@pytest.mark.parametrize("chain", range(3))
async def test_no_acknowledged_job_is_lost_over_many_power_cuts(tmp_path, chain):
    seed = SEED + chain
    machine = Machine(tmp_path, seed)
    for life in range(LIVES // 3):
        # The first is cut off while it makes the store, the last when it has done a good deal.
        disk = machine.live(*{0: (1, 40), LIVES // 3 - 1: (600, 900)}.get(life, (1, 400)))
        end = len(disk.records)
        moments = disk.moments()
        for moment in (end, *machine.rng.sample(moments, min(2, len(moments)))):
            for torn in (None, random.Random(machine.rng.getrandbits(32))):
                broken = await machine.broken_by_cut(disk, moment, torn)
                assert not broken, f"life {life}, cut at {moment} of {end}; HOLDFAST_SEED={seed - chain}: {broken[:5]}"
        machine.go_on_from(disk, end, random.Random(machine.rng.getrandbits(32)))
    assert len(machine.promises.queued) > 20
    assert len(machine.promises.completed) > 5


async def test_a_store_survives_a_power_cut_at_any_moment_of_its_creation(tmp_path):
    machine = Machine(tmp_path, SEED)
    disk = machine.live(300, 300)
    first = next(n for n, record in enumerate(disk.records) if record.kind == "note")
    for moment in disk.moments()[: first + 2 : 4]:
        for torn in (None, random.Random(SEED + moment)):
            broken = await machine.broken_by_cut(disk, moment, torn)
            assert not broken, f"cut at {moment} of {first}; HOLDFAST_SEED={SEED}: {broken[:5]}"


@pytest.mark.parametrize("synchronous", [None, "NORMAL", "OFF"])
async def test_only_jobs_that_were_acknowledged_without_a_flush_are_lost(tmp_path, synchronous):
    # The control: a test that cannot fail proves nothing. None is what the store asks for itself.
    machine = Machine(tmp_path, SEED)
    disk = machine.live(300, 300, synchronous=synchronous, checkpoints=[4000])
    noted = [n + 1 for n, record in enumerate(disk.records) if record.kind == "note"]
    broken = await machine.broken_by_cut(disk, noted[-1])
    assert any("lost" in finding for finding in broken) == (synchronous is not None)
