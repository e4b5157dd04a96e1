"""The hint of a single completion has the record: a waiter needs no read. [RESULT-2]"""

import asyncio

import pytest

from holdfast.core.job import Finish, IdempotencyKey, Progress, Report, Result
from holdfast.store import Hint
from tests.stores.postgres.support import claim, new, opened
from tests.stores.postgres.test_hints import InboxChannel


async def reported_of(postgres, database, item, result, change=None):
    """How another handle is notified of the end of a job, and what it reads."""
    async with opened(postgres.url(database)) as store, opened(postgres.url(database)) as other:
        listener = InboxChannel()
        stop = other.listen(listener, {Hint.DONE})
        await listener.expect(lambda signal: not signal.queue)
        await store.enqueue([item])
        (job,) = await claim(store, 1)
        if change is not None:
            await change(store, job)
        if (
            store._transactions.notifier._sending is not None
        ):  # While hints go by themselves, this one would go with them.
            await asyncio.wait([store._transactions.notifier._sending])
        await store.finish([Finish(job.key, job.token, "complete", result)])
        await listener.expect(lambda signal: signal.id == item.key.id)
        stop()
        (found,) = await other.get([item.key])
        return next(signal.job for signal in listener.signals if signal.id == item.key.id), found


async def report(store, job):
    await store.report([Report(job.key, job.token, Progress(0.5, "half"))])


@pytest.mark.parametrize(
    "item, result, change",
    [
        (new("plain"), Result(b'"ok"'), None),
        (new("nothing"), None, None),
        (new('"ü\\'), Result(b"\x00\xff", "raw"), None),
        (new("keyed", idempotency=IdempotencyKey("k"), priority=9, headers={"a": "b"}), Result(b"1"), None),
        (new("progress"), Result(b"x" * 3000), report),
    ],
    ids=["plain", "no result", "odd letters", "key and headers", "progress"],
)
async def test_the_record_in_a_notification_is_the_stored_one(postgres, database, item, result, change):
    job, found = await reported_of(postgres, database, item, result, change)
    assert found is not None
    assert job == found


@pytest.mark.parametrize(
    "item, result",
    [(new("large"), Result(b"x" * 5000)), (new("gone", result_ttl_ms=0), Result(b"1"))],
    ids=["too large", "gone at once"],
)
async def test_a_record_that_does_not_fit_or_is_not_kept_is_only_named(postgres, database, item, result):
    job, _ = await reported_of(postgres, database, item, result)
    assert job is None
