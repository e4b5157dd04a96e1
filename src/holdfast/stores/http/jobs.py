"""Calls that change jobs: enqueue, claim, finish, extend, report, cancel, replay, purge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from holdfast.core.errors import Unsupported
from holdfast.core.job import (
    Cancel,
    CancelStatus,
    Claimed,
    ClaimRequest,
    Extend,
    Extended,
    Finish,
    Finished,
    JobKey,
    Lease,
    NewJob,
    Purge,
    PurgeStatus,
    Replayed,
    Report,
    Reported,
    SetResultTtl,
    TtlStatus,
)
from holdfast.core.names import FLOWS
from holdfast.protocol import answers, problems, requests
from holdfast.store import JOINING, EnqueueAnswer, ExtendAnswer, FinishAnswer, ReplayAnswer, ReportAnswer
from holdfast.stores.http import batches, flows, incoming, outgoing
from holdfast.stores.http.client import HttpClient
from holdfast.stores.http.errors import of_item
from holdfast.stores.http.session import HttpSession, encode, queue_path

A = TypeVar("A")
B = TypeVar("B")


class HttpJobs(HttpSession):
    """The calls that change jobs."""

    async def enqueue(
        self, items: Sequence[NewJob], *, connection: Any = None, under: Lease | None = None
    ) -> list[EnqueueAnswer]:
        _needs_no_lease(under)
        _joins_nothing(connection)
        found: list[EnqueueAnswer] = []
        # Items with the same trace context share a request: its headers carry that context.
        for (is_flow, headers), group in groupby(items, key=lambda item: (_is_flow(item.key), outgoing.trace(item))):
            run = self._own(list(group), lambda item: item.key)
            if is_flow:
                found += [await flows.start(self._client, item) for item in run]
                continue
            made = [encode(outgoing.enqueue(item)) for item in run]
            replies = await batches.send(
                self._client, "/v1/jobs:batch", "jobs", made, answers.Ticket,
                headers=headers, repeat=all(item.envelope.request_id for item in run),
            )  # fmt: skip
            for answer in replies:
                refused = isinstance(answer, problems.ErrorInfo)
                found.append(cast("EnqueueAnswer", of_item(answer)) if refused else incoming.ticket(answer))
        return found

    async def claim(self, request: ClaimRequest) -> Claimed:
        return (await self._claim(request))[0]

    async def finish(self, items: Sequence[Finish], *, connection: Any = None) -> list[FinishAnswer]:
        _joins_nothing(connection)
        if any(item.forgive for item in items):
            raise Unsupported("returning earlier attempts", "http")
        return await self._leases(
            "finish", items, outgoing.finish, answers.Finished, lambda answer: Finished(answer.status)
        )

    async def extend(self, items: Sequence[Extend]) -> list[ExtendAnswer]:
        def extended(answer: answers.Extended) -> Extended:
            return Extended(incoming.ms(answer.deadline), incoming.ms(answer.now))

        return await self._leases("extend", items, outgoing.extend, answers.Extended, extended)

    async def report(self, items: Sequence[Report]) -> list[ReportAnswer]:
        return await self._leases("report", items, outgoing.report, answers.Reported, lambda _: Reported())

    async def cancel(self, items: Sequence[Cancel]) -> list[CancelStatus]:
        def cancel(item: Cancel) -> requests.Cancel:
            return requests.Cancel(id=item.key.id, only_waiting=item.only_waiting, sequence=item.seq)

        found: list[CancelStatus] = []
        for is_flow, group in groupby(items, key=lambda item: _is_flow(item.key)):
            run = list(group)
            if is_flow:
                for item in self._own(run, lambda item: item.key):
                    found.append(await flows.cancel(self._client, item))  # noqa: PERF401 - pyright would see a list[str]
            else:
                found += await self._by_queue("jobs:cancel", run, cancel, answers.Canceled)
        return found

    async def replay(self, keys: Sequence[JobKey], *, under: Lease | None = None, by: str = "") -> list[ReplayAnswer]:
        del by  # The service names who acts, by the token. So it does in a cancel and a purge.
        _needs_no_lease(under)
        found: list[ReplayAnswer] = []
        for queue, group in groupby(self._own(keys, lambda key: key), key=lambda key: key.queue):
            run = list(group)
            if queue == FLOWS:
                found += [await flows.replay(self._client, key) for key in run]
                continue
            body = encode(requests.Replay(ids=[key.id for key in run]))
            path = f"{queue_path(queue)}/dead-letters:replay"
            replies = await self._client.call("POST", path, answers.Replays, body=body, repeat=False)
            for item in replies.items:
                refused = None if item.error is None else of_item(item.error)
                found.append(Replayed() if refused is None else cast("ReplayAnswer", refused))
        return found

    async def purge(self, items: Sequence[Purge]) -> list[PurgeStatus]:
        def forget(item: Purge) -> requests.PurgeJob:
            ended = None if item.finished_at is None else outgoing.instant(item.finished_at)
            return requests.PurgeJob(id=item.key.id, finished_at=ended, sequence=item.seq)

        return await self._by_queue("jobs:purge", items, forget, answers.JobPurged, repeat=False)

    async def set_result_ttl(self, items: Sequence[SetResultTtl]) -> list[TtlStatus]:
        def retain(item: SetResultTtl) -> requests.SetResultTtl:
            return requests.SetResultTtl(id=item.key.id, result_ttl_s=item.ttl_ms / 1000, sequence=item.seq)

        return await self._by_queue("jobs:set-result-ttl", items, retain, answers.ResultTtlSet)

    async def _claim(
        self, request: ClaimRequest, wait_s: float = 0.0, client: HttpClient | None = None
    ) -> tuple[Claimed, float]:
        self._check(request.tenant)
        body = encode(outgoing.claim(request, wait_s))
        # Never repeated: a lost reply costs one lease, a second claim would cost another. [ENQ-8]
        client = client or self._client
        answer = await client.call("POST", "/v1/claims", answers.Claimed, body=body, repeat=False, wait_s=wait_s)
        claimed = incoming.claimed(self._tenant, request.worker_id, answer)
        left = request.limit - requests.BATCH_LIMIT
        if left > 0 and len(claimed.jobs) == requests.BATCH_LIMIT:
            more, _ = await self._claim(replace(request, limit=left), client=client)
            claimed = replace(more, jobs=claimed.jobs + more.jobs)
        return claimed, answer.waited_s

    async def _leases(
        self,
        verb: str,
        items: Sequence[Any],
        make: Callable[[Any], Any],
        type: type[A],
        show: Callable[[A], B],
    ) -> list[Any]:
        """Acknowledge. The token makes a repeated request answer as the first one did. [LEASE-1]"""
        made = [encode(make(item)) for item in self._own(items, lambda item: item.key)]
        replies = await batches.send(self._client, f"/v1/leases:{verb}", "leases", made, type)
        return [of_item(answer) if isinstance(answer, problems.ErrorInfo) else show(answer) for answer in replies]

    async def _by_queue(
        self, path: str, items: Sequence[Any], make: Callable[[Any], Any], type: type[Any], *, repeat: bool = True
    ) -> list[Any]:
        statuses: list[Any] = []
        for queue, group in groupby(self._own(items, lambda item: item.key), key=lambda item: item.key.queue):
            run = list(group)
            made = [encode(make(item)) for item in run]
            replies = await batches.send(self._client, f"{queue_path(queue)}/{path}", "jobs", made, type, repeat=repeat)
            for answer in replies:
                if isinstance(answer, problems.ErrorInfo):
                    raise of_item(answer)
                statuses.append(answer.status)
        return statuses


def _is_flow(key: JobKey) -> bool:
    return key.queue == FLOWS


def _needs_no_lease(under: Lease | None) -> None:
    if under is not None:
        raise Unsupported("acting under another job's lease; flows run where their store is", "http")


def _joins_nothing(connection: Any) -> None:
    if connection is not None:
        raise Unsupported(JOINING, "http")
