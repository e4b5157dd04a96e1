"""EVENT-2, TENANT-5: the log is shared by level, and what tenants keep is counted, beside prunes and reads.

Invariants verified:
- several pruners, one that dies between two steps, and readers in between lose nothing and count nothing twice
- positions are those that they were, also of events of an earlier epoch
- trimming does not read again what it has kept
- the counts are what a count of everything finds
"""

import asyncio
import contextlib
import json
import random

import asyncpg
import pytest

from holdfast import EventsTrimmed
from holdfast.core.budgets import Usage
from holdfast.core.job import AttemptError, Cancel, Finish, IdempotencyKey, Progress, Purge, Report, Result
from holdfast.core.trimming import level
from holdfast.store import Reader
from holdfast.stores.postgres import log_reads, upkeep
from holdfast.stores.postgres.log import parse_offset
from tests.log import all_events
from tests.stores.postgres.support import claim, complete, new, opened
from tests.stores.postgres.test_trimming import at_the_nth

TENANTS = ("acme", "globex", "initech")


@pytest.fixture
def small(monkeypatch):
    """Every prune continues with the next partition, and reads and trims in small steps."""
    monkeypatch.setattr(upkeep, "PARTITION_BYTES", 1)
    monkeypatch.setattr(upkeep, "COUNT_ROWS", 3)
    monkeypatch.setattr(log_reads, "MAX_ROWS", 2)


async def write(store, rng, count, start):
    """This many events, in calls of one tenant or of several."""
    done = 0
    while done < count:
        size = min(count - done, rng.choice((1, 1, 2, 5)))
        flooding = rng.random() < 0.7
        owners = ["globex" if flooding else rng.choice(TENANTS) for _ in range(size)]
        await store.enqueue([new(f"job-{start + done + n:07}", owner) for n, owner in enumerate(owners)])
        done += size


def reported(events):
    return [(event.tenant, event.job_id, event.offset) for event in events]


async def every_page(store, tenant=None, after=None):
    """What a reader gets from here to the end, in small pages, with the gaps."""
    events, gaps = [], []
    while True:
        page = await store.events(tenant, after, 4)
        events, gaps, after = events + page.events, gaps + page.gaps, page.next
        if not page.more:
            return events, gaps


