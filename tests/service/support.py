"""A server on a real socket, tokens for it, and clients of it."""

import http.server
import json
import ssl
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import httpx
import jwt

from holdfast.service.listening import listen
from holdfast.service.server import running
from holdfast.service.settings import Limits, ServiceSettings, TokenSettings
from holdfast.service.signing import sign

KEY = "a key that is long enough for HS256, and even for HS512, in tests"
TOKENS = TokenSettings(hs256_key=KEY)
ALL = ("produce", "work", "read", "admin")
PATIENCE_S = 30
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""httpx would make one for each client, and take its time."""


def token(tenant="acme", scopes=ALL, settings=TOKENS, **options):
    return sign(settings, tenant=tenant, scopes=scopes, **options)


async def read_to_the_end(reader):
    """All bytes until the end. A server that closes a connection with unread bytes resets it: that is an end, too."""
    found = b""
    with suppress(ConnectionResetError):
        while some := await reader.read(65536):
            found += some
    return found


def claims(**changes):
    """The claims of a valid token, with changes; None removes one."""
    now = int(time.time())
    good = {
        "iss": "holdfast", "aud": "holdfast", "tid": "acme", "iat": now, "exp": now + 600,
        "scope": "jobs:produce jobs:work jobs:read jobs:admin",
    }  # fmt: skip
    return {name: value for name, value in {**good, **changes}.items() if value is not None}


def signed(key=KEY, algorithm="HS256", headers=None, **changes):
    """A token of these claims, signed by hand."""
    return jwt.encode(claims(**changes), key, algorithm=algorithm, headers=headers)


class Client(httpx.AsyncClient):
    """A client with a token."""

    def __init__(self, port, bearer=None, **options):
        headers = {} if bearer is None else {"authorization": f"Bearer {bearer}"}
        base = f"http://127.0.0.1:{port}"
        super().__init__(base_url=base, headers=headers, timeout=PATIENCE_S, verify=NO_TLS, trust_env=False, **options)

    async def enqueue(self, **job):
        answer = await self.post("/v1/jobs", json=job)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    async def claim(self, *queues, **options):
        answer = await self.post("/v1/claims", json={"queues": list(queues or ["default"]), **options})
        assert answer.status_code == 200, answer.text
        return answer.json()["jobs"]

    async def finish(self, job, outcome="complete", **more):
        lease = {"queue": job["queue"], "id": job["id"], "token": job["token"], "outcome": outcome, **more}
        answer = await self.post("/v1/leases:finish", json={"leases": [lease]})
        assert answer.status_code == 200, answer.text
        return answer.json()["items"][0]


class Service:
    """A running server and its clients."""

    def __init__(self, server, stack):
        self.server = server
        self.port = server.port
        self.context = server.context
        self._stack = stack

    async def client(self, tenant="acme", scopes=ALL, **options):
        return await self._stack.enter_async_context(Client(self.port, token(tenant, scopes, **options)))

    async def bare(self, bearer=None, **options):
        return await self._stack.enter_async_context(Client(self.port, bearer, **options))


@asynccontextmanager
async def serving(url, *, tokens=TOKENS, store=None, blobs=None, proxies="", **limits):
    settings = ServiceSettings(
        store=url, tokens=tokens, limits=Limits(**limits), blobs=blobs, upkeep=False, proxies=proxies
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        sock = listen("127.0.0.1", 0, 30)
        stack.callback(sock.close)
        server = await stack.enter_async_context(running(settings, sock, store))
        # Clients go before the server: it waits for their connections to end.
        async with AsyncExitStack() as clients:
            yield Service(server, clients)


def problem(answer, status, code):
    """Check that an answer is this problem."""
    assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == status
    return answer.json()


class Issuer:
    """A server that serves a key set, and counts the requests."""

    def __init__(self):
        self.keys, self.asked, self.status = [], 0, 200
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.asked += 1
                self.send_response(issuer.status)
                if issuer.status == 302:
                    self.send_header("location", "/elsewhere")
                self.end_headers()
                self.wfile.write(json.dumps({"keys": issuer.keys}).encode())

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/jwks.json"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
