"""EVENT-2 while the log is trimmed: no silent gap, no fewer events than asked for, and no more room than is needed."""

import asyncio
import json
import random

import asyncpg
import pytest

from holdfast import EventsTrimmed
from holdfast.store import Reader
from holdfast.stores.postgres import log_reads, upkeep
from holdfast.stores.postgres.log import parse_offset
from tests.log import all_events
from tests.stores.postgres.support import fill, new, opened


@pytest.fixture
def small(monkeypatch):
    """Every prune continues with the next partition, and reads and trims in small steps."""
    monkeypatch.setattr(upkeep, "PARTITION_BYTES", 1)
    monkeypatch.setattr(upkeep, "COUNT_ROWS", 3)
    monkeypatch.setattr(log_reads, "MAX_ROWS", 2)


async def one_by_one(store, count, start=0):
    """This many calls of one event each."""
    for n in range(start, start + count):
        await store.enqueue([new(f"job-{n:07}")])


def ids(page):
    return [event.job_id for event in page.events]


def rows_in(postgres, database):
    ((count,),) = postgres.sql("SELECT count(*) FROM holdfast.events", database)
    return int(count)


def at_the_nth(store, name, nth, act):
    """Have `act` awaited when the store is about to send the nth statement of this name."""
    seen = 0
    rows = store._client.rows

    async def watched(sent, *args, **options):
        nonlocal seen
        if sent == name:
            seen += 1
            if seen == nth:
                await act()
        return await rows(sent, *args, **options)

    store._client.rows = watched


async def trimmed_to_the_end(store):
    """Trim all there is: what it was in is empty afterwards."""
    await store.prune(100)
    await store.prune(100)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_reader_whose_position_is_trimmed_during_its_read_gets_a_gap(postgres, database, nth):
    """Also between two reads of a page: what was read before it is no whole page."""
    async with opened(postgres.url(database)) as store, opened(postgres.url(database, keep_events=0)) as pruner:
        await one_by_one(store, 6)
        after = (await store.events(None, None, 1)).next
        at_the_nth(store, "events", nth, lambda: trimmed_to_the_end(pruner))
        with pytest.raises(EventsTrimmed) as gap:
            await store.events(None, after, 100)
        assert rows_in(postgres, database) == 0
        assert (gap.value.from_, gap.value.to) == (after, await store.last_offset())


@pytest.mark.usefixtures("small")
async def test_a_trim_during_the_read_of_a_range_is_reported(postgres, database):
    """The same for a log that is read in pieces."""
    async with opened(postgres.url(database)) as store, opened(postgres.url(database, keep_events=0)) as pruner:
        await one_by_one(store, 6)
        (piece,) = await store.split(*(await store.bounds(None)), 100)
        at_the_nth(store, "events", 1, lambda: trimmed_to_the_end(pruner))
        with pytest.raises(EventsTrimmed) as gap:
            await store.read(piece, 100)
        assert (gap.value.from_, gap.value.to) == (piece.after, piece.end)


@pytest.mark.usefixtures("small")
async def test_a_read_from_the_oldest_event_restarts_when_that_is_trimmed(postgres, database):
    async with opened(postgres.url(database)) as store, opened(postgres.url(database, keep_events=2)) as pruner:
        await one_by_one(store, 6)
        at_the_nth(store, "events", 1, lambda: trimmed_to_the_end(pruner))
        page = await store.events(None, None, 100)
        assert (ids(page), page.more) == (["job-0000004", "job-0000005"], False)


@pytest.mark.usefixtures("small")
async def test_the_log_uses_room_for_the_kept_events_and_one_partition(postgres, database):
    """Also when more is kept than there are partitions to put it in, one for each few calls."""
    keep, steps = 30, 120
    async with opened(postgres.url(database, keep_events=keep)) as store:
        connection = await asyncpg.connect(postgres.url(database))
        most = 0
        for n in range(steps):
            await one_by_one(store, 1, start=n)
            # Numbers go fast, as with many calls and few events.
            await connection.execute("SELECT setval('holdfast.events_n', $1)", (n + 1) << 14)
            await store.prune(100)
            most = max(most, await connection.fetchval("SELECT count(*) FROM holdfast.events"))
        await connection.close()
        assert most <= 2 * keep
        assert [event.job_id for event in await all_events(store)] == [
            f"job-{n:07}" for n in range(steps - keep, steps)
        ]


@pytest.mark.usefixtures("small")
async def test_a_late_reader_keeps_only_its_own_events(postgres, database):
    """The log grows while the reader waits, in several partitions; when it advances, all of it is trimmed."""
    async with opened(postgres.url(database, keep_events=0)) as store:
        await one_by_one(store, 1)
        await store.set_reader(Reader(None, "slow", (await store.events(None, None, 1)).next))
        for n in range(1, 60):
            await one_by_one(store, 1, start=n)
            await store.prune(100)
        events = await all_events(store)
        assert [event.job_id for event in events] == [f"job-{n:07}" for n in range(1, 60)]
        await store.set_reader(Reader(None, "slow", events[-1].offset))
        await trimmed_to_the_end(store)
        await store.prune(100)
        assert rows_in(postgres, database) == 0


