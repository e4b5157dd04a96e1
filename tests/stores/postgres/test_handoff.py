"""Direct hand-off: what is this server's own. The rest is in ../test_handoff.py.

Invariants verified:
- a registration that fails never costs what a claim got, and a job whose message is late still takes up room
- no worker counts as listening before it does or after it left; a dead connection loses no hint for good
- under a long transaction registrations pause, and nothing else does
- an enqueue that joins a caller's transaction is not handed off
"""

import asyncio
import contextlib

import asyncpg
import pytest

from holdfast import Queue
from holdfast.core import waiters as core_waiters
from holdfast.core.errors import StoreError
from holdfast.core.job import JobState
from holdfast.stores.postgres import lanes
from tests.chaos.workers import TENANT
from tests.eventually import eventually
from tests.stores.handing_off import SOON_S, Runs, place, waiting, working
from tests.stores.load import complete, key, new, wish
from tests.stores.postgres.support import judge, opened

BROKEN = "RAISE 'broken'"


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant=TENANT) as queue:
        yield queue


@pytest.fixture
async def admin(postgres, database):
    """A connection of another program."""
    connection = await asyncpg.connect(postgres.url(database))
    yield connection
    await connection.close()


async def edit(admin, function, old, new):
    """Change a function of the store in this database."""
    text = await admin.fetchval(f"SELECT pg_get_functiondef('holdfast.{function}'::regproc)")
    assert old in text
    await admin.execute(text.replace(old, new))


async def state_of(store, id_, queue="mail"):
    [found] = await store.get([key(id_, queue=queue)])
    return None if found is None else found.state


@contextlib.contextmanager
def slow_to_listen(monkeypatch):
    """Opening a channel waits until `go_on` is set; `begun` is set when it waits."""
    listen = asyncpg.Connection.add_listener
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def add_listener(connection, channel, callback):
        if channel.startswith("hfp"):
            begun.set()
            await go_on.wait()
        await listen(connection, channel, callback)

    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "add_listener", add_listener)
        yield begun, go_on


# A claim ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, 5])
async def test_a_claim_keeps_its_jobs_when_its_registration_fails(store, waiting_workers, admin, limit):
    """The registration can be neither made nor withdrawn: the jobs are leased by then."""
    async with place(store, waiting_workers) as (post, _):
        await store.enqueue([new("a"), new("b")])
        await edit(admin, "register_waiter", "BEGIN", f"BEGIN {BROKEN};")
        await edit(admin, "withdraw_waiter", "IF p_leave THEN", f"IF p_leave THEN {BROKEN};")
        claimed = await post.claim(wish(limit))
        assert [found.id for found in claimed.jobs] == ["a", "b"]
        answers = await store.finish([complete(found) for found in claimed.jobs])
        assert [answer.state for answer in answers] == [JobState.COMPLETED] * 2
        # Where nothing would be lost, the caller gets the error.
        if limit > 2:
            with pytest.raises(StoreError, match="broken"):
                await post.claim(wish(limit))


async def test_a_claim_answers_before_its_leases_expire(store, waiting_workers, admin):
    """A registration that hangs must not use up the leases of the jobs of the claim."""
    async with place(store, waiting_workers) as (post, _):
        await store.enqueue([new("a"), new("b")])
        await edit(admin, "register_waiter", "BEGIN", "BEGIN PERFORM pg_sleep(60);")
        claimed = await post.claim(wish(5, lease_ms=6000))
        answers = await store.finish([complete(found) for found in claimed.jobs])
        assert [answer.state for answer in answers] == [JobState.COMPLETED] * 2


async def test_a_job_whose_message_is_late_counts_as_in_flight(store, url, waiting_workers, admin, monkeypatch):
    """It is leased and in flight: its slot stays reserved, however often the worker claims meanwhile."""
    monkeypatch.setattr(core_waiters, "IN_FLIGHT_S", 10 * SOON_S)
    await edit(admin, "commit_and_notify", "COMMIT;", "COMMIT; PERFORM pg_advisory_xact_lock_shared(42);")
    async with place(store, waiting_workers, limit=2) as (post, came), opened(url) as other:
        await admin.execute("SELECT pg_advisory_lock(42)")
        sending = asyncio.create_task(other.enqueue([new("late")]))
        await eventually(lambda: state_of(store, "late"), lambda found: found is JobState.LEASED)
        more = asyncio.create_task(other.enqueue([new("a"), new("b"), new("c")]))
        await eventually(lambda: state_of(store, "c"), lambda found: found is JobState.READY)
        jobs = []
        for n in (2, 1, 1):
            jobs += (await post.claim(wish(n))).jobs
        assert [found.id for found in jobs] == ["a"]
        await admin.execute("SELECT pg_advisory_unlock(42)")
        await sending
        await more
        await eventually(lambda: [found.id for found in came], lambda ids: ids == ["late"])
        assert [found.id for found in (await post.claim(wish(2))).jobs] == ["b", "c"]


