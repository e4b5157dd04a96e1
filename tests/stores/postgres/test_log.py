"""EVENT-2 with transactions that take their id early and commit late."""

import asyncio

import asyncpg
import pytest

from holdfast.core.job import Cancel, Finish, IdempotencyKey, Purge, Replayed, SetResultTtl
from holdfast.stores.postgres.log import parse_offset
from tests.stores.postgres.support import all_events, claim, complete, fill, new, opened


async def test_a_reader_waits_for_transactions_that_began_before(postgres, database):
    """What commits late is not passed over, and what was committed meanwhile is not shown before it."""
    async with opened(postgres.url(database)) as store:
        connection = await asyncpg.connect(postgres.url(database))
        async with connection.transaction():
            await connection.execute("SELECT pg_current_xact_id()")  # It takes its id early ...
            await fill(store, 3)
            page = await store.events(None, None, 100)
            assert page.events == []
            await store.enqueue([new("late")], connection=connection)
        # ... and its events come by their own place, none is lost, none is seen twice.
        rest = await store.events(None, page.next, 100)
        assert sorted(event.job_id for event in rest.events) == ["job-0000000", "job-0000001", "job-0000002", "late"]
        assert (await store.events(None, rest.next, 100)).events == []
        await connection.close()


async def test_a_job_s_events_are_in_order_although_the_later_transaction_began_first(postgres, database):
    """A completion in a transaction that is older than the claim of its job is read after the claim."""
    async with opened(postgres.url(database)) as store:
        connection = await asyncpg.connect(postgres.url(database))
        async with connection.transaction():
            await connection.execute("SELECT pg_current_xact_id()")
            await fill(store, 1)
            jobs = await claim(store, 1)
            await complete(store, jobs, connection=connection)
        assert [event.kind for event in await all_events(store)] == ["enqueued", "claimed", "completed"]
        await connection.close()


@pytest.mark.parametrize("by", ["purge", "prune"])
@pytest.mark.parametrize("key", [None, IdempotencyKey("k")])
async def test_a_new_life_is_read_after_the_old_one_although_its_transaction_began_first(postgres, database, by, key):
    """Of an id that was free again: nothing is left of it but what is in the log."""
    async with opened(postgres.url(database)) as store:
        connection = await asyncpg.connect(postgres.url(database))
        async with connection.transaction():
            await connection.execute("SELECT pg_current_xact_id()")
            await fill(store, 1)
            (job,) = await claim(store, 1)
            await complete(store, [job])
            if by == "purge":
                await store.purge([Purge(job.key)])
            else:
                await store.set_result_ttl([SetResultTtl(job.key, 0)])
                assert (await store.prune(10)).jobs == 1
            await store.enqueue([new(job.id, idempotency=key), new("other")], connection=connection)
        purged = ["purged"] if by == "purge" else []
        kinds = [event.kind for event in await all_events(store) if event.job_id == job.id]
        assert kinds == ["enqueued", "claimed", "completed", *purged, "enqueued"]
        await connection.close()


async def test_a_restore_into_another_cluster_hides_nothing(postgres, database):
    """There transactions have smaller numbers than those that the data was logged under."""
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("waits"), new("runs"), new("fails")])
        running, failing = await claim(store, 2)
        await store.finish([Finish(failing.key, failing.token, "fail")])
        before = await store.last_offset()
    far = 10**15
    postgres.sql(
        f"UPDATE holdfast.events SET xid = {far}; UPDATE holdfast.jobs SET logged = {far};"
        f"UPDATE holdfast.done SET logged = {far}; SELECT setval('holdfast.freed', {far})",
        database,
    )
    after = str(parse_offset(before)._replace(xid=far))
    async with opened(postgres.url(database)) as store:
        assert await store.replay([failing.key]) == [Replayed()]
        await complete(store, [running])
        await complete(store, await claim(store, 2))
        await store.enqueue([new("later")])
        found = [(event.job_id, event.kind) for event in (await store.events(None, after, 100)).events]
    assert sorted(found) == sorted(
        [(failing.id, "replayed"), (running.id, "completed"), ("later", "enqueued")]
        + [(id_, kind) for id_ in ("waits", "runs", "fails") if id_ != running.id for kind in ("claimed", "completed")]
    )


async def test_readers_beside_many_writers_see_each_event_once_and_in_order(postgres, database):
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        seen, done = [], asyncio.Event()

        async def live(number):
            handle = (store, other)[number % 2]
            ids = [f"{number}-{n}" for n in range(20)]
            await handle.enqueue([new(id_, queue=f"q{number % 3}") for id_ in ids])
            jobs = await claim(handle, 20, queue=f"q{number % 3}")
            await handle.cancel([Cancel(job.key) for job in jobs[::2]])
            await complete(handle, jobs[1::2])

        async def read():
            after = None
            while True:
                last = done.is_set()
                page = await other.events(None, after, 7)
                seen.extend(page.events)
                after = page.next
                if last and not page.more:
                    return

        reading = asyncio.create_task(read())
        await asyncio.gather(*(live(number) for number in range(12)))
        done.set()
        await reading
        assert len({event.offset for event in seen}) == len(seen) == 12 * 20 * 3
        stories = {}
        for event in seen:
            stories.setdefault(event.job_id, []).append(event.kind)
        assert {tuple(story) for story in stories.values()} == {
            ("enqueued", "claimed", "canceled"),
            ("enqueued", "claimed", "completed"),
        }
