"""A service in a process of its own, on as many stores as asked for: `python -m tests.service.behind`.

Each line of standard input is a wish as JSON, each line of standard output the answer. `open` starts a server on a
store of its own and answers its port, `close` ends all of them. The others do what is not a client's to do: an
operator's settings, the upkeep of the service, the passing of time, tokens by the clock of the service, and proofs of
leases that were granted at the store.
"""

import asyncio
import contextlib
import sys
from typing import Any

import msgspec

from holdfast.core.job import ClaimRequest
from holdfast.service import openapi
from holdfast.service.app import ROUTES
from holdfast.service.listening import listen
from holdfast.service.server import running
from holdfast.service.settings import ServiceSettings
from holdfast.store import Reader, TenantSettings, WorkerInfo
from tests.service.support import TOKENS, token

# The same for all, and the dearest part of a start.
DOCUMENT = openapi.document(list(ROUTES))
openapi.document = lambda _: DOCUMENT


async def main() -> None:
    async with contextlib.AsyncExitStack() as stack:
        stores: dict[str, Any] = {}
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            wish = msgspec.json.decode(line)
            try:
                answer = {"value": await act(stack, stores, **wish)}
            except Exception as error:  # noqa: BLE001 - the caller gets it
                answer = {"error": f"{type(error).__name__}: {error}"}
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()


async def act(stack: contextlib.AsyncExitStack, stores: dict[str, Any], do: str, url: str, **more: Any) -> Any:
    if do == "close":
        stores.clear()
        return await stack.aclose()
    if do == "open":
        if url not in stores:
            sock = listen("127.0.0.1", 0, 30)
            stack.callback(sock.close)
            settings = ServiceSettings(store=url, tokens=TOKENS, upkeep=False, access_log=False)
            server = await stack.enter_async_context(running(settings, sock))
            stores[url] = server.context.store, server.port, server.context.proofs
        return stores[url][1]
    if do == "token":
        return token(more["tenant"])
    if do == "prove":
        return [stores[url][2].sign(*lease) for lease in more["leases"]]
    store = stores[url][0]
    if do == "set_tenant":
        return await store.set_tenant(more["tenant"], msgspec.convert(more["settings"], TenantSettings))
    if do == "beat":
        more["worker"] = msgspec.convert(more["worker"], WorkerInfo)
    if do == "claim":
        more["request"] = msgspec.convert(more["request"], ClaimRequest)
    if do == "set_reader":
        more["reader"] = msgspec.convert(more["reader"], Reader)
    answer = await getattr(store, do)(**more)
    return msgspec.to_builtins(answer)


if __name__ == "__main__":
    asyncio.run(main())
