"""`holdfast dev`: the service and a worker in one process, for development."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import TENANT_VARIABLE, Tenant, needing, words
from holdfast.cli.output import say
from holdfast.cli.serve import KEY_VARIABLE, address, mount_of, session_secret
from holdfast.cli.session import shown_url
from holdfast.cli.worker import JsonLogs, LogLevel, checked_level
from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from socket import socket

    from holdfast.cli.running import WorkerConfig
    from holdfast.service.server import Mount
    from holdfast.service.settings import ServiceSettings

STORE, VALKEY, TENANT = "file:.holdfast", "valkey", "dev"
LIFETIME_S = 7 * 86400.0
SAMPLES = "holdfast.cli.samples"

_GREETING = """\
Holdfast serves {url} on {store}, with a worker for tenant {tenant}. Ctrl-C stops it.
{pages}This token is valid for 7 days while the service runs. Enqueue a job, and get its result:

export HOLDFAST_TOKEN={token}
curl -s {url}/v1/jobs -H "Authorization: Bearer $HOLDFAST_TOKEN" -H 'Content-Type: application/json' \
-d '{{"queue": "samples", "type": "hello", "payload": {{"name": "you"}}, "id": "first"}}'
curl -s '{url}/v1/queues/samples/jobs/first/result?wait_s=30' -H "Authorization: Bearer $HOLDFAST_TOKEN"
"""


def dev(
    modules: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE[,MODULE...]]", help="More modules whose @job functions to run, besides the samples."
        ),
    ] = None,
    *,
    store: Annotated[
        str, typer.Option(metavar="URL", help="The store; `valkey` starts a server that runs until this command ends.")
    ] = STORE,
    tenant: Tenant = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 8000,
    dashboard: Annotated[bool, typer.Option(help="Serve the dashboard too, at /dashboard.")] = True,
    access_log: Annotated[bool, typer.Option(help="Print a JSON line for each request.")] = False,
    json_logs: JsonLogs = False,
    log_level: LogLevel = "info",
) -> None:
    """Run everything in one process for development: the HTTP API, the dashboard, and a worker with sample jobs.

    Prints the address, a token and a request to try. On this machine the dashboard opens without a login. The store is
    the directory .holdfast, unless --store names another; HOLDFAST_STORE is ignored. Tokens are signed with the key of
    the environment, or else with a new one.
    """
    import asyncio

    from holdfast.cli.running import WorkerConfig, configure_logs, exit_on_term

    with needing("dev", "service"):
        from holdfast.service.listening import is_loopback, listen
        from holdfast.service.settings import ServiceSettings, TokenSettings
        from holdfast.service.signing import new_secret, sign
        from holdfast.service.tokens import SCOPES
        from holdfast.telemetry.logging import configure_lines

    exit_on_term()
    tokens = TokenSettings(hs256_key=os.environ.get(KEY_VARIABLE) or new_secret()).check()
    whose = tenant or os.environ.get(TENANT_VARIABLE) or TENANT
    token = sign(tokens, tenant=whose, scopes=SCOPES, lifetime_s=LIFETIME_S)
    with _store(store) as url, contextlib.closing(listen(host, port, 30.0)) as sock:
        config = WorkerConfig(
            store=url, tenant=whose, modules=[SAMPLES, *(words("module", modules) or [])], handler=f"{SAMPLES}:echo",
            grace_s=5.0, json_logs=json_logs, log_level=checked_level(log_level),
        )  # fmt: skip
        configure_logs(config)
        configure_lines("holdfast.audit", *(["holdfast.access"] if access_log else []))

        def greet() -> None:
            url_of_pages = f"The dashboard: {address(sock)}/dashboard\n" if dashboard else ""
            place = {"url": address(sock), "store": shown_url(url), "tenant": whose, "pages": url_of_pages}
            say(_GREETING.format(**place, token=token), lines=True)

        # The worker does the maintenance.
        settings = ServiceSettings(store=url, tokens=tokens, access_log=access_log, upkeep=False)
        secret = session_secret(tokens) if dashboard else None
        mount = mount_of(secret, is_open=is_loopback(host), tenant=whose)
        asyncio.run(_run(config, settings, sock, greet, mount))


async def _run(
    config: WorkerConfig, settings: ServiceSettings, sock: socket, greet: Callable[[], None], mount: Mount | None
) -> None:
    import asyncio

    from holdfast.cli import samples
    from holdfast.cli.running import ignore_signals, log_events, make_worker
    from holdfast.opening import make_store
    from holdfast.queue.queue import Queue
    from holdfast.service.server import running
    from holdfast.telemetry import http as http_metrics
    from holdfast.worker.signals import on_signal

    store = make_store(config.store)
    worker = make_worker(config, store)
    log_events(worker, config)
    http_metrics.enable()
    async with running(settings, sock, store, mount) as server:
        await samples.enqueue_some(Queue(store=store, tenant=config.tenant))
        with on_signal(server.stop):
            # The worker handles signals itself.
            working = asyncio.create_task(worker.run())
            await asyncio.sleep(0)
            greet()
            await asyncio.wait([server.ended, working], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            await server.ended
            await working
        ignore_signals()


@contextlib.contextmanager
def _store(store: str) -> Generator[str]:
    """The URL of the store. For `valkey`, a server runs as long as the block."""
    if store != VALKEY:
        yield store
        return
    from holdfast.testing.servers import ServerError, ValkeyServer

    try:
        # A password, because other users of this machine can reach the port.
        server = ValkeyServer(requirepass=secrets.token_urlsafe(24))
    except ServerError as error:
        raise InvalidOption("store", str(error)) from error
    with server:
        yield server.url()
