"""TENANT-3, ENQ-2, ENQ-4, ENQ-6: what a Queue refuses on every store, and the ids it makes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from holdfast.core.errors import HoldfastError, InvalidName, PartlyRefused, PayloadTooLarge, QuotaExceeded
from holdfast.core.job import PAYLOAD_LIMIT, JobState
from holdfast.queue.queue import Queue
from holdfast.store import TenantSettings
from holdfast.testing.conformance.expect import Broken, expect, expect_equal
from holdfast.testing.conformance.harness import Harness
from holdfast.testing.conformance.rules import rule

E = TypeVar("E", bound=HoldfastError)


async def refused(call: Awaitable[Any], why: type[E], what: str) -> E:
    """Fail unless the call raises exactly this error. Returns it."""
    try:
        answer = await call
    except why as error:
        expect_equal(type(error), why, what)
        return error
    except HoldfastError as error:
        raise Broken(f"{what}: got {error!r}, want {why.__name__}") from error
    raise Broken(f"{what}: got {answer!r}, want {why.__name__}")


@rule("TENANT-3")
async def bad_names_are_refused_with_the_reason_and_nothing_is_enqueued(h: Harness) -> None:
    """Tenants, queues, ids and idempotency keys are checked. The longest allowed names are accepted."""
    for tenant in ("", "a b", "a:b", "-a", "x" * 64, "é", "a\n"):
        try:
            Queue(store=h.store, tenant=tenant)
        except InvalidName as error:
            expect(error.reason, f"the refusal of tenant {tenant!r} gives no reason")
        else:
            raise Broken(f"{tenant!r} was taken for a tenant")
    async with Queue(store=h.store, tenant=h.tenant, name=h.queue) as queue, h.no_event("by refused names"):
        for name in ("", " a", "a b", ":a", "x" * 129, "é"):
            await refused(queue.enqueue({}, queue=name), InvalidName, f"enqueue into queue {name!r}")
        for name in ("", "x" * 201, "é" * 101, "a\n", "\x00", "\ud800"):
            await refused(queue.enqueue({}, id=name), InvalidName, f"enqueue of id {name!r}")
            await refused(queue.enqueue({}, idempotency_key=name), InvalidName, f"enqueue with key {name!r}")
    async with Queue(store=h.store, tenant=h.tenant, name=h.queue) as queue:
        for id in ("x" * 200, "é" * 100, " ", "a/b:c"):
            expect_equal((await queue.enqueue({}, id=id)).status, "queued", f"enqueue of id {id!r}")


@rule("ENQ-6")
async def a_payload_over_the_limit_is_refused_with_its_size(h: Harness) -> None:
    """It gets `PayloadTooLarge(size, limit)`, and nothing is enqueued. A payload of exactly the limit is accepted."""
    async with Queue(store=h.store, tenant=h.tenant, name=h.queue) as queue:
        full = "x" * (PAYLOAD_LIMIT - 2)  # JSON adds two quotes.
        async with h.no_event("by a refused payload"):
            error = await refused(queue.enqueue(full + "x", id="large"), PayloadTooLarge, "a byte over the limit")
            expect_equal(error.args, (PAYLOAD_LIMIT + 1, PAYLOAD_LIMIT), "size and limit in the refusal")
            expect_equal(await h.find(h.key("large")), None, "record of a refused job")
        expect_equal((await queue.enqueue(full, id="full")).status, "queued", "enqueue of a payload of the full size")
        expect_equal(len((await h.get(h.key("full"))).envelope.payload), PAYLOAD_LIMIT, "bytes of that payload")


@rule("ENQ-4")
async def a_partly_refused_batch_raises_with_every_ticket(h: Harness) -> None:
    """No refusal is silent: the error has the refused tickets beside the accepted ones."""
    async with Queue(store=h.store, tenant=h.tenant, name=h.queue) as queue:
        await h.store.set_tenant(h.tenant, TenantSettings(h.queue, max_waiting=2))
        error = await refused(queue.enqueue_many([{}, {}, {}]), PartlyRefused, "a batch over the quota")
        expect_equal([one.status for one in error.tickets], ["queued", "queued", "refused"], "answers, in order")
        expect(isinstance(error.refused[0].error, QuotaExceeded), "the refused ticket does not say why")
        expect_equal(len(await queue.enqueue_many([{}], on_refused="return")), 1, "tickets where they are returned")


@rule("ENQ-2")
async def generated_ids_are_unique_and_ordered_by_time(h: Harness) -> None:
    """An enqueue without an id gets one. Ids sort in the order in which they were made."""
    async with Queue(store=h.store, tenant=h.tenant, name=h.queue) as queue:
        tickets = [await queue.enqueue({}) for _ in range(20)]
        tickets += await queue.enqueue_many([{} for _ in range(200)])
    ids = [ticket.id for ticket in tickets]
    expect_equal(len(set(ids)), 220, "different ids")
    expect_equal(ids, sorted(ids), "generated ids in the order of time")
    expect_equal((await h.stats()).counts[JobState.READY], 220, "jobs that are there")