@pytest.mark.parametrize("how", ["it ends", "its line is cut"])
async def test_a_claim_of_a_closed_inbox_leaves_no_registration(store, waiting_workers, admin, hang_up, how):
    async with place(store, waiting_workers) as (post, _):
        begun, go_on = asyncio.Event(), asyncio.Event()
        claim = post._claim

        async def slow_claim(request):
            begun.set()
            await go_on.wait()
            return await claim(request)

        post._claim = slow_claim
        claiming = asyncio.create_task(post.claim(wish(2)))
        await begun.wait()
        if how == "it ends":
            await post.close()
        else:
            await hang_up()
            await eventually(lambda: post._channel.number == 0, every_s=0.001)
        go_on.set()
        await claiming
        assert await admin.fetch("SELECT * FROM holdfast.waiters WHERE expires_at > 0") == []
        if how == "it ends":
            assert await admin.fetch("SELECT * FROM holdfast.waiter_queues") == []


async def test_a_late_registration_replaces_no_newer_one(store, waiting_workers, admin):
    """It was in flight when the worker stopped waiting for it."""
    async with place(store, waiting_workers):
        (post, channel, number) = await admin.fetchrow("SELECT inbox, channel, number FROM holdfast.waiters")
        call = "holdfast.register_waiter($1, $2, $3, '{1}', '{1}', 9, 60000, 20000, 'w', ARRAY[value])"
        late = f"SELECT {call} FROM holdfast.generation"
        assert await admin.fetchval(late, post, channel, number - 1) is False
        assert await admin.fetchval("SELECT (number, room) = ($1::bigint, 2) FROM holdfast.waiters", number)


# Listening ----------------------------------------------------------------------------------------------------


async def test_a_worker_registers_only_after_it_listens(store, waiting_workers, heard, monkeypatch):
    came = []
    with slow_to_listen(monkeypatch) as (begun, go_on):
        post = store.open_inbox(lambda claimed, sent: came.extend(claimed.jobs))
        await begun.wait()
        await post.claim(wish(2))
        assert await waiting_workers() == 0
        go_on.set()
        await eventually(lambda: post._channel.number != 0)
    await post.claim(wish(2))
    assert await waiting_workers() == 1
    await post.close()
    await eventually(heard, lambda found: found == 0)


async def test_an_inbox_closed_before_it_listens_leaves_nothing(store, waiting_workers, heard, admin, monkeypatch):
    async with place(store, waiting_workers):
        with slow_to_listen(monkeypatch) as (begun, go_on):
            post = store.open_inbox(lambda *_: None)
            await begun.wait()
            await post.close()
            go_on.set()
            await eventually(heard, lambda found: found == 1)
            connection = store._transactions.listener._connection
            await eventually(lambda: len([name for name in connection._listeners if name.startswith("hfp")]) == 1)


async def test_a_connection_may_end_while_an_inbox_closes(store, waiting_workers, monkeypatch):
    """As when the store is closed at once: the driver says so in a way of its own."""
    prepare = asyncpg.Connection._get_statement

    async def ended(connection, query, *args, **options):
        found = await prepare(connection, query, *args, **options)
        if query.startswith("UNLISTEN"):
            connection.terminate()
        return found

    async with place(store, waiting_workers) as (post, _):
        monkeypatch.setattr(asyncpg.Connection, "_get_statement", ended)
        before = set(store._transactions.listener._tasks)
    (task,) = store._transactions.listener._tasks - before
    await asyncio.wait([task])
    assert task.exception() is None
    assert post._channel.number == 0


