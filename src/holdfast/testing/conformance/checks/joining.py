"""ENQ-7: an enqueue or an acknowledgement joins the caller's transaction."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import Unsupported
from holdfast.core.job import (
    Finish,
    IdempotencyKey,
    JobState,
    Outcome,
    Queued,
)
from holdfast.store import Hint
from holdfast.testing.conformance.expect import Broken, expect_a, expect_equal
from holdfast.testing.conformance.harness import BOOM, Harness
from holdfast.testing.conformance.rules import rule

# ENQ-7 --------------------------------------------------------------------------------------------------------


class Rollback(Exception):
    """Raised to roll back the caller's transaction."""


@rule("ENQ-7")
async def an_enqueue_joins_the_callers_transaction_or_says_it_cannot(h: Harness) -> None:
    """If the store can join, both happen or neither. Otherwise it raises Unsupported, and nothing is enqueued."""
    if not h.capabilities.transactional_enqueue:
        job = await h.leased()
        try:
            await h.store.enqueue([h.new("joined")], connection=object())
        except Unsupported as refusal:
            expect_equal(refusal.store, h.capabilities.name, "store named in the refusal")
        else:
            raise Broken("an enqueue took a connection that this store cannot join")
        try:
            await h.store.finish([Finish(job.key, job.token, "complete")], connection=object())
        except Unsupported:
            pass
        else:
            raise Broken("a completion took a connection that this store cannot join")
        expect_equal(await h.find(h.key("joined")), None, "record of a job whose enqueue was refused")
        await h.expect_state(job.key, JobState.LEASED, "after a refused completion")
        return
    await _both_or_neither(h)


async def _both_or_neither(h: Harness) -> None:
    key = IdempotencyKey("once")
    job = await h.leased()
    try:
        async with h.begin() as connection:
            await h.store.enqueue([h.new("joined", idempotency=key)], connection=connection)
            await h.store.finish([Finish(job.key, job.token, "complete")], connection=connection)
            expect_equal(await h.find(h.key("joined")), None, "record of a job that is not committed")
            expect_a(await h.enqueue("stranger"), Queued, "a stranger's enqueue beside an open transaction")
            await h.claim_one("stranger")
            raise Rollback  # noqa: TRY301 - what a caller whose transaction fails does
    except Rollback:
        pass
    expect_equal(await h.find(h.key("joined")), None, "record of a job that was rolled back")
    await h.expect_state(job.key, JobState.LEASED, "after a completion that was rolled back")
    async with h.begin() as connection:
        await h.store.enqueue([h.new("joined", idempotency=key)], connection=connection)
        await h.store.finish([Finish(job.key, job.token, "complete")], connection=connection)
    await h.expect_state(h.key("joined"), JobState.READY, "after the commit")
    await h.expect_state(job.key, JobState.COMPLETED, "after the commit")
    expect_equal(await h.kinds(h.key("joined")), ["enqueued"], "events of an enqueue tried twice")


@rule("ENQ-7")
async def other_outcomes_join_the_callers_transaction_too(h: Harness) -> None:
    """A retry, a failure and a release happen together with the caller's changes, or not at all."""
    outcomes: dict[Outcome, JobState] = {
        "retry": JobState.RETRYING,
        "fail": JobState.FAILED,
        "release": JobState.READY,
    }
    for outcome, state in outcomes.items():
        job = await h.leased()
        item = Finish(job.key, job.token, outcome, error=BOOM)
        try:
            async with h.begin() as connection:
                await h.store.finish([item], connection=connection)
                await h.expect_state(job.key, JobState.LEASED, f"beside a {outcome} that is not committed")
                raise Rollback  # noqa: TRY301 - what a caller whose transaction fails does
        except Rollback:
            pass
        await h.expect_state(job.key, JobState.LEASED, f"after a {outcome} that was rolled back")
        async with h.begin() as connection:
            await h.store.finish([item], connection=connection)
        await h.expect_state(job.key, state, f"after a {outcome} that was committed")


@rule("ENQ-7")
async def a_worker_is_notified_of_a_job_when_its_transaction_commits(h: Harness) -> None:
    """The same holds for the end of a job: the caller's commit sends hints to all handles, like any other change."""
    job = await h.leased()
    other = (await h.handles(2))[1]
    with h.listening(other) as hints:
        async with h.begin() as connection:
            while not any(signal.queue for signal in hints.signals):  # Until it gets the hints of other handles.
                await h.queued(h.name("probe"), queue=h.name("q"))
                await asyncio.sleep(0.02)
            await h.store.enqueue([h.new("joined")], connection=connection)
            await h.store.finish([Finish(job.key, job.token, "complete")], connection=connection)
        await hints.expect(Hint.READY, h.key("joined"), "after the commit of an enqueue", exactly=True)
        await hints.expect(Hint.DONE, job.key, "after the commit of a completion", exactly=True)
