"""A dashboard on a store in memory, and browsers of it that are plain HTTP clients."""

import asyncio
import re
import ssl
from contextlib import asynccontextmanager, closing
from html.parser import HTMLParser

import httpx
from msgspec.structs import replace

from holdfast import Queue
from holdfast.dashboard import ByToken, Dashboard, OnLoopback
from holdfast.opening import open_store
from holdfast.service.listening import Server, listen
from holdfast.service.settings import Limits, TokenSettings
from holdfast.service.shares import Shares
from holdfast.service.signing import sign

KEY = "a key that is long enough for HS256, and for tests of the dashboard"
TOKENS = TokenSettings(hs256_key=KEY)
ALL = ("read", "produce", "admin")
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def token(tenant="acme", scopes=ALL, **options):
    return sign(TOKENS, tenant=tenant, scopes=scopes, **options)


def operator_token(scopes=("operator", *ALL), **options):
    return sign(TOKENS, tenant=None, scopes=scopes, **options)


class Browser(httpx.AsyncClient):
    """What a browser sends with its requests, without a script."""

    def __init__(self, dashboard, *, host="localhost:8001", scheme="http", address="127.0.0.1"):
        transport = httpx.ASGITransport(dashboard, client=(address, 50000))
        super().__init__(transport=transport, base_url=f"{scheme}://{host}", verify=NO_TLS, trust_env=False)
        self.origin = f"{scheme}://{host}"

    async def send_form(self, path, fields=(), **headers):
        """Send a form as a page of ours does: with its token, and with where it comes from."""
        given = {"origin": self.origin, "sec-fetch-site": "same-origin", **headers}
        sent = {name: value for name, value in given.items() if value is not None}
        return await self.post(path, data=dict(fields), headers=sent)

    async def form_token(self, path="/queues"):
        return field(await self.get(path), "form_token")

    async def act(self, path, fields=(), page="/queues"):
        """Press a button of a page."""
        return await self.send_form(path, {"form_token": await self.form_token(page), **dict(fields)})

    async def log_in(self, bearer):
        form = field(await self.get("/login"), "form_token")
        return await self.send_form("/login", {"token": bearer, "form_token": form})


class Site:
    """A dashboard, its store, and Queues on it."""

    def __init__(self, dashboard, store):
        self.dashboard, self.store = dashboard, store

    def queue(self, tenant="acme"):
        return Queue(store=self.store, tenant=tenant)

    def browser(self, **options):
        return Browser(self.dashboard, **options)

    async def logged_in(self, bearer, **options):
        browser = self.browser(**options)
        answer = await browser.log_in(bearer)
        assert answer.status_code == 303, answer.text
        return browser


@asynccontextmanager
async def site(url, access=None, **options):
    store = await open_store(url)
    try:
        chosen = OnLoopback() if access is None else access(store)
        dashboard = Dashboard(store, chosen, **options)
        async with dashboard.lifespan():
            yield Site(dashboard, store)
    finally:
        await store.close()


@asynccontextmanager
async def served(found):
    """The dashboard on a socket: its address."""
    limits = Limits()
    with closing(listen("127.0.0.1", 0, 30.0)) as sock:
        server = Server(found.dashboard, limits, Shares("connections"))
        ended = asyncio.create_task(server.serve(sockets=[sock]))
        await server.up.wait()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            found.dashboard.stop()
            await ended


def by_token(store):
    return ByToken.of(replace(TOKENS), store)


def field(answer, name):
    """The value of a hidden field."""
    found = re.search(rf'name="{name}" value="([^"]*)"', answer.text)
    assert found, answer.text
    return found[1]


class _Texts(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.texts, self.tags, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data):
        if data.strip():
            self.texts.append(" ".join(data.split()))


def parsed(answer):
    """The texts, tags and attributes of a page."""
    page = _Texts()
    page.feed(answer.text)
    return page


def texts(answer):
    assert answer.status_code == 200, (answer.status_code, answer.text)
    return parsed(answer).texts