@pytest.mark.parametrize("who", ["comes", "events_to_remove"])
async def test_a_worker_that_starts_or_stops_on_a_dead_connection_does_not_affect_the_hints_of_others(
    proxy, far, store, waiting_workers, asked, who
):
    """Its request is never answered; the dead connection is still noticed."""
    other = far.open_inbox(lambda *_: None)
    async with place(far, waiting_workers) as (post, came):
        await eventually(lambda: other._channel.number != 0)
        number = post._channel.number
        proxy.freeze(new=False)
        if who == "comes":
            another = far.open_inbox(lambda *_: None)
        else:
            other._channel.stop()
            another = other
        await eventually(lambda: post._channel.number not in (0, number))

        async def waits_again():
            with contextlib.suppress(StoreError):
                await post.claim(wish(2))
            return await asked("SELECT max(inbox) FROM holdfast.waiters WHERE expires_at > 0") == post._channel.number

        await eventually(waits_again)
        await store.enqueue([new("x")])
        await eventually(lambda: [found.id for found in came], lambda ids: ids == ["x"])
        proxy.thaw()
        await another.close()
        await other.close()


# What is handed off -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3000, 3900, 4000, 4001, 5000, 100_000])
async def test_a_job_too_large_for_a_message_is_announced_by_a_hint(store, waiting_workers, size):
    """Any bytes, and a name with all that JSON has to escape; what comes is what was put in."""
    id_ = 'a "b" \\ \U0001f600 ' + "\u00e9" * 80
    payload = (bytes(range(256)) * (size // 256 + 1))[:size]
    async with place(store, waiting_workers) as (post, came):
        await store.enqueue([new(id_, payload, headers={"\u20ac": "\x01\x7f"})])
        if await state_of(store, id_) is JobState.LEASED:
            assert size <= 4000
            (found,) = await eventually(lambda: came)
        else:
            assert size > 3000
            (found,) = (await post.claim(wish(2))).jobs
        assert (found.id, found.envelope.payload) == (id_, payload)
        assert found == (await store.get([found.key]))[0]


async def test_a_joined_enqueue_is_not_handed_off(store, waiting_workers, admin):
    """And it blocks no other call: it locks no registration."""
    async with place(store, waiting_workers) as (post, came):
        async with admin.transaction():
            await store.enqueue([new("joined")], connection=admin)
            await store.enqueue([new("note_freed")])
            await eventually(lambda: [found.id for found in came], lambda ids: ids == ["note_freed"])
            assert (await post.claim(wish(2))).jobs == []
        assert await state_of(store, "joined") is JobState.READY
        assert [found.id for found in (await post.claim(wish(2))).jobs] == ["joined"]


async def test_a_handle_behind_a_pooler_hands_off_jobs_and_receives_none(store, postgres, database, waiting_workers):
    async with (
        place(store, waiting_workers) as (_, came),
        opened(postgres.url(database, test_clock=1, listen=0)) as pooled,
    ):
        assert pooled.open_inbox(lambda *_: None) is None
        await pooled.enqueue([new("x")])
        await eventually(lambda: [found.id for found in came], lambda ids: ids == ["x"])


async def test_similar_schema_names_are_kept_apart(postgres, empty_database):
    """Also where the name of the channel has no room for all of the schema's."""
    urls = [postgres.url(empty_database, schema="s" * 59 + end, test_clock=1) for end in "ab"]
    came = {}
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(url)) for url in urls]
        for n, store in enumerate(stores):
            post = store.open_inbox(lambda claimed, sent, n=n: came.setdefault(n, []).extend(claimed.jobs))
            stack.push_async_callback(post.close)
            await eventually(lambda post=post: post._channel.number)
            await post.claim(wish(2))
        for n, store in enumerate(stores):
            await store.enqueue([new(f"{n}")])
        found = await eventually(lambda: came, lambda came: len(came) == 2)
        assert {n: [j.id for j in jobs] for n, jobs in found.items()} == {0: ["0"], 1: ["1"]}


async def test_a_message_of_another_generation_is_ignored(store, url, waiting_workers, admin):
    """The numbers in it may now mean another tenant's queue. [TENANT-3]"""
    async with place(store, waiting_workers) as (_, came):
        known = store._cache.data_id
        store._cache.set_data(f"{known.split()[0]} another-generation")
        lanes.forget(store.address.identity)
        async with opened(url) as near:
            await near.enqueue([new("x")])
        await eventually(lambda: came)
        assert store._cache.by_number == {}
        store._cache.set_data(known)


# Bad days -----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def long_transaction(connection):
    """What is dead stays, while this is open."""
    async with connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT count(*) FROM holdfast.jobs")
        yield


