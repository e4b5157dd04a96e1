"""Routes for workers: claim, finish, extend, report. They are enough for a worker in any language."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from holdfast.core.errors import HoldfastError, InvalidName, StoreError
from holdfast.core.failpoint import hit
from holdfast.core.job import ClaimRequest, Extend, Extended, Finish, Finished, Report, Reported
from holdfast.core.names import check_id
from holdfast.core.times import moment
from holdfast.jobs.options import check_own_queue
from holdfast.protocol import answers, requests
from holdfast.service import parsing, views
from holdfast.service.call import Reply, Route, ServiceCall
from holdfast.service.routes.batches import each
from holdfast.service.tokens import WORK, refused

Item = TypeVar("Item", bound=requests.LeaseItem)
Made = TypeVar("Made", Finish, Extend, Report)


async def claim(call: ServiceCall[requests.Claim, requests.NoQuery]) -> Reply:
    """Do not repeat a claim: a lost answer costs one lease. [CLAIM-1 to CLAIM-5]"""
    body = call.body
    queues = tuple(dict.fromkeys(map(check_own_queue, body.queues)))
    for queue in queues:
        call.caller.need_queue(queue)
    worker_id = _subject(call) if body.worker_id is None else check_id(body.worker_id, "worker id")
    lease_ms = parsing.lease_ms(body.lease_s)
    chance = random.random()  # noqa: S311 - jitter, no secret
    request = ClaimRequest(call.tenant, queues, body.limit, lease_ms, worker_id, chance)
    if body.wait_s:
        call.wait()
    with call.leaving() if body.wait_s else nullcontext() as gone:
        claimed, waited_s = await call.context.claim(request, body.wait_s, gone, call.hold)
    if claimed.jobs:
        call.context.changes.take(call.tenant, len(claimed.jobs))
    # The token may have been revoked while the claim waited.
    revoked = bool(claimed.jobs) and body.wait_s > 0 and await call.context.revoked.is_revoked(call.caller)
    if call.client_left or revoked:
        await call.context.release(claimed.jobs)
    if revoked:
        raise refused("it was revoked")
    with suppress(StoreError):
        # The wait may outlast a signing key. Without the store, use the known keys: leased jobs must reach the client.
        await call.context.proofs.renew()
    return Reply(views.claimed(claimed, waited_s, call.context.proofs))


async def finish(call: ServiceCall[list[requests.Finish | HoldfastError], requests.NoQuery]) -> Reply:
    """Never refused by a rate or budget of the tenant. [LEASE-1, TENANT-5]"""
    tenant, turns, limit = call.tenant, call.context.turns, call.context.result_limit

    def show(_: Finish, answer: Finished) -> Any:
        return answers.Finished(status=answer.state)

    def read(tenant: str, item: requests.Finish, fence: int) -> Finish | Awaitable[Finish]:
        result = None
        if item.outcome == "complete":
            result = parsing.small_result(item, limit)
            if result is None:
                return read_large(item, fence)
        return parsing.finish(tenant, item, fence, result)

    async def read_large(item: requests.Finish, fence: int) -> Finish:
        return parsing.finish(tenant, item, fence, await parsing.large_result(item, turns, tenant, limit))

    hit("service.before_finish")
    make = await _proved(call, read)
    return Reply(await each(call.body, make, call.context.finish, show, call))  # pyright: ignore[reportArgumentType]


async def extend(call: ServiceCall[list[requests.Extend | HoldfastError], requests.NoQuery]) -> Reply:
    """The answer for a canceled job is `job_canceled`. [LEASE-2, CANCEL-2]"""

    def show(_: Extend, answer: Extended) -> Any:
        return answers.Extended(status="extended", deadline=moment(answer.deadline), now=moment(answer.now))

    make = await _proved(call, parsing.extend)
    return Reply(await each(call.body, make, call.context.store.extend, show, call))  # pyright: ignore[reportArgumentType]


async def report(call: ServiceCall[list[requests.Report | HoldfastError], requests.NoQuery]) -> Reply:
    """Progress is part of the job, and an event where the store records all events."""

    def show(_: Report, __: Reported) -> Any:
        return answers.Reported(status="reported")

    make = await _proved(call, parsing.report)
    return Reply(await each(call.body, make, call.context.store.report, show, call))  # pyright: ignore[reportArgumentType]


async def beat(call: ServiceCall[requests.Beat, requests.NoQuery]) -> Reply:
    """Optional. Enqueues then use the options of the worker's job types, and get no warning about them."""
    worker = parsing.worker(call.tenant, call.body)
    for queue in worker.queues:
        call.caller.need_queue(queue)
    if call.caller.queues is not None and worker.types:
        # An enqueue without a queue uses that of its type: this token must not redirect jobs of other queues.
        known = (await call.context.types.of(call.tenant)).types
        for one in worker.types:
            call.caller.need_queue(one.queue)
            call.caller.need_queue(known.get(one.name, one).queue)
    await call.context.types.admit(worker, call.context.budgets(call.tenant), is_alive=call.body.ttl_s > 0)
    await call.context.store.beat(worker, int(call.body.ttl_s * 1000))
    return Reply(answers.Beaten())


def _subject(call: ServiceCall[Any, Any]) -> str:
    """The token's subject as a worker id, if it is a valid one."""
    try:
        return check_id(call.caller.subject, "worker id") if call.caller.subject else "http"
    except InvalidName:
        return "http"


async def _proved(
    call: ServiceCall[list[Item | HoldfastError], Any], read: Callable[[str, Item, int], Made | Awaitable[Made]]
) -> Callable[[Item], Made | Awaitable[Made]]:
    """A function that verifies an item's proof and converts the item. LeaseLost comes before other errors. [LEASE-1]"""
    tenant, caller, proofs = call.tenant, call.caller, call.context.proofs
    await proofs.renew(item.token for item in call.body if not isinstance(item, HoldfastError))

    def make(item: Item) -> Made | Awaitable[Made]:
        fence = proofs.fence(tenant, item.queue, item.id, item.token)
        caller.need_queue(item.queue)
        return read(tenant, item, fence)

    return make


ROUTES = (
    Route(
        method="POST", path="/v1/claims", handler=claim, scope=WORK, body=requests.Claim,
        summary="Lease jobs, and wait for them if there are none", answers={200: answers.Claimed},
        refuses=("invalid_name", "invalid_option"),
    ),
    Route(
        method="POST", path="/v1/leases:finish", handler=finish, scope=WORK, is_never_refused=True,
        body=requests.FinishBatch, batch="leases", item=requests.Finish,
        summary="Complete, fail, retry or release leased jobs",
        answers={200: answers.Finished},
    ),
    Route(
        method="POST", path="/v1/leases:extend", handler=extend, scope=WORK, is_never_refused=True,
        body=requests.ExtendBatch, batch="leases", item=requests.Extend,
        summary="Renew leases", answers={200: answers.Extended},
    ),
    Route(
        method="POST", path="/v1/leases:report", handler=report, scope=WORK, is_never_refused=True,
        body=requests.ReportBatch, batch="leases", item=requests.Report,
        summary="Record progress of leased jobs", answers={200: answers.Reported},
    ),
    Route(
        method="POST", path="/v1/workers:beat", handler=beat, scope=WORK, body=requests.Beat,
        summary="Report that a worker is alive, and its job types", answers={200: answers.Beaten},
        refuses=("invalid_name", "invalid_option", "quota_exceeded"),
    ),
)  # fmt: skip
