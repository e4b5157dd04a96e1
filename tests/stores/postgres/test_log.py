"""EVENT-2 with transactions that take their id early and commit late."""

import asyncio

import asyncpg
import pytest

from holdfast.core.job import Cancel, IdempotencyKey, JobKey, Purge, SetResultTtl
from holdfast.stores.postgres import upkeep
from holdfast.stores.postgres.connection import AsyncpgSession
from tests.eventually import eventually
from tests.log import all_events
from tests.stores.postgres.support import claim, complete, fill, new, opened


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


async def test_the_events_of_a_job_are_in_order_if_the_later_transaction_began_first(postgres, database):
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
async def test_a_new_life_is_read_after_the_old_one_even_if_its_transaction_began_first(postgres, database, by, key):
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


@pytest.mark.parametrize("by", ["purge", "prune"])
async def test_ids_are_freed_last(postgres, database, by, monkeypatch):
    """It makes others wait until the commit."""
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        (job,) = await claim(store, 1)
        await complete(store, [job])
        await store.set_result_ttl([SetResultTtl(job.key, 0 if by == "prune" else 60_000)])
        sent = []
        for name in ("value", "rows"):
            monkeypatch.setattr(AsyncpgSession, name, noted(sent, getattr(AsyncpgSession, name)))
        if by == "purge":
            await store.purge([Purge(job.key)])
        else:
            await store._client.change(lambda session: upkeep.forget(session, store._cache, 10, blobs=True))
        assert sent[-1] == "note_freed"


def noted(names, send):
    """Note which statements are sent."""

    async def noting(session, name, *args):
        names.append(name)
        return await send(session, name, *args)

    return noting


async def test_an_advisory_lock_of_the_caller_does_not_block_the_store(postgres, database):
    """Many take advisory locks by the number of a table or a sequence."""
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        (job,) = await claim(store, 1)
        await complete(store, [job])
        connection = await asyncpg.connect(postgres.url(database))
        async with connection.transaction():
            every = (
                "SELECT pg_advisory_xact_lock(oid::bigint) FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace"
            )
            await connection.execute(every)
            await store.purge([Purge(job.key)])
        await connection.close()
        assert await store.get([job.key]) == [None]


@pytest.mark.parametrize("what", ["enqueue", "complete"])
async def test_the_time_of_an_event_is_after_the_wait_for_its_job(postgres, database, url, what):
    """Transactions that waited for another are after it, by the clock too."""
    async with opened(url) as store:
        await fill(store, 1)
        jobs = await claim(store, 1)
        connection = await asyncpg.connect(postgres.url(database))
        transaction = connection.transaction()
        await transaction.start()
        if what == "enqueue":
            await store.enqueue([new("a")], connection=connection)
            acting = asyncio.create_task(store.enqueue([new("a")]))
        else:
            await connection.execute("SELECT FROM holdfast.jobs FOR UPDATE")
            acting = asyncio.create_task(complete(store, jobs))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
        await eventually(lambda: connection.fetchval(waiting), lambda count: count > 0)
        await store.shift_clock(10_000)
        free = await store.now()
        await transaction.rollback()
        await connection.close()
        await acting
        last = (await all_events(store))[-1]
        assert last.kind.startswith(what)
        assert last.at >= free
        (job,) = await store.get([JobKey(last.tenant, last.queue, last.job_id)])
        assert last.at == (job.enqueued_at if what == "enqueue" else job.finished_at)


async def test_readers_during_many_writes_see_each_event_once_and_in_order(postgres, database):
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


async def test_a_page_reads_about_as_many_rows_as_it_shows(postgres, database, monkeypatch):
    """A row of the log can have a thousand events: what a page reads is bounded in events, not in rows."""
    async with opened(postgres.url(database)) as store:
        for start in range(0, 40 * 500, 500):
            await fill(store, 500, start=start)
        rows, read = [], store._client.rows

        async def counted(name, *arguments, **options):
            found = await read(name, *arguments, **options)
            rows.extend(found if name == "events" else ())
            return found

        monkeypatch.setattr(store._client, "rows", counted)
        page = await store.events("acme", None, 1000)
        assert len(page.events) == 1000
        assert len(rows) <= 10
