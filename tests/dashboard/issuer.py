"""A small OpenID Connect issuer on a socket: discovery, keys, codes with PKCE, and id tokens signed with RSA."""

import asyncio
import base64
import hashlib
import json
import secrets
import time
from contextlib import asynccontextmanager, closing
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
import uvicorn
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.service.listening import listen

CLIENT, SECRET = "holdfast-dashboard", "a secret : of the client / + %"
OPERATOR = {"roles": ["jobs:operator", "jobs:read", "jobs:produce", "jobs:admin"]}
PERSON = {"tid": "acme", "roles": ["jobs:read", "jobs:produce", "jobs:admin"]}


class TestIssuer:
    """It logs every caller in, with `claims`. `changes` are made to the next tokens, `sign` replaces the signature."""

    __test__ = False

    def __init__(self, url):
        self.url = url
        self.private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.claims, self.changes, self.document = dict(PERSON), {}, {}
        self.sign = self.signed
        self.redirects, self.asked, self.codes, self.status = set(), [], {}, 200
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/jwks", self._jwks),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
            ]
        )

    def signed(self, claims):
        return jwt.encode(claims, self.private, algorithm="RS256", headers={"kid": "one"})

    @property
    def public_pem(self):
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.private.public_key().public_bytes(serialization.Encoding.PEM, form)

    async def _discovery(self, _):
        self.asked.append("discovery")
        found = {
            "issuer": self.url, "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token", "jwks_uri": f"{self.url}/jwks",
        }  # fmt: skip
        return JSONResponse({**found, **self.document}, self.status)

    async def _jwks(self, _):
        self.asked.append("jwks")
        key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.private.public_key()))
        return JSONResponse({"keys": [{**key, "kid": "one", "use": "sig", "alg": "RS256"}]})

    async def _authorize(self, request):
        query = request.query_params
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        if query["redirect_uri"] not in self.redirects:
            return Response("this way back is not registered", 400)
        code = secrets.token_urlsafe(16)
        self.codes[code] = dict(query)
        return RedirectResponse(f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}", 303)

    async def _token(self, request):
        self.asked.append("token")
        form = dict(parse_qsl((await request.body()).decode()))
        known = self.codes.pop(form["code"], None)
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
        if known is None or known["redirect_uri"] != form["redirect_uri"] or known["code_challenge"] != digest:
            return JSONResponse({"error": "invalid_grant"}, 400)
        user, _, password = base64.b64decode(request.headers["authorization"].split()[1]).decode().partition(":")
        if (user, password) != (CLIENT, "a%20secret%20%3A%20of%20the%20client%20%2F%20%2B%20%25"):
            return JSONResponse({"error": "invalid_client"}, 401)
        now = int(time.time())
        claims = {
            "iss": self.url, "aud": CLIENT, "sub": "ann", "iat": now, "exp": now + 300, "nonce": known["nonce"],
            **self.claims, **self.changes,
        }  # fmt: skip
        token = self.sign({name: value for name, value in claims.items() if value is not None})
        return JSONResponse({"access_token": "not-used", "token_type": "Bearer", "id_token": token})


@asynccontextmanager
async def issuing():
    with closing(listen("127.0.0.1", 0, 30.0)) as sock:
        found = TestIssuer(f"http://127.0.0.1:{sock.getsockname()[1]}")
        server = uvicorn.Server(uvicorn.Config(found.app, log_config=None, lifespan="off"))
        ended = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            yield found
        finally:
            server.should_exit = True
            await ended


def path_of(location):
    """The path and query of an address."""
    parts = urlsplit(location)
    return f"{parts.path}?{parts.query}"
