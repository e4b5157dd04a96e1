"""Hints between processes: NOTIFY after the commit, gathered; heard again after a lost connection."""

import asyncio

from holdfast.core.errors import JobCanceled
from holdfast.core.job import Cancel, JobKey
from holdfast.store import Hint
from holdfast.stores.postgres.lanes import LaneCache
from holdfast.stores.postgres.notifications import GATHER_S, MAX_PAYLOAD, payloads
from holdfast.stores.postgres.unit_of_work import Effects
from tests.stores.postgres.support import apart, claim, complete, fill, new, opened


class InboxChannel:
    def __init__(self):
        self.signals = []
        self.rung = asyncio.Event()

    def __call__(self, signal):
        self.signals.append(signal)
        self.rung.set()

    async def expect(self, wanted):
        async with asyncio.timeout(10):
            while not any(wanted(signal) for signal in self.signals):
                self.rung.clear()
                await self.rung.wait()


async def test_hints_reach_another_handle_again_after_a_lost_connection(postgres, database):
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        listener = InboxChannel()
        stop = other.listen(listener, {Hint.READY})
        await listener.expect(lambda signal: not signal.queue)  # It listens from now on.
        await fill(store, 1)
        await listener.expect(lambda signal: (signal.tenant, signal.queue) == ("acme", "mail"))
        listener.signals.clear()
        postgres.sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' "
            "AND pid <> pg_backend_pid()"
        )
        await listener.expect(lambda signal: not signal.queue)
        listener.signals.clear()
        await store.enqueue([new("again")])
        await listener.expect(lambda signal: signal.queue == "mail")
        stop()


async def test_a_handle_is_notified_when_its_schema_was_replaced(postgres, database):
    """The channels of the new schema have other names."""
    url = postgres.url(database, test_clock=1)
    async with apart(url) as other, opened(url) as store, opened(url) as idle:
        notifications = [InboxChannel(), InboxChannel()]
        for handle, listener in zip((store, idle), notifications, strict=True):
            handle.listen(listener, {Hint.READY})
            await listener.expect(lambda signal: not signal.queue)  # It listens from now on.
        postgres.sql("DROP SCHEMA holdfast CASCADE", database)
        async with opened(postgres.url(database, test_clock=1, wait_s=7)):
            pass  # It has made the schema anew.
        for listener in notifications:
            listener.signals.clear()
        await store.enqueue([new("a")])  # Which finds that the data is another. `idle` asks for nothing.
        for listener in notifications:
            await listener.expect(lambda signal: not signal.queue)
            listener.signals.clear()
        await other.enqueue([new("b")])
        for listener in notifications:
            await listener.expect(lambda signal: signal.queue == "mail")


async def test_a_listener_for_further_hints_gets_them_too(postgres, database):
    """Each kind of hint has its own channel, so that no process is woken by hints it does not listen for."""
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        ended, ready = InboxChannel(), InboxChannel()
        stops = [other.listen(ended, {Hint.DONE})]
        await ended.expect(lambda signal: not signal.queue)  # It listens from now on.
        channels = "SELECT DISTINCT query FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = '{}'"
        [[secret]] = postgres.sql("SELECT id FROM holdfast.meta", database)
        assert postgres.sql(channels.format(database)) == [[f'LISTEN "hfd{secret.replace("-", "")}"']]
        stops.append(other.listen(ready, {Hint.READY}))
        await ready.expect(lambda signal: not signal.queue)
        await store.enqueue([new("a")])
        await ready.expect(lambda signal: signal.queue == "mail")
        await complete(store, await claim(store, 1))
        await ended.expect(lambda signal: signal.id == "a")
        for stop in stops:
            stop()


async def test_without_listen_listeners_are_notified_at_intervals(postgres, database):
    async with opened(postgres.url(database)) as store, opened(postgres.url(database, listen=0)) as other:
        listener = InboxChannel()
        stop = other.listen(listener, {Hint.READY})
        await fill(store, 1)
        listener.signals.clear()
        await listener.expect(lambda signal: signal.hint is Hint.READY)
        stop()


def test_many_ended_jobs_are_one_notification_of_bounded_length():
    few = [JobKey("t", "few", f"job-{n}") for n in range(3)]
    many = [JobKey("t", "many", f"job-{n}") for n in range(1000)]
    hints = Effects(ended=[*many, *few]).hints(LaneCache())
    assert hints == [(Hint.DONE, "t", "many", ""), *((Hint.DONE, *key) for key in few)]
    assert len(payloads("me", hints)) == 1
    wide = [(Hint.READY, "t", f"queue-{n}-{'x' * 100}", "") for n in range(500)]
    found = payloads("me", wide)
    assert len(found) > 1
    assert max(len(payload) for _, payload in found) <= MAX_PAYLOAD + 100


async def test_the_growth_of_the_log_is_part_of_the_next_hint(postgres, database):
    """Only readers of the log are notified of a claim, and later: so a quick job costs one notification."""
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        listener = InboxChannel()
        stop = other.listen(listener, {Hint.DONE})
        await listener.expect(lambda signal: not signal.queue)  # It listens from now on.
        await store.enqueue([new("a")])
        await quiet(store)
        sent = spied(store)
        await complete(store, await claim(store, 1))
        await listener.expect(lambda signal: signal.id == "a")
        await quiet(store)
        assert "notify" not in sent
        stop()


async def test_hints_are_sent_even_if_the_change_that_carried_them_is_refused(postgres, database):
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        await store.enqueue([new("a"), new("b")])
        (job,) = await claim(store, 1)
        await other.cancel([Cancel(job.key)])
        await quiet(store)
        sent = spied(store)
        await claim(store, 1)
        (answer,) = await complete(store, [job])
        assert isinstance(answer, JobCanceled)
        await quiet(store)
        assert sent.count("notify") == 1


async def quiet(store):
    """Wait until it has nothing to tell, and may tell again at once."""
    async with asyncio.timeout(10):
        while store._transactions.notifier._sending is not None:
            await asyncio.wait([store._transactions.notifier._sending])
    await asyncio.sleep(GATHER_S)


def spied(store):
    """The names of the statements that are sent from here on."""
    sent, ask = [], store._client.rows

    async def rows(name, *args, **options):
        sent.append(name)
        return await ask(name, *args, **options)

    store._client.rows = rows
    return sent
