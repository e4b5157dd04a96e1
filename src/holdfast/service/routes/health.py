"""Health and metrics, without a token and without tenants' names. And the session: what a token is for."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec

from holdfast.core.errors import StoreUnavailable
from holdfast.core.times import moment
from holdfast.protocol import answers, requests
from holdfast.service.call import Reply, Route, ServiceCall
from holdfast.service.errors import Refusal
from holdfast.service.tokens import READ
from holdfast.telemetry import http as http_metrics

READY_S = 2.0


async def healthz(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """200 while the process runs, whatever the state of the store."""
    del call
    return Reply(answers.Health(status="ok"))


async def readyz(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """200 while the store answers and the service is not stopping."""
    if call.context.stopping.done():
        raise Refusal("stopping", "the service is stopping")
    try:
        async with asyncio.timeout(READY_S):
            await call.context.store.now()
    except TimeoutError:
        raise StoreUnavailable("no answer in time") from None
    return Reply(answers.Health(status="ok"))


async def session(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """A client reads it once, to know its tenant and scopes."""
    caller, store = call.caller, call.context.store
    return Reply(
        answers.Session(
            tenant=caller.tenant,
            scopes=sorted(caller.scopes),
            queues=None if caller.queues is None else sorted(caller.queues),
            expires_at=datetime.fromtimestamp(caller.expires_at, UTC),
            now=moment(await store.now()),
            offset=await store.last_offset() if READ in caller.scopes else None,
            store=msgspec.to_builtins(store.capabilities),
        )
    )


async def metrics(call: ServiceCall[None, requests.NoQuery]) -> Reply:
    """The metrics of all processes of the service."""
    del call
    text = b"" if http_metrics.current is None else await asyncio.to_thread(http_metrics.current.text)
    return Reply(text, kind=http_metrics.CONTENT_TYPE)


ROUTES = (
    Route(
        method="GET", path="/v1/session", handler=session, scope="", summary="The tenant and the scopes of the token",
        answers={200: answers.Session},
    ),
    Route(
        method="GET", path="/healthz", handler=healthz, scope=None, summary="Whether the process runs",
        answers={200: answers.Health},
    ),
    Route(
        method="GET", path="/readyz", handler=readyz, scope=None, summary="Whether the service can serve requests",
        answers={200: answers.Health}, refuses=("store_unavailable", "stopping"),
    ),
    Route(
        method="GET", path="/metrics", handler=metrics, scope=None, summary="Metrics for Prometheus",
        answers={200: None},
    ),
)  # fmt: skip
