"""Hints between processes: NOTIFY after the commit, gathered; heard again after a lost connection."""

import asyncio

from holdfast.store import Hint
from holdfast.stores.postgres.ears import PAYLOAD, payloads
from tests.stores.postgres.support import fill, new, opened


class Ear:
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


async def test_a_hint_reaches_another_handle_and_comes_back_after_a_cut(postgres, database):
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        ear = Ear()
        stop = other.listen(ear, {Hint.READY})
        await ear.expect(lambda signal: not signal.queue)  # It listens from now on.
        await fill(store, 1)
        await ear.expect(lambda signal: (signal.tenant, signal.queue) == ("acme", "mail"))
        ear.signals.clear()
        postgres.sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}' "
            "AND pid <> pg_backend_pid()"
        )
        await ear.expect(lambda signal: not signal.queue)
        ear.signals.clear()
        await store.enqueue([new("again")])
        await ear.expect(lambda signal: signal.queue == "mail")
        stop()


async def test_without_listen_everybody_looks_now_and_then(postgres, database):
    async with opened(postgres.url(database)) as store, opened(postgres.url(database, listen=0)) as other:
        ear = Ear()
        stop = other.listen(ear, {Hint.READY})
        await fill(store, 1)
        ear.signals.clear()
        await ear.expect(lambda signal: signal.hint is Hint.READY)
        stop()


def test_many_ends_are_told_as_one_and_no_notification_is_too_long():
    few = [(Hint.DONE, "t", "q", f"job-{n}") for n in range(3)]
    assert len(payloads("me", few)) == 1
    many = [(Hint.DONE, "t", "q", f"job-{n}") for n in range(1000)]
    (only,) = payloads("me", many)
    assert only.count("done") == 1
    wide = [(Hint.READY, "t", f"queue-{n}-{'x' * 100}", "") for n in range(500)]
    found = payloads("me", wide)
    assert len(found) > 1
    assert max(map(len, found)) <= PAYLOAD + 100