@pytest.mark.usefixtures("small")
async def test_several_pruners_trim_the_log_to_its_level_and_no_further(postgres, database):
    """[EVENT-2] The kept events of each tenant are its last ones, up to the level, whichever process trims."""
    rng, keep = random.Random(5), 24
    url = postgres.url(database, keep_events=keep)
    async with opened(url) as store, opened(url) as other, opened(url) as third:
        written, gone = [], 0
        for n in range(12):
            await write(store, rng, rng.randrange(25), 100 * n)
            page = await store.events(None, written[-1].offset if written else None, 1000)
            written += page.events
            pruned = await asyncio.gather(store.prune(10), other.prune(10), third.prune(10))
            gone += sum(one.events for one in pruned)
            kept = await all_events(store)
            by_tenant = {t: [e for e in written if e.tenant == t] for t in TENANTS}
            most = level([len([e for e in kept if e.tenant == t]) for t in TENANTS], keep)
            assert len(kept) == len(written) - gone <= keep
            for tenant, mine in by_tenant.items():
                left = [e for e in kept if e.tenant == tenant]
                assert reported(left) == reported(mine[len(mine) - len(left) :])
                assert (await store.usage(tenant)).events == len(left)
                assert len(left) == len(mine) or len(left) >= most
            assert sorted(kept, key=lambda e: parse_offset(e.offset)) == kept
        assert gone > keep


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("step", range(1, 8))
async def test_the_next_pruner_finishes_the_work_of_a_dead_one(postgres, database, step):
    """[EVENT-2] Another pruner continues: nothing is counted, kept or trimmed twice."""
    url = postgres.url(database, keep_events=8)
    async with opened(url) as store, opened(url) as dying:
        await write(store, random.Random(step), 40, 0)
        written = await all_events(store)

        async def die():
            raise asyncio.CancelledError

        at_the_nth(dying, "trim_step", step, die)
        with contextlib.suppress(asyncio.CancelledError):
            await dying.prune(10)
        second = (await store.prune(10)).events
        kept = await all_events(store)
        left = {t: [e for e in kept if e.tenant == t] for t in TENANTS}
        counts = {t: sum(e.tenant == t for e in written) for t in TENANTS}
        most = level(counts.values(), 8)
        # What the first one has cut to the level leaves room for the others: less than one event of each tenant.
        assert all(len(left[t]) - min(n, most) in (0, 1, 2) for t, n in counts.items())
        assert len(kept) <= 8
        assert second <= 40 - len(kept)
        assert (await store.prune(10)).events == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["events", "kept_events_of"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_reader_misses_nothing_while_its_events_are_moved(postgres, database, name, nth):
    """[EVENT-2] The partition that it reads is cut, its own events are kept elsewhere, and the rest is truncated."""
    url = postgres.url(database, keep_events=30)
    async with opened(url) as store, opened(url) as pruner:
        start = await store.last_offset()
        for n in range(12):
            await store.enqueue([new(f"mine-{n}"), new(f"theirs-{n}", "globex")])

        async def flood():
            await pruner.enqueue([new(f"flood-{n}", "globex") for n in range(60)])
            for _ in range(3):
                await pruner.prune(10)

        if name == "kept_events_of":
            await flood()
            await pruner.enqueue([new(f"more-{n}", "globex") for n in range(3)])
        at_the_nth(store, name, nth, flood if name == "events" else lambda: pruner.prune(10))
        events, gaps = await every_page(store, "acme", start)
        assert [event.job_id for event in events] == [f"mine-{n}" for n in range(12)]
        assert gaps == []


@pytest.mark.usefixtures("small")
async def test_kept_events_of_an_earlier_epoch_are_read_before_the_next(postgres, database):
    """[EVENT-2] It keeps its position; an offset after the end of its epoch is of lost events."""
    url = postgres.url(database, keep_events=10)
    async with opened(url) as store:
        start = await store.last_offset()
        await store.enqueue([new("a"), new("theirs", "globex"), new("b")])
        await store.enqueue([new(f"flood-{n}", "globex") for n in range(30)])
        await store.prune(10)
        before = await all_events(store)
        end = parse_offset(await store.last_offset())
    postgres.sql("DELETE FROM holdfast.generation", database)
    async with opened(url) as store:
        await store.enqueue([new("c")])
        await store.enqueue([new(f"flood-{n}", "globex") for n in range(30, 60)])
        await store.prune(10)
        events, gaps = await every_page(store, "acme", start)
        assert reported(events)[:2] == [one for one in reported(before) if one[0] == "acme"]
        assert ([event.job_id for event in events], gaps) == (["a", "b", "c"], [])
        everything, gaps = await every_page(store, None, start)
        assert sum(event.tenant == "globex" for event in everything) == 7
        assert {gap.tenant for gap in gaps} == {"globex"}
        with pytest.raises(EventsTrimmed):
            await store.events("acme", str(end._replace(xid=end.xid + 1)), 10)


async def test_trimming_does_not_read_kept_events_again(postgres, database, monkeypatch):
    """[EVENT-2] However much others keep: a flood is cut by looking at the flood."""
    monkeypatch.setattr(upkeep, "COUNT_ROWS", 50)
    url = postgres.url(database, keep_events=700)
    async with opened(url) as store:
        for n in range(20):
            owners = [f"tenant-{m}" for m in range(20)]
            await store.enqueue([new(f"job-{n}", owner) for owner in owners])
        await store.enqueue([new(f"flood-{n}", "globex") for n in range(1000)])
        await store.prune(10)
        assert postgres.sql("SELECT count(*) FROM holdfast.kept_events WHERE tenant <> 'globex'", database) == [["400"]]
        seen = await looks(store, "kept_events")
        for n in range(5):
            await store.enqueue([new(f"again-{n}-{m}", "globex") for m in range(100)])
            assert (await store.prune(10)).events == 100
        # Of each prune the rest of the last row that was cut, and the first that is kept of all.
        assert sum(seen) < 100
        assert len(await all_events(store)) == 700


async def looks(store, table):
    """The number of rows that each read of a table finds from now on."""
    connect, seen = store._client.connect, []

    def found(plan):
        if plan.get("Relation Name", "") == table:
            seen.append(plan["Actual Rows"] * plan["Actual Loops"])
        for child in plan.get("Plans", ()):
            found(child)

    def note(message):
        head, _, plan = message.partition("plan:")
        if head.startswith("duration"):
            found(json.loads(plan)["Plan"])

    async def reported():
        connection = await connect()
        await connection.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;"
            "SET auto_explain.log_nested_statements = on; SET auto_explain.log_format = json;"
            "SET client_min_messages = log"
        )
        connection.add_log_listener(lambda _, said: note(said.message))
        return connection

    store._client.connect = reported
    store._client.drop_idle()
    return seen


