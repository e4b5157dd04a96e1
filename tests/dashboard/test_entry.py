"""Where the dashboard runs: in an application of your own, in the service, and by its command."""

import asyncio
import signal
import urllib.error
import urllib.request
import uuid
from contextlib import asynccontextmanager, closing
from functools import partial

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from holdfast import Queue
from holdfast.core.errors import InvalidOption
from holdfast.dashboard import OnLoopback, mount_dashboard
from holdfast.dashboard.server import in_service, session_key
from holdfast.service.listening import listen
from holdfast.service.server import running
from holdfast.service.settings import ServiceSettings
from tests.dashboard.support import KEY, TOKENS, Browser, field, texts, token
from tests.dashboard.test_live import client, stream
from tests.unit.cli.support import Processes


@pytest.mark.parametrize("make", [FastAPI, Starlette])
async def test_it_is_mounted_in_an_application_of_ones_own(make):
    app = make()
    app.router.routes.append(Route("/", lambda _: PlainTextResponse("ours")))
    store = f"memory:{uuid.uuid4().hex}"
    mount_dashboard(app, store, path="/ops/queues", tokens=TOKENS)
    async with app.router.lifespan_context(app), Queue(store, tenant="acme") as queue:
        await queue.enqueue({"n": 1}, queue="mail", id="a")
        browser = Browser(app)
        assert (await browser.get("/")).text == "ours"
        answer = await browser.get("/ops/queues/queues")
        assert answer.headers["location"] == "/ops/queues/login?next=%2Fops%2Fqueues%2Fqueues"
        form = field(await browser.get("/ops/queues/login"), "form_token")
        answer = await browser.send_form("/ops/queues/login", {"token": token(), "form_token": form})
        assert answer.headers["location"] == "/ops/queues/"
        assert "Path=/ops/queues;" in answer.headers["set-cookie"]
        page = await browser.get("/ops/queues/queues")
        assert "mail" in texts(page)
        for name in ("href", "src", "formaction", "action"):
            assert f'{name}="/' not in page.text.replace(f'{name}="/ops/queues/', "")
        form = {"form_token": field(page, "form_token"), "queue": "mail"}
        assert (await browser.send_form("/ops/queues/queues/pause", form)).status_code == 303
        assert (await queue.stats("mail")).paused


@pytest.mark.parametrize(
    "options", [{}, {"tokens": TOKENS, "access": OnLoopback()}, {"access": OnLoopback(), "path": "x"}]
)
def test_a_mount_says_who_may_look(options):
    with pytest.raises(InvalidOption):
        mount_dashboard(Starlette(), "memory:", **options)


@asynccontextmanager
async def service(**options):
    url = f"memory:{uuid.uuid4().hex}"
    settings = ServiceSettings(store=url, tokens=TOKENS, upkeep=False)
    with closing(listen("127.0.0.1", 0, 30.0)) as sock:
        mount = partial(in_service, key=session_key(KEY), **options)
        async with running(settings, sock, mount=mount) as server, client(f"http://127.0.0.1:{server.port}") as browser:
            yield server, browser, url


async def test_the_service_serves_it_beside_the_api():
    async with service() as (server, browser, url), Queue(url, tenant="acme") as queue:
        await queue.enqueue({"n": 1}, queue="mail", id="a")
        assert (await browser.get("/v1/queues")).status_code == 401
        assert (await browser.get("/dashboards")).status_code == 404
        answer = await browser.get("/dashboard/queues")
        assert answer.headers["location"].startswith("/dashboard/login?")
        form = field(await browser.get("/dashboard/login"), "form_token")
        origin = {"origin": f"http://127.0.0.1:{server.port}"}
        fields = {"token": token(), "form_token": form}
        answer = await browser.post("/dashboard/login", data=fields, headers=origin)
        assert answer.status_code == 303
        page = await browser.get("/dashboard/queues")
        assert "mail" in texts(page)
        assert page.headers.get_list("cache-control") == ["no-store"]
        assert page.headers.get_list("x-content-type-options") == ["nosniff"]
        assert "immutable" in (await browser.get("/dashboard/static/dashboard.css")).headers["cache-control"]
        # The session opens pages, and no route of the API.
        assert (await browser.get("/v1/queues")).status_code == 401
        async with stream(browser, "/queues", path="/dashboard/live") as found:
            await anext(found)
            assert server.context.streams.used_by("acme") == 1
            server.stop()
            assert [one async for one in found] == []


async def test_requests_for_pages_count_as_requests_of_the_tenant():
    async with service(is_open=True, tenant="acme") as (server, browser, _):
        assert (await browser.get("/dashboard/queues")).status_code == 200
        server.context.requests.rate_of = lambda tenant: 1
        statuses = {(await browser.get("/dashboard/queues?tenant=acme")).status_code for _ in range(50)}
        assert 429 in statuses


def _get(address, **headers):
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_command_prints_the_address_and_ends_on_a_signal(tmp_path):
    async def fill():
        async with Queue(f"file:{tmp_path}/data", tenant="acme") as queue:
            await queue.enqueue({"n": 1}, queue="mail", id="a")

    asyncio.run(fill())
    with Processes() as processes:
        process = processes.start("dashboard", "--store", f"file:{tmp_path}/data", "--port", "0", cwd=tmp_path)
        line = process.stdout.readline()
        address = line.rpartition(" ")[2].strip()
        assert line.startswith(f"Dashboard of file:{tmp_path}/data: http://127.0.0.1:")
        status, text = _get(f"{address}queues")
        assert (status, "mail" in text) == (200, True)
        assert _get(f"{address}queues", Host="evil.example")[0] == 403
        assert process.end(signal.SIGTERM).code == 0


@pytest.mark.parametrize("trusted", [True, False])
def test_the_command_trusts_the_proxies_that_it_is_given(tmp_path, trusted):
    """Behind one that ends TLS, the session's cookie is for TLS alone."""

    async def fill():
        async with Queue(f"file:{tmp_path}/data", tenant="acme") as queue:
            await queue.enqueue({"n": 1}, queue="mail", id="a")

    asyncio.run(fill())
    (tmp_path / "key").write_text(KEY)
    with Processes() as processes:
        arguments = ["--store", f"file:{tmp_path}/data", "--port", "0", "--jwt-hs256-key-file", str(tmp_path / "key")]
        arguments += ["--host", "0.0.0.0"] + ["--trusted-proxies", "127.0.0.0/8"] * trusted
        process = processes.start("dashboard", *arguments, cwd=tmp_path)
        port = process.stdout.readline().rstrip().rstrip("/").rpartition(":")[2]
        base, forwarded = f"http://127.0.0.1:{port}", {"x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.1"}
        with httpx.Client(base_url=base, headers=forwarded, trust_env=False) as browser:
            fields = {"token": token(), "form_token": field(browser.get("/login"), "form_token")}
            answer = browser.post("/login", data=fields, headers={"origin": base})
            cookie = answer.headers["set-cookie"].lower()
            assert ("secure" in cookie, cookie.startswith("__host-")) == (trusted, trusted)
            assert ("strict-transport-security" in answer.headers) == trusted


def test_the_command_needs_a_key_to_listen_elsewhere_and_a_store_that_exists(tmp_path):
    with Processes() as processes:
        store = ("--store", f"file:{tmp_path}/none", "--port", "0")
        answer = processes.run("dashboard", *store, "--host", "0.0.0.0")
        assert (answer.code, "HOLDFAST_JWT_HS256_KEY" in answer.err) == (2, True), answer.err
        answer = processes.run("dashboard", *store)
        assert answer.code == 1, answer.err
        assert not (tmp_path / "none").exists()
