"""For load balancers and Prometheus, where no token is asked for and no tenant is named; and what a token is for."""

from __future__ import annotations

import asyncio

from holdfast.core import wire
from holdfast.core.errors import StoreUnavailable
from holdfast.options import moment
from holdfast.service.call import Call, Reply, Route
from holdfast.service.errors import Refusal
from holdfast.service.tokens import ANY
from holdfast.telemetry import http as http_metrics

READY_S = 2.0


async def healthz(call: Call[None, wire.NoQuery]) -> Reply:
    """The process lives, whatever the store does."""
    del call
    return Reply(wire.Health(status="ok"))


async def readyz(call: Call[None, wire.NoQuery]) -> Reply:
    """The store answers, and the service is not about to end."""
    if call.hub.stopping.done():
        raise Refusal("stopping", "the service is about to end")
    try:
        async with asyncio.timeout(READY_S):
            await call.hub.store.now()
    except TimeoutError:
        raise StoreUnavailable("no answer in time") from None
    return Reply(wire.Health(status="ok"))


async def metrics(call: Call[None, wire.NoQuery]) -> Reply:
    """Of all processes of the service, where there are several."""
    del call
    text = b"" if http_metrics.current is None else await asyncio.to_thread(http_metrics.current.text)
    return Reply(text, kind=http_metrics.CONTENT_TYPE)


async def token(call: Call[None, wire.NoQuery]) -> Reply:
    """Whose it is, what it may do and until when, and what time it is at the store."""
    caller, store = call.caller, call.hub.store
    return Reply(
        wire.TokenInfo(
            tenant=caller.tenant,
            scopes=sorted(caller.scopes),
            queues=None if caller.queues is None else sorted(caller.queues),
            expires_at=moment(int(caller.expires_at * 1000)),
            now=moment(await store.now()),
            durable=store.capabilities.durable,
            survives_power_loss=store.capabilities.survives_power_loss,
            exact_quota=store.capabilities.exact_quota,
        )
    )


ROUTES = (
    Route(
        method="GET", path="/v1/token", handler=token, scope=ANY, summary="What the token is good for",
        answers={200: wire.TokenInfo},
    ),
    Route(
        method="GET", path="/healthz", handler=healthz, scope=None, summary="Whether the process lives",
        answers={200: wire.Health},
    ),
    Route(
        method="GET", path="/readyz", handler=readyz, scope=None, summary="Whether it can serve",
        answers={200: wire.Health}, refuses=("store_unavailable", "stopping"),
    ),
    Route(
        method="GET", path="/metrics", handler=metrics, scope=None, summary="Metrics for Prometheus",
        answers={200: None},
    ),
)  # fmt: skip