async def live(store, rng, n):
    """Something that jobs may go through, in batches and one by one."""
    policy = rng.choice(("ttl", "forever", "until_terminal"))
    keyed = new(f"keyed-{n}", idempotency=IdempotencyKey(f"key-{n % 7}", policy, 1))
    await store.enqueue([new(f"{n}-{m}", rng.choice(TENANTS), rng.choice(("mail", "bulk"))) for m in range(6)])
    await store.enqueue([new(f"single-{n}", result_ttl_ms=0)])
    await store.enqueue([keyed])
    await complete(store, (await claim(store, 3))[1:])
    await complete(store, await claim(store, 1, "globex"))
    for job in await claim(store, 2, "initech", "bulk"):
        await store.report([Report(job.key, job.token, Progress(10, "x" * rng.randrange(50)))])
        error = AttemptError("Boom", "m" * rng.randrange(100))
        kind = rng.choice(("fail", "retry", "complete"))
        await store.finish([Finish(job.key, job.token, kind, Result(b"1"), error=error)])
        await store.purge([Purge(job.key)])
    for job in await claim(store, 2, "globex", "bulk"):
        await store.cancel([Cancel(job.key)])
        await store.enqueue([new(job.id, "globex", "bulk")])


async def test_the_counts_equal_a_full_count(postgres, database):
    """[TENANT-5] During a caller's open transaction, whose row delays the count, and after it."""
    rng = random.Random(3)
    async with opened(postgres.url(database, keep_events=50)) as store, opened(postgres.url(database)) as other:
        connection = await asyncpg.connect(postgres.url(database))
        for n in range(12):
            await live(store, rng, n)
            if n == 5:
                transaction = connection.transaction()
                await transaction.start()
                await store.enqueue([new("late"), new("later", "globex")], connection=connection)
            if n == 8:
                await transaction.rollback() if rng.random() < 0.5 else await transaction.commit()
            await asyncio.gather(store.prune(3), other.prune(3))
            before = [await store.usage(tenant) for tenant in TENANTS]
            postgres.sql("SELECT holdfast.recount()", database)
            assert [await store.usage(tenant) for tenant in TENANTS] == before
        await connection.close()
        assert all(usage.jobs > 0 and usage.bytes > 256 * usage.jobs and usage.events > 0 for usage in before)
        assert before[0].keys > 0
        assert await store.usage("nobody") == Usage()


async def test_a_queue_counts_while_it_has_jobs_or_is_paused(postgres, database):
    """[TENANT-5]"""
    async with opened(postgres.url(database)) as store:
        await store.enqueue([new("a", queue=f"q-{n}") for n in range(3)])
        await store.pause("acme", "q-0", paused=True)
        await store.pause("acme", "empty", paused=True)
        await store.prune(10)
        assert (await store.usage("acme")).queues == 4
        await store.cancel([Cancel(new("a", queue=f"q-{n}").key) for n in range(3)])
        await store.purge([Purge(new("a", queue=f"q-{n}").key) for n in range(3)])
        await store.prune(10)
        assert (await store.usage("acme")).queues == 2


async def test_a_reader_of_another_tenant_keeps_no_event(postgres, database):
    """[EVENT-2] Also where both have events in one call."""
    async with opened(postgres.url(database, keep_events=0)) as store:
        start = await store.last_offset()
        await store.set_reader(Reader("acme", "slow", start))
        for n in range(4):
            await store.enqueue([new(f"mine-{n}"), new(f"theirs-{n}", "globex"), new(f"also-{n}")])
        assert (await store.prune(10)).events == 4
        assert [event.job_id for event in (await store.events("acme", start, 99)).events] == [
            f"{name}-{n}" for n in range(4) for name in ("mine", "also")
        ]
