"""For load balancers and Prometheus, without a token and without the name of a tenant; and for clients: the session."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec

from holdfast.core.errors import StoreUnavailable
from holdfast.jobs.options import moment
from holdfast.protocol import answers, requests
from holdfast.service.call import Call, Reply, Route
from holdfast.service.errors import Refusal
from holdfast.service.tokens import READ
from holdfast.telemetry import http as http_metrics

READY_S = 2.0


async def healthz(call: Call[None, requests.NoQuery]) -> Reply:
    """The process lives, whatever the store does."""
    del call
    return Reply(answers.Health(status="ok"))


async def readyz(call: Call[None, requests.NoQuery]) -> Reply:
    """The store answers, and the service is not about to end."""
    if call.context.stopping.done():
        raise Refusal("stopping", "the service is about to end")
    try:
        async with asyncio.timeout(READY_S):
            await call.context.store.now()
    except TimeoutError:
        raise StoreUnavailable("no answer in time") from None
    return Reply(answers.Health(status="ok"))


async def session(call: Call[None, requests.NoQuery]) -> Reply:
    """A client asks once, to know whose jobs it will see."""
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


async def metrics(call: Call[None, requests.NoQuery]) -> Reply:
    """Of all processes of the service, where there are several."""
    del call
    text = b"" if http_metrics.current is None else await asyncio.to_thread(http_metrics.current.text)
    return Reply(text, kind=http_metrics.CONTENT_TYPE)


ROUTES = (
    Route(
        method="GET", path="/v1/session", handler=session, scope="", summary="Whose token this is",
        answers={200: answers.Session},
    ),
    Route(
        method="GET", path="/healthz", handler=healthz, scope=None, summary="Whether the process lives",
        answers={200: answers.Health},
    ),
    Route(
        method="GET", path="/readyz", handler=readyz, scope=None, summary="Whether it can serve",
        answers={200: answers.Health}, refuses=("store_unavailable", "stopping"),
    ),
    Route(
        method="GET", path="/metrics", handler=metrics, scope=None, summary="Metrics for Prometheus",
        answers={200: None},
    ),
)  # fmt: skip
