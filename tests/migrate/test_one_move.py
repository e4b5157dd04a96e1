"""Moves that meet other moves, other hands, dead stores and their own past: no job is lost, and none runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import shutil

import pytest
from msgspec.structs import replace

from holdfast.core.errors import InvalidOption, StoreBusy, StoreMismatch, StoreUnavailable
from holdfast.core.job import AttemptError, Cancel, ClaimRequest, Finish, JobKey, Purge
from holdfast.core.names import FLOWS, MOVES, SCHEDULES
from holdfast.migrate import MovePlan, forget, move, move_log, preview, steps
from holdfast.opening import open_store
from holdfast.store import TenantSettings
from holdfast.stores.file.store import FileStore
from holdfast.testing.servers import ValkeyServer
from tests.eventually import eventually
from tests.migrate.filling import HOUR, TENANT, both, names, new, run_all, waiting
from tests.migrate.test_move import between, paused

IDS = [f"j{n}" for n in range(5)]
OURS = {"mail", SCHEDULES, FLOWS}


class Stop(Exception):
    """Ends a mover."""


@pytest.fixture
def third_url(fast, prefix):
    return f"file:{fast / prefix}-third?test_clock=1"


@pytest.fixture
def plan(file_url, other_url):
    return MovePlan(file_url, other_url, TENANT, wait_s=0.2)


@pytest.fixture
async def stores(file_url, other_url):
    """A store with five jobs in one queue, and an empty one."""
    async with both(file_url, other_url) as (here, there):
        await here.enqueue([new(id) for id in IDS])
        yield here, there


def key(id):
    return JobKey(TENANT, "mail", id)


async def stop(plan, here, there, step="copy"):
    """A move that ends after a step."""

    async def act():
        raise Stop

    with pytest.raises(Stop) as reported:
        await move(plan, between(here, there, step, act))
    return reported.value.__notes__


# One at a time ------------------------------------------------------------------------------------------------------


async def test_two_moves_that_cross_lose_nothing(stores, plan):
    here, there = stores
    await there.enqueue([new(f"k{n}") for n in range(5)])
    done = await asyncio.gather(move(plan), move(MovePlan(plan.target, plan.source, TENANT)))
    # One after the other: what the first has brought goes back with the second.
    assert sum(one.jobs for one in done) == 15
    found = [job.id for store in (here, there) for job in await waiting(store, "mail")]
    assert sorted(found) == sorted([*IDS, *(f"k{n}" for n in range(5))])


@pytest.mark.parametrize("step", ["copy", "take"])
async def test_during_a_move_no_other_begins_to_another_store_or_back(stores, plan, third_url, monkeypatch, step):
    here, there = stores
    monkeypatch.setattr(move_log, "SLACK_S", 0.0)
    refused = []

    async def others():
        for other in (
            MovePlan(plan.source, third_url, TENANT, lease_ms=1),
            MovePlan(plan.target, plan.source, TENANT, lease_ms=1),
        ):
            with pytest.raises(StoreBusy, match="another move of tenant 'acme' is under way in"):
                await move(other)
            refused.append(other)

    assert (await move(plan, between(here, there, step, others))).jobs == 5
    assert len(refused) == 2
    third = await open_store(third_url)
    assert (await run_all(here, "mail"), await run_all(there, "mail"), await run_all(third, "mail")) == ([], IDS, [])
    await third.close()


async def test_while_a_move_is_open_no_other_begins(stores, plan, third_url):
    here, there = stores
    await stop(plan, here, there)
    others = [
        MovePlan(plan.target, plan.source, TENANT),
        MovePlan(plan.source, third_url, TENANT),
        MovePlan(third_url, plan.target, TENANT),
        MovePlan(plan.target, third_url, TENANT),
        MovePlan(third_url, plan.source, TENANT),
    ]
    third = await open_store(third_url)
    await third.enqueue([new("own")])
    for other in others:
        with pytest.raises(
            StoreBusy, match=rf"a move from \S+ to \S+{plan.target[-20:].partition('?')[0]}.* not ended"
        ):
            await move(other)
        assert await paused(here) == await paused(there) == OURS
    assert await paused(third) == set()
    done = await move(plan)
    assert (done.resumed, done.jobs) == (True, 5)
    assert await run_all(here, "mail") == []
    assert await run_all(there, "mail") == IDS
    assert (await move(MovePlan(third_url, plan.target, TENANT))).jobs == 1
    await third.close()


async def test_a_quota_without_room_for_the_move_log_is_named(stores, plan):
    here, _ = stores
    await here.set_tenant(TENANT, TenantSettings(None, None, 5))
    with pytest.raises(StoreBusy, match="SRC has no room for the log of a move: 5 jobs wait and the quota is 5; raise"):
        await move(plan)
    assert await paused(here) == set()


async def test_another_spelling_of_the_same_store_continues_its_move(stores, plan):
    here, there = stores
    await stop(plan, here, there)
    assert (await move(replace(plan, source=f"{plan.source}&keep_events=5"))).jobs == 5
    assert await run_all(there, "mail") == IDS


# By other hands -----------------------------------------------------------------------------------------------------


async def test_a_canceled_copy_does_not_count_as_a_copy(stores, plan):
    """[ENQ-8]"""
    here, there = stores
    await stop(plan, here, there)
    await there.cancel([Cancel(key("j1"))])
    with pytest.raises(StoreMismatch, match="mail/j1: it was canceled there"):
        await move(plan)
    assert (await names(here, "mail"))["mail"] == IDS
    await there.purge([Purge(key("j1"))])
    await move(plan)
    assert sorted(await run_all(there, "mail")) == IDS


@pytest.mark.parametrize("step", ["copy", "take"])
async def test_a_job_canceled_in_the_source_of_a_stopped_move_does_not_run(stores, plan, monkeypatch, step):
    """[CANCEL-1]"""
    here, there = stores
    monkeypatch.setattr(steps, "PAGE", 2)

    async def walker(step_input, queues, tell):
        def reported(_):
            if step_input.step == step:
                raise Stop  # After its first page.

        return [
            await steps.run_step(step_input, here, there, queue, reported if step_input.step == "take" else tell)
            for queue in queues
        ]

    with pytest.raises(Stop):
        await (move(plan, walker) if step == "take" else stop_again(plan, here, there))
    for store in stores:
        await store.shift_clock(5000)
    assert await here.cancel([Cancel(key("j4"))]) == ["canceled"]
    done = await move(plan)
    assert done.left == 1
    assert await run_all(there, "mail") == IDS[:4]


async def stop_again(plan, here, there):
    await stop(plan, here, there)
    raise Stop


async def test_a_job_canceled_and_forgotten_at_once_does_not_run(file_url, other_url):
    """[CANCEL-1]"""
    source = f"{file_url}&keep_canceled_s=0"
    async with both(source, other_url) as (here, there):
        await here.enqueue([new(id) for id in IDS])

        async def act():
            await here.cancel([Cancel(key("j0"))])
            await here.shift_clock(10)
            await here.prune(10)

        done = await move(MovePlan(source, other_url, TENANT), between(here, there, "copy", act))
        assert (done.jobs, done.left) == (4, 1)
        assert await run_all(there, "mail") == IDS[1:]


async def test_jobs_of_earlier_moves_stay(stores, plan):
    here, there = stores
    await move(plan)
    await here.shift_clock(5000)
    await here.enqueue([new("x"), new("y")])

    async def cancel():
        await here.cancel([Cancel(key("y"))])

    await move(plan, between(here, there, "copy", cancel))
    await here.enqueue([new("z")])
    await stop(plan, here, there)
    await move(plan)
    assert await run_all(there, "mail") == [*IDS, "x", "z"]


async def test_a_job_that_ran_while_the_move_was_stopped_is_copied_again(stores, plan):
    """[RETRY-1]"""
    here, there = stores
    await stop(plan, here, there)
    await here.pause(TENANT, "mail", paused=False)
    (job,) = (await here.claim(ClaimRequest(TENANT, ("mail",), 1, 30_000, "w"))).jobs
    await here.finish([Finish(job.key, job.token, "retry", error=AttemptError("E", ""), delay_ms=0)])
    assert (await move(plan)).jobs == 5
    (copy,) = await there.get([job.key])
    assert copy.envelope.max_attempts == job.envelope.max_attempts - 1


async def test_a_job_with_the_same_id_that_is_due_later_does_not_count_as_a_copy(stores, plan):
    _, there = stores
    await there.enqueue([new("j0", request_id="own", run_at=await there.now() + HOUR)])
    with pytest.raises(StoreMismatch, match="mail/j0: another job has this id there, and is due later"):
        await move(plan)


async def test_a_mover_that_was_suspended_too_long_writes_nothing(stores, plan, monkeypatch):
    here, there = stores
    await here.enqueue([new("short", result_ttl_ms=0)])
    real, ran = steps._copy, []

    async def sleepy(*args):
        if not ran:
            ran.append("")
            for store in stores:
                await store.shift_clock(plan.lease_ms + 1)
            await move(plan)
            ran.extend(await run_all(there, "mail"))
            await there.shift_clock(10)
            await there.prune(100)
        await real(*args)

    monkeypatch.setattr(steps, "_copy", sleepy)
    with pytest.raises(StoreBusy, match="this mover has lost its lease"):
        await move(plan)
    assert ran == ["", *IDS, "short"]
    assert await run_all(there, "mail") == []
    assert await paused(here) == await paused(there) == set()


# What is left behind ------------------------------------------------------------------------------------------------


async def test_after_the_target_dies_the_source_continues_and_the_same_command_ends_the_move(file_url):
    """The clocks are frozen: a mover that is slow to run keeps its leases; those of a dead one end by a shift."""
    with ValkeyServer(appendonly=True, appendfsync="always") as server:
        frozen = {"prefix": "x", "test_clock": "frozen"}
        plan = MovePlan(file_url.replace("clock=1", "clock=frozen"), server.url(**frozen), TENANT, lease_ms=900)
        async with both(plan.source, plan.target) as (here, there):
            await here.enqueue([new(id) for id in IDS])
            (job,) = (await here.claim(ClaimRequest(TENANT, ("mail",), 1, 600_000, "w"))).jobs
            moving = asyncio.create_task(move(plan))
            await eventually(lambda: paused(there))
            server.kill()
            with pytest.raises(StoreUnavailable) as reported:
                await moving
            assert "Nothing was moved. In DST the queues" in reported.value.__notes__[0]
            assert await paused(here) == set()
            await here.finish([Finish(job.key, job.token, "complete")])
            server.restart()
            await there.shift_clock(plan.lease_ms)

            async def die():
                server.kill()

            with pytest.raises(StoreUnavailable) as reported:
                await move(plan, between(here, there, "take", die))
            assert "What has moved stays in DST. In DST the queues" in reported.value.__notes__[0]
            assert await paused(here) == set()
            server.restart()
            await there.shift_clock(plan.lease_ms)
            done = await move(plan)
            assert (done.resumed, done.jobs) == (True, 0)
            assert await paused(here) == await paused(there) == set()
            assert sorted([job.id, *await run_all(there, "mail")]) == IDS


async def test_a_target_that_lost_its_data_is_filled_again_and_no_queue_stays_paused(stores, plan, other_url):
    here, there = stores
    await stop(plan, here, there)
    await there.close()
    shutil.rmtree(other_url.removeprefix("file:").partition("?")[0])
    assert (await move(plan)).jobs == 5
    async with both(plan.source, plan.target) as (_, again):
        assert await paused(here) == await paused(again) == set()
        assert await run_all(again, "mail") == IDS


async def test_a_target_that_lost_jobs_removed_from_the_source_stops_the_move(stores, plan, monkeypatch, tmp_path):
    here, there = stores
    monkeypatch.setattr(steps, "PAGE", 2)

    def stopped(point):
        if point == "move.take":
            raise Stop

    monkeypatch.setattr(steps, "hit", stopped)
    with pytest.raises(Stop):
        await move(plan)
    monkeypatch.undo()
    left = [job.id for job in await waiting(here, "mail")]
    assert len(left) == 3
    empty = f"file:{tmp_path / 'empty'}?test_clock=1"
    lost = MovePlan(plan.source, empty, TENANT)
    # As if it stood under the address of the one that is gone.
    out = move_log.MoveLog(here, TENANT, "SRC")
    info = (await out.read()).info
    monkeypatch.setattr("holdfast.migrate.mover.shown_url", lambda url: info.target if url == empty else info.source)
    with pytest.raises(StoreMismatch, match=r"has removed jobs from SRC: it is another store, or it has lost its data"):
        await move(lost)
    assert [job.id for job in await waiting(here, "mail")] == left
    monkeypatch.undo()
    assert (await move(plan)).jobs == 3
    assert await run_all(there, "mail") == IDS


async def test_the_next_mover_ends_a_move_interrupted_in_its_cleanup(stores, plan, monkeypatch):
    here, there = stores

    def stopped(point):
        if point == "move.target_forgot":
            raise Stop

    monkeypatch.setattr("holdfast.migrate.mover.hit", stopped)
    monkeypatch.setattr("holdfast.migrate.mover._Move.abandon", _nothing)
    with pytest.raises(Stop):
        await move(plan)
    assert (await move_log.MoveLog(here, TENANT, "SRC").read()).over
    monkeypatch.undo()
    assert (await move(plan)).jobs == 0
    assert (await move_log.MoveLog(here, TENANT, "SRC").read()).info is None
    assert await run_all(there, "mail") == IDS


async def _nothing(*_):
    """What a mover that was killed says and does."""


@pytest.mark.parametrize("name", ["SRC", "DST"])
async def test_partly_written_entries_of_the_move_log_are_removed(stores, plan, monkeypatch, name):
    here, there = stores
    real = move_log.MoveLog.write

    async def interrupted(self, *args):
        await real(self, *args)
        if self.name == name:
            raise asyncio.CancelledError

    monkeypatch.setattr(move_log.MoveLog, "write", interrupted)
    with pytest.raises(asyncio.CancelledError):
        await move(plan)
    assert await names(here, MOVES) == await names(there, MOVES) == {MOVES: []}
    assert await paused(here) == await paused(there) == set()


async def test_a_quota_of_the_target_is_checked_before_any_job_is_copied(stores, plan):
    here, there = stores
    await there.set_tenant(TENANT, TenantSettings("mail", None, 4))
    with pytest.raises(
        StoreBusy, match=r"0 jobs wait in queue 'mail', 5 or more would come.*raise it in DST"
    ) as reported:
        await move(plan)
    assert reported.value.__notes__ == ["Nothing was moved, and the queues are as they were."]
    assert await names(there, "mail") == {"mail": []}
    assert await paused(here) == await paused(there) == set()


async def test_a_job_that_runs_after_a_whole_pass_leaves_no_queue_paused(stores, plan):
    here, there = stores

    async def act():
        await here.enqueue([new("n", "fresh")])
        await here.claim(ClaimRequest(TENANT, ("fresh",), 1, 600_000, "w"))

    with pytest.raises(StoreBusy, match="1 in fresh") as reported:
        await move(plan, between(here, there, "take", act))
    assert reported.value.__notes__ == ["What has moved stays in DST, and the queues are as they were."]
    assert await paused(here) == await paused(there) == set()
    assert await run_all(there, "mail") == IDS


async def test_jobs_keep_their_remaining_time_between_different_clocks(stores, plan):
    here, there = stores
    await here.shift_clock(HOUR)
    await here.enqueue([new("ready"), new("later", run_at=await here.now() + HOUR)])
    await move(plan)
    assert await run_all(there, "mail") == [*IDS, "ready"]
    (later,) = await waiting(there, "mail")
    assert abs(later.visible_at - await there.now() - HOUR) < HOUR / 2


async def test_a_move_without_its_other_store_can_be_forgotten_and_another_can_begin(stores, plan, third_url):
    here, there = stores
    await here.pause(TENANT, "video", paused=True)
    await stop(plan, here, there)
    with pytest.raises(InvalidOption, match="both stores know this move"):
        await forget(plan)
    with pytest.raises(InvalidOption, match="knows this move"):
        await forget(replace(plan, target=third_url))
    gone = plan.target.removeprefix("file:").partition("?")[0]
    await there.close()
    shutil.move(gone, f"{gone}-away")
    (done,) = await forget(plan)
    assert (done.store, "mail" in done.queues) == ("SRC", True)
    assert await paused(here) == {"video"}
    assert (await move(MovePlan(plan.source, third_url, TENANT))).jobs == 5
    # The other one comes back: it is as it was left, and can be forgotten, too.
    shutil.move(f"{gone}-away", gone)
    async with both(third_url, plan.target) as (_, again):
        assert "mail" in await paused(again)
        with pytest.raises(StoreBusy, match="DST has copies of a move that SRC no longer knows"):
            await move(plan)
        (done,) = await forget(plan)
        assert (done.store, "mail" in await paused(again)) == ("DST", False)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(f"{gone}-away")


# Before a move -------------------------------------------------------------------------------------------------


async def test_a_preview_shows_a_stopped_move_and_changes_nothing(stores, plan):
    here, there = stores
    assert (await preview(plan)).info is None
    await stop(plan, here, there)
    before = [await store.last_offset() for store in stores]
    found = await preview(plan)
    assert (found.info.source, found.info.target, found.under_way) == (plan.source, plan.target, False)
    assert "mail" in found.paused
    assert [(one.queue, one.counts["ready"]) for one in found.queues if one.queue == "mail"] == [("mail", 5)]
    assert [await store.last_offset() for store in stores] == before
    turn = await move_log.MoverLease.take(here, TENANT, "SRC", "another")
    assert (await preview(plan)).under_way
    await turn.release()
    await move(plan)
    assert (await preview(plan)).info is None


async def test_a_page_has_no_more_than_a_bound_of_bytes(stores, plan, monkeypatch):
    """Even if small jobs are before large ones, and a single one is over it."""
    here, there = stores
    monkeypatch.setattr(steps, "MAX_PAGE_BYTES", 10_000)
    await here.enqueue([new(f"k{n}", payload=b'"' + b"x" * 4_000 + b'"') for n in range(7)])
    await here.enqueue([new("l", payload=b'"' + b"x" * 20_000 + b'"')])
    sizes = []
    enqueue = FileStore.enqueue

    async def measured(store, items, **options):
        if len(items) > 1 or items[0].key.queue == "mail":
            sizes.append((len(items), sum(len(item.envelope.payload) for item in items)))
        return await enqueue(store, items, **options)

    monkeypatch.setattr(FileStore, "enqueue", measured)
    done = await move(plan)
    assert done.jobs == 13
    sent = [(count, size) for count, size in sizes if size > 4_000]
    assert sum(count for count, _ in sent) >= 8
    assert all(size <= 10_000 or count == 1 for count, size in sent), sent
    monkeypatch.undo()
    assert len(await run_all(there, "mail")) == 13


async def test_a_job_that_replaces_one_being_moved_is_not_lost(plan, stores, monkeypatch):
    """Between the read and the cancel in the source, the job is canceled there and its id enqueued again."""
    here, there = stores
    real, done = FileStore.cancel, []

    async def cancel(store, items):
        if not done and any(item.key == key("j1") and item.only_waiting for item in items):
            done.append(True)
            await real(here, [Cancel(key("j1"))])
            await here.enqueue([new("j1", priority=9, request_id="r-anew")])
        return await real(store, items)

    monkeypatch.setattr(FileStore, "cancel", cancel)
    await move(plan)
    monkeypatch.undo()
    assert done
    assert await waiting(here, "mail") == []
    (found,) = await there.get([key("j1")])
    assert found.envelope.priority == 9
    assert sorted(await run_all(there, "mail")) == IDS
    assert await run_all(here, "mail") == []


async def test_a_suspended_mover_does_not_disturb_the_next_one(stores, monkeypatch):
    here, _ = stores

    async def as_it_was_before(_):
        return True

    first = await move_log.MoverLease.take(here, TENANT, "here", "first")
    await here.shift_clock(move_log.LEASE_MS)
    await here.reap(10, 0.0)
    second = await move_log.MoverLease.take(here, TENANT, "here", "second")
    with monkeypatch.context() as patched:
        patched.setattr(move_log.MoverLease, "is_held", as_it_was_before)  # It looked, and fell asleep.
        await first.release()
    assert await second.is_held()
    await second.release()
    assert not await second.is_held()