@pytest.mark.usefixtures("small")
async def test_a_partition_that_an_open_transaction_writes_to_stays(postgres, database):
    """It is left for later, soon, and what is written there late is read."""
    async with opened(postgres.url(database, keep_events=0)) as store:
        await one_by_one(store, 3)
        connection = await asyncpg.connect(postgres.url(database))
        async with connection.transaction():
            await store.enqueue([new("late")], connection=connection)
            await trimmed_to_the_end(store)
            await one_by_one(store, 3, start=3)
            await trimmed_to_the_end(store)
            after = await store.last_offset()
        await connection.close()
        page = await store.events(None, after, 100)
        assert sorted(ids(page)) == ["job-0000003", "job-0000004", "job-0000005", "late"]
        await trimmed_to_the_end(store)
        await store.prune(100)
        assert rows_in(postgres, database) == 0


@pytest.mark.usefixtures("small")
async def test_the_kept_events_are_exact_for_calls_of_every_size(postgres, database):
    """Beside rolled back transactions, readers and other pruners: the longest beginning that may go is gone."""
    rng = random.Random(7)
    keep = 20
    url = postgres.url(database, keep_events=keep)
    async with opened(url) as store, opened(url) as other:
        connection = await asyncpg.connect(url.partition("?")[0])
        written, gone = 0, 0
        for _ in range(25):
            for _ in range(rng.randrange(5)):
                size = rng.choice((1, 2, 7, 19))
                await fill(store, size, start=written)
                written += size
            if rng.random() < 0.3:
                transaction = connection.transaction()
                await transaction.start()
                await store.enqueue([new(f"never-{written}-{n}") for n in range(5)], connection=connection)
                await transaction.rollback()
            if rng.random() < 0.5:
                page = await store.events(None, None, rng.randrange(1, 30))
                await store.set_reader(Reader(None, "some", page.next))
            before = await all_events(store)
            (reader,) = await store.readers(None) or [None]
            pruned = await asyncio.gather(store.prune(10), other.prune(10))
            gone += sum(one.events for one in pruned)
            assert gone + len(await all_events(store)) == written
            assert await all_events(store) == before[len(before) - (written - gone) :]
            # Rows go whole: the next one would have left too few, or had something that is not read yet.
            rest = before[len(before) - (written - gone) :]
            if rest:
                row = [event for event in rest if parse_offset(event.offset)[:3] == parse_offset(rest[0].offset)[:3]]
                unread = reader is not None and parse_offset(row[-1].offset) > parse_offset(reader.offset)
                assert len(rest) - len(row) < keep or unread
        await connection.close()
        assert gone > 3 * keep


async def test_pruning_a_long_log_fetches_no_more_than_a_few_rows(postgres, database, monkeypatch):
    """Where to cut is found at the server."""
    async with opened(postgres.url(database, keep_events=10)) as store:
        await one_by_one(store, 100)
        sizes = []
        rows = store._client.rows

        async def counted(*args, **options):
            found = await rows(*args, **options)
            sizes.append(len(found))
            return found

        monkeypatch.setattr(store._client, "rows", counted)
        assert (await store.prune(100)).events == 90
        assert max(sizes) <= 8


async def test_an_emptied_log_begins_a_new_epoch_in_another_cluster(postgres, database):
    """Restored to where transactions have smaller numbers: what is logged there comes after what was trimmed."""
    async with opened(postgres.url(database)) as store:
        await one_by_one(store, 2)
        last = await store.last_offset()
    far = parse_offset(last)._replace(xid=10**15)
    postgres.sql("TRUNCATE holdfast.events", database)
    postgres.sql(
        f"UPDATE holdfast.trimming SET trimmed_epoch = {far.epoch}, trimmed_xid = {far.xid}, trimmed_n = {far.n},"
        f" trimmed_k = {far.k}; DELETE FROM holdfast.generation",
        database,
    )
    async with opened(postgres.url(database)) as store:
        await one_by_one(store, 1, start=2)
        assert ids(await store.events(None, str(far), 10)) == ["job-0000002"]


async def test_reading_and_trimming_use_the_index_whatever_the_statistics(postgres, database, monkeypatch):
    """None of their statements reads more of the log than was asked for, even without statistics."""
    monkeypatch.setattr(upkeep, "COUNT_ROWS", 1000)
    async with opened(postgres.url(database)) as store:
        await fill(store, 1)
        connection = await asyncpg.connect(postgres.url(database))
        columns = ("{0}", "{1}", "{id}", "{send}", "{0}", "{0}", '{""}', "{5}", "{3}", "{1}")
        event = f"holdfast.xid(), g, 1, {', '.join(map(repr, columns))}, NULL, '{{1}}'"
        many = f"SELECT holdfast.log({event}) FROM generate_series(1, 10000) AS g"
        await connection.execute(many)
        await connection.close()
        connect, seen = store._client.connect, []

        def note(message):
            head, _, plan = message.partition("plan:")
            if head.startswith("duration"):
                seen.extend(scans(json.loads(plan)["Plan"]))

        async def reported():
            connection = await connect()
            await connection.execute(
                "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;"
                "SET auto_explain.log_nested_statements = on;"
                "SET auto_explain.log_format = json; SET client_min_messages = log"
            )
            connection.add_log_listener(lambda _, said: note(said.message))
            return connection

        store._client.connect = reported
        store._client.drop_idle()
        for _ in range(8):  # The server plans anew for some calls, and then once for all.
            await store.events(None, None, 90)
        await store.prune(10)
        assert sum(seen) > 10_000
        assert max(seen) <= 1001


def scans(plan):
    """The number of rows that each read of a partition of the log found."""
    if plan.get("Relation Name", "").startswith("events_"):
        yield plan["Actual Rows"]
    for child in plan.get("Plans", ()):
        yield from scans(child)