async def test_no_registration_is_made_for_a_while_after_a_slow_claim(store, url, waiting_workers, admin):
    """Hundreds of pages of dead rows are before the rows that an enqueue reads: it reports that, and continues."""
    await store.enqueue([new(f"dead-{n}", b"x" * 1800) for n in range(2000)])
    async with long_transaction(admin), opened(url) as other:
        while jobs := (await store.claim(wish(1000))).jobs:
            await store.finish([complete(found) for found in jobs])
        async with place(store, waiting_workers) as (post, came):
            for n in range(3):
                await other.enqueue([new(f"{n}")])
                assert await state_of(store, f"{n}") is JobState.READY
                assert await waiting_workers() == 0
                claimed = await eventually(lambda: post.claim(wish(2)), lambda found: found.jobs)
                assert [found.id for found in claimed.jobs] == [f"{n}"]
                await store.finish([complete(found) for found in claimed.jobs])
                assert (await post.claim(wish(2))).jobs == []
                assert await waiting_workers() == 0
            post._paused_until = 0.0  # Enough of it.
            assert (await post.claim(wish(2))).jobs == []
            assert await waiting_workers() == 1
            assert came == []


async def test_no_registration_is_made_while_dead_rows_pile_up(store, waiting_workers, admin, postgres, database):
    async with long_transaction(admin), place(store, waiting_workers) as (post, came):
        postgres.sql(
            "INSERT INTO holdfast.waiters SELECT n, 0, 1, 1, 1, 0, false, repeat('x', 60), 'w' "
            "FROM generate_series(1, 5000) n; DELETE FROM holdfast.waiters WHERE inbox <= 5000",
            database,
        )
        assert (await post.claim(wish(2))).jobs == []
        assert await waiting_workers() == 0
        await store.enqueue([new("x")])
        assert await state_of(store, "x") is JobState.READY
        assert [found.id for found in (await post.claim(wish(2))).jobs] == ["x"]
        assert await waiting_workers() == 0
    assert await admin.fetch("SELECT * FROM holdfast.waiters") == []
    await admin.execute("VACUUM holdfast.waiters")
    async with place(store, waiting_workers) as (_, came):
        await store.enqueue([new("y")])
        await eventually(lambda: [found.id for found in came], lambda ids: ids == ["y"])


async def test_prune_removes_only_the_registrations_of_dead_workers(store, waiting_workers, admin):
    async with place(store, waiting_workers):
        living = await admin.fetchval("SELECT inbox FROM holdfast.waiters")
        await admin.execute("UPDATE holdfast.waiters SET expires_at = 0")  # As in the middle of a claim.
        for post, until in ((1, 0), (2, 5), (3, 2**60)):
            row = "INSERT INTO holdfast.waiters VALUES ($1, $2, 1, 1, 1, 0, false, 'x', 'w')"
            await admin.execute(row, post, until)
            await admin.execute("INSERT INTO holdfast.waiter_queues VALUES (7, 0, $1)", post)
        await store.prune(100)
        assert [row["inbox"] for row in await admin.fetch("SELECT inbox FROM holdfast.waiters ORDER BY 1")] == [
            3,
            living,
        ]
        found = await admin.fetch("SELECT DISTINCT inbox FROM holdfast.waiter_queues ORDER BY 1")
        assert [row["inbox"] for row in found] == [3, living]


async def test_a_killed_server_has_no_registrations_and_workers_register_again(durable):
    url = durable.url(test_clock=1, timeout_s=2)
    runs = Runs()

    def waiting_workers():
        return int(durable.sql("SELECT count(*) FROM holdfast.waiters WHERE expires_at > 0")[0][0])

    async with Queue(url, tenant=TENANT) as queue, working(url, runs.job, concurrency=2):
        await waiting(waiting_workers, 1)
        before = durable.sql("SELECT inbox FROM holdfast.waiters")
        await asyncio.to_thread(durable.kill)
        await asyncio.to_thread(durable.restart)
        await waiting(waiting_workers, 1)
        assert durable.sql("SELECT inbox FROM holdfast.waiters") != before
        for n in range(5):
            assert await queue.enqueue_and_wait(runs.job.message(n), id=f"{n}", timeout=SOON_S) == n
        jobs = await judge(queue.store)
        assert {found.attempts for found in jobs.values()} == {1}
    assert runs.all == [f"{n}" for n in range(5)]
    assert durable.sql("SELECT count(*) FROM holdfast.waiters") == [["0"]]
    assert durable.sql("SELECT count(*) FROM holdfast.waiter_queues") == [["0"]]
