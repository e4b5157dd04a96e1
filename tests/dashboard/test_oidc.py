"""Login at an issuer: what is accepted, and all that is refused, against a small real one."""

import base64
import hashlib
import hmac
import json
import re
import time
import uuid
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from holdfast.core.errors import InvalidOption
from holdfast.dashboard import ByToken, OidcSettings
from holdfast.dashboard import oidc as module
from holdfast.service import keys
from holdfast.service.revoked import Revocation, RevokedTokens
from tests.dashboard.issuer import CLIENT, OPERATOR, PERSON, SECRET, issuing, path_of
from tests.dashboard.support import NO_TLS, TOKENS, operator_token, site, texts, token

pytestmark = pytest.mark.asyncio

PUBLIC = "http://localhost:8001"
OVER = "This login is over."


def settings(issuer, **changes):
    given = {"issuer": issuer.url, "client_id": CLIENT, "client_secret": SECRET, "public_url": PUBLIC}
    return OidcSettings(**{**given, **changes})


@asynccontextmanager
async def sites(tokens=None, **changes):
    """A dashboard with an issuer of its own."""
    async with issuing() as issuer:
        issuer.redirects.add(f"{changes.get('public_url', PUBLIC)}/login/oidc/return")

        def access(store):
            return ByToken.of(tokens, store, oidc=settings(issuer, **changes))

        async with site(f"memory:{uuid.uuid4().hex}", access) as found:
            yield found, issuer


async def at_issuer(begun):
    """What the issuer answers a browser that was sent to it: where to go next."""
    assert begun.status_code == 303, begun.text
    async with httpx.AsyncClient(verify=NO_TLS, trust_env=False) as client:
        answer = await client.get(begun.headers["location"])
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def log_in(browser, following="/queues"):
    """Begin, go to the issuer, come back: the last answer."""
    back = await at_issuer(await browser.get("/login/oidc", params={"next": following}))
    assert back.startswith(f"{PUBLIC}/login/oidc/return?")
    return await browser.get(path_of(back))


def refused(answer, why, browser):
    """A plain reason, and no session."""
    assert (answer.status_code, why in " ".join(_texts(answer))) == (401, True), answer.text
    assert not [name for name in browser.cookies if "session" in name]
    assert "session" not in answer.headers.get("set-cookie", "")


def _texts(answer):
    return re.sub(r"<[^>]*>", " ", answer.text).replace("&#39;", "'").split("\n")


async def test_a_person_logs_in_and_sees_their_tenant(caplog):
    async with sites() as (found, issuer):
        for name in ("acme", "rival"):
            await found.queue(name).enqueue({"n": 1}, queue=f"of-{name}")
        browser = found.browser()
        assert (await browser.get("/queues")).headers["location"] == "/login?next=%2Fqueues"
        page = await browser.get("/login?next=/queues")
        assert "Log in with 127.0.0.1" in texts(page)
        assert 'name="token"' not in page.text
        answer = await log_in(browser)
        assert answer.status_code == 200
        assert 'http-equiv="refresh" content="0; url=/queues"' in answer.text
        assert "of-acme" in texts(await browser.get("/queues"))
        assert (await browser.get("/queues?tenant=rival")).status_code == 404
        caplog.set_level("INFO", "holdfast.audit")
        assert (await browser.act("/queues/pause", {"queue": "of-acme"})).status_code == 303
        assert any(
            "ann" in str(record.__dict__) + record.getMessage()
            for record in caplog.records
            if record.name == "holdfast.audit"
        )
        assert issuer.asked.count("discovery") == 1


async def test_what_is_asked_of_the_issuer_is_bound_to_this_login():
    async with sites() as (found, issuer):
        browser = found.browser()
        begun = await browser.get("/login/oidc?next=/queues")
        asked = {name: values[0] for name, values in parse_qs(urlsplit(begun.headers["location"]).query).items()}
        assert begun.headers["location"].startswith(f"{issuer.url}/authorize?")
        assert asked["redirect_uri"] == f"{PUBLIC}/login/oidc/return"
        assert asked["code_challenge_method"] == "S256"
        again = await found.browser().get("/login/oidc?next=/queues")
        other = {name: values[0] for name, values in parse_qs(urlsplit(again.headers["location"]).query).items()}
        for name in ("state", "nonce", "code_challenge"):
            assert len(asked[name]) >= 43
            assert asked[name] != other[name]
        cookie = begun.headers["set-cookie"].lower()
        for part in ("httponly", "samesite=lax", "max-age=600"):
            assert part in cookie
        assert SECRET not in begun.headers["location"] + cookie


async def test_over_tls_the_cookie_of_a_login_is_of_this_host_alone():
    async with sites(public_url="https://jobs.example.com/dashboard") as (found, _):
        begun = await found.browser(host="jobs.example.com", scheme="https").get("/login/oidc")
        cookie = begun.headers["set-cookie"]
        assert cookie.startswith("__Host-holdfast-login=")
        assert "Secure" in cookie
        assert "Path=/;" in cookie
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert asked["redirect_uri"] == ["https://jobs.example.com/dashboard/login/oidc/return"]


@pytest.mark.parametrize("host", ["evil.example", "localhost:9999"])
async def test_the_way_back_is_the_public_url_whatever_the_request_says(host):
    async with sites() as (found, _):
        begun = await found.browser(host=host).get("/login/oidc", headers={"x-forwarded-host": "evil.example"})
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert asked["redirect_uri"] == [f"{PUBLIC}/login/oidc/return"]
        assert "evil" not in begun.headers["location"]


async def test_a_wrong_state_is_refused():
    async with sites() as (found, issuer):
        browser = found.browser()
        back = path_of(await at_issuer(await browser.get("/login/oidc")))
        for bad in (re.sub(r"state=[^&]*", "state=guessed", back), re.sub(r"&?state=[^&]*", "", back)):
            begun = await browser.get("/login/oidc")
            assert begun.status_code == 303
            refused(await browser.get(bad), "This is the answer to another login.", browser)
        assert "token" not in issuer.asked


async def test_a_login_that_began_in_another_browser_is_refused():
    """Login fixation: a person is sent the answer to another person's login."""
    async with sites() as (found, issuer):
        prepared, victim = found.browser(), found.browser()
        back = path_of(await at_issuer(await prepared.get("/login/oidc")))
        refused(await victim.get(back), "did not begin in this browser", victim)
        await victim.get("/login/oidc")
        refused(await victim.get(back), "another login", victim)
        for name in ("holdfast-login", "__Host-holdfast-login", "holdfast-session"):
            victim.cookies.set(name, "chosen-by-another")
            refused(await victim.get(back), "did not begin in this browser", found.browser())
            victim.cookies.clear()
        assert "token" not in issuer.asked


async def test_a_cookie_of_another_purpose_begins_no_login():
    async with sites(TOKENS) as (found, _):
        browser = await found.logged_in(token())
        ((_, session),) = browser.cookies.items()
        other = found.browser()
        back = path_of(await at_issuer(await other.get("/login/oidc")))
        other.cookies.clear()
        other.cookies.set("holdfast-login", session)
        refused(await other.get(back), "did not begin in this browser", other)


async def test_a_replayed_answer_is_refused():
    async with sites() as (found, issuer):
        browser = found.browser()
        begun = await browser.get("/login/oidc")
        kept = browser.cookies["holdfast-login"]
        back = path_of(await at_issuer(begun))
        assert (await browser.get(back)).status_code == 200
        assert "holdfast-login" not in browser.cookies
        copy = found.browser()
        copy.cookies.set("holdfast-login", kept)
        refused(await copy.get(back), OVER, copy)
        assert issuer.asked.count("token") == 1


async def test_a_replayed_code_is_refused_by_the_issuer():
    async with sites() as (found, issuer):
        browser = found.browser()
        first = path_of(await at_issuer(await browser.get("/login/oidc")))
        assert (await browser.get(first)).status_code == 200
        other = found.browser()
        second = path_of(await at_issuer(await other.get("/login/oidc")))
        used = re.search(r"code=[^&]*", first)[0]
        refused(await other.get(re.sub(r"code=[^&]*", used, second)), "did not accept the code", other)
        assert issuer.asked.count("token") == 2


async def test_a_code_of_another_login_is_refused_by_its_verifier():
    """A code that was stolen on its way is of no use: PKCE."""
    async with sites() as (found, _):
        victim, thief = found.browser(), found.browser()
        stolen = re.search(r"code=[^&]*", path_of(await at_issuer(await victim.get("/login/oidc"))))[0]
        back = path_of(await at_issuer(await thief.get("/login/oidc")))
        refused(await thief.get(re.sub(r"code=[^&]*", stolen, back)), "did not accept the code", thief)


async def test_a_login_that_took_too_long_is_refused(monkeypatch):
    monkeypatch.setattr(module, "PENDING_S", -1)
    async with sites() as (found, issuer):
        browser = found.browser()
        refused(await log_in(browser), OVER, browser)
        assert "token" not in issuer.asked


_OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.mark.parametrize(
    "changes, why",
    [
        ({"nonce": "another"}, "made for another login"),
        ({"nonce": None}, "made for another login"),
        ({"nonce": 7}, "made for another login"),
        ({"aud": "another"}, "another audience"),
        ({"aud": None}, "lacks one of"),
        ({"aud": [CLIENT, "another"]}, "another client"),
        ({"aud": [CLIENT, "another"], "azp": "another"}, "another client"),
        ({"azp": "another"}, "another client"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": None}, "lacks one of"),
        ({"exp": int(time.time()) - 60}, "has expired"),
        ({"exp": None}, "lacks one of"),
        ({"nbf": int(time.time()) + 3600}, "not valid yet"),
        ({"iat": None}, "lacks `sub` or `iat`"),
        ({"sub": None}, "lacks `sub` or `iat`"),
        ({"sub": ""}, "lacks `sub` or `iat`"),
        ({"tid": "no/such tenant"}, "not the name of a tenant"),
        ({"tid": ["acme"]}, "not the name of a tenant"),
        ({"tid": None}, "has no claim"),
        ({"tid": None, "roles": ["jobs:read", "admin"]}, "has no claim"),
        ({"roles": []}, "no role for this dashboard"),
        ({"roles": None}, "no role for this dashboard"),
        ({"roles": ["root", {"jobs:admin": 1}, 7]}, "no role for this dashboard"),
        ({"roles": {"jobs:admin": True}}, "no role for this dashboard"),
    ],
)
async def test_an_id_token_with_wrong_claims_is_refused(changes, why):
    async with sites() as (found, issuer):
        issuer.changes = changes
        browser = found.browser()
        refused(await log_in(browser), why, browser)


def _unsigned(claims, **header):
    parts = (json.dumps({"typ": "JWT", **header}).encode(), json.dumps(claims).encode())
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def _with_none(_, claims):
    return f"{_unsigned(claims, alg='none').decode()}."


def _with_public_key(issuer, claims):
    """The confusion of algorithms: HS256, with the public key as the secret."""
    text = _unsigned(claims, alg="HS256", kid="one")
    digest = hmac.new(issuer.public_pem, text, hashlib.sha256).digest()
    return f"{text.decode()}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def _with_secret(_, claims):
    return jwt.encode(claims, SECRET * 2, algorithm="HS256", headers={"kid": "one"})


def _with_other_key(_, claims):
    return jwt.encode(claims, _OTHER_KEY, algorithm="RS256", headers={"kid": "one"})


def _with_other_algorithm(issuer, claims):
    return jwt.encode(claims, issuer.private, algorithm="RS512", headers={"kid": "one"})


def _with_key_inside(_, claims):
    key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(_OTHER_KEY.public_key()))
    return jwt.encode(claims, _OTHER_KEY, algorithm="RS256", headers={"jwk": key})


@pytest.mark.parametrize(
    "forged", [_with_none, _with_public_key, _with_secret, _with_other_key, _with_other_algorithm, _with_key_inside]
)
async def test_an_id_token_that_the_issuer_did_not_sign_is_refused(forged, monkeypatch):
    async with sites() as (found, issuer):
        issuer.sign = lambda claims: forged(issuer, claims)
        browser = found.browser()
        refused(await log_in(browser), "the token is not accepted", browser)
        issuer.sign = issuer.signed
        assert (await log_in(browser)).status_code == 200


@pytest.mark.parametrize(
    "to",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/ok\r\nset-cookie: a=b", ""],
)
async def test_a_login_leads_to_our_own_pages_alone(to):
    async with sites() as (found, _):
        answer = await log_in(found.browser(), to)
        assert answer.status_code == 200
        assert 'content="0; url=/"' in answer.text
        assert "evil" not in answer.text


async def test_hostile_parameters_of_the_answer_are_not_shown():
    async with sites() as (found, _):
        browser = found.browser()
        begun = await browser.get("/login/oidc")
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        asked = {"state": state, "error": "<script>alert(1)</script>", "error_description": "call 555"}
        answer = await browser.get("/login/oidc/return", params=asked)
        refused(answer, "The issuer could not log you in.", browser)
        assert "555" not in answer.text
        assert "alert(1)" not in answer.text
        begun = await browser.get("/login/oidc")
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        answer = await browser.get("/login/oidc/return", params={"state": state, "error": "access_denied"})
        refused(answer, "The login was declined.", browser)


async def test_an_answer_of_another_issuer_is_refused():
    async with sites() as (found, issuer):
        browser = found.browser()
        back = path_of(await at_issuer(await browser.get("/login/oidc")))
        refused(await browser.get(f"{back}&iss=https://evil.example"), "from another issuer", browser)
        assert "token" not in issuer.asked


async def test_a_login_rotates_the_session():
    """Fixation: what a browser had before a login opens nothing after it."""
    async with sites(TOKENS) as (found, _):
        browser = await found.logged_in(token("rival"))
        ((name, before),) = browser.cookies.items()
        assert (await log_in(browser)).status_code == 200
        assert browser.cookies[name] != before
        old = found.browser()
        old.cookies.set(name, before)
        assert (await old.get("/queues")).status_code == 303
        assert (await browser.get("/queues?tenant=acme")).status_code == 200
        answer = await found.browser().log_in(token("acme"))
        assert answer.status_code == 303


async def test_roles_become_scopes(monkeypatch):
    roles = {"oncall": "read,admin", "desk": "read"}
    async with sites(roles=roles, roles_claim="realm.roles", tenant_claim="org") as (found, issuer):
        for name in ("acme", "rival"):
            await found.queue(name).enqueue({"n": 1}, queue=f"of-{name}")
        for given, status in [(["oncall"], 303), (["desk"], 403), ("desk other", 403), (["desk", "oncall"], 303)]:
            issuer.claims = {"org": "acme", "tid": "another-directory", "realm": {"roles": given}}
            browser = found.browser()
            assert (await log_in(browser)).status_code == 200, given
            assert (await browser.act("/queues/pause", {"queue": "of-acme"})).status_code == status, given


async def test_an_operator_has_no_tenant_and_sees_all():
    async with sites() as (found, issuer):
        for name in ("acme", "rival"):
            await found.queue(name).enqueue({"n": 1}, queue=f"of-{name}")
        issuer.claims = OPERATOR
        browser = found.browser()
        await log_in(browser)
        assert {"acme", "rival"} <= set(texts(await browser.get("/tenants")))
        issuer.claims = {**OPERATOR, "tid": "acme"}
        browser = found.browser()
        await log_in(browser)
        assert (await browser.get("/tenants")).status_code == 404
        issuer.claims = {**PERSON, "queues": ["mail"]}
        browser = found.browser()
        await log_in(browser)
        assert "of-acme" not in (await browser.get("/queues")).text


async def test_a_revoked_person_is_out(monkeypatch):
    async with sites() as (found, _):
        browser = found.browser()
        await log_in(browser)
        assert (await browser.get("/queues")).status_code == 200
        monkeypatch.setattr("holdfast.service.revoked.RENEW_S", 0)
        monkeypatch.setattr("holdfast.service.revoked.MAX_AGE_S", 0)
        await RevokedTokens(found.store).add(Revocation("acme", "sub", "ann"))
        assert (await browser.get("/queues")).status_code == 303


async def test_tokens_and_the_issuer_open_the_same_dashboard():
    async with sites(TOKENS) as (found, _):
        shown = texts(await found.browser().get("/login"))
        assert "Log in with 127.0.0.1" in shown
        assert "Log in with a token" in shown
        assert (await (await found.logged_in(operator_token())).get("/tenants")).status_code == 200
    async with sites() as (found, _):
        browser = found.browser()
        form = re.search(r'name="form_token" value="([^"]*)"', (await browser.get("/login")).text)
        assert form is None
        assert (await browser.send_form("/login", {"token": token()})).status_code == 404


async def test_without_an_issuer_its_routes_do_not_exist(guarded):
    for path in ("/login/oidc", "/login/oidc/return?code=a&state=b"):
        assert (await guarded.browser().get(path)).status_code == 404


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://evil.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"padding": "x" * (keys.MAX_BYTES + 1)},
    ],
)
async def test_a_document_that_cannot_be_trusted_is_not_used(document):
    async with sites() as (found, issuer):
        issuer.document = document
        answer = await found.browser().get("/login/oidc")
        assert answer.status_code == 503
        assert "The issuer cannot be reached. Try again in a moment." in answer.text
        assert "location" not in answer.headers


async def test_an_issuer_that_is_down_is_asked_again_later(monkeypatch):
    async with sites() as (found, issuer):
        issuer.status = 500
        browser = found.browser()
        for _ in range(3):
            assert (await browser.get("/login/oidc")).status_code == 503
        assert issuer.asked.count("discovery") == 1
        issuer.status = 200
        monkeypatch.setattr(module, "RENEW_S", -1.0)
        assert (await browser.get("/login/oidc")).status_code == 303


async def test_an_address_that_guesses_must_wait(monkeypatch):
    async with sites() as (found, _):
        found.dashboard.access.issuer._bad._rate = 0.01
        guesser = found.browser(address="10.0.0.7")
        answers = [(await guesser.get("/login/oidc/return?code=a&state=b")).status_code for _ in range(3)]
        assert answers == [401, 429, 429]
        assert (await found.browser(address="10.0.0.9").get("/login/oidc/return?code=a&state=b")).status_code == 401


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "http://issuer.example"},
        {"issuer": "issuer.example"},
        {"public_url": "http://jobs.example"},
        {"public_url": "https://jobs.example/?a=b"},
        {"public_url": ""},
        {"client_id": ""},
        {"scope": "profile"},
        {"roles": {"ops": "root"}},
    ],
)
async def test_settings_that_cannot_work_are_refused(changes):
    given = {"issuer": "https://issuer.example", "client_id": "a", "public_url": "https://jobs.example"}
    OidcSettings(**given).check()
    with pytest.raises(InvalidOption):
        OidcSettings(**{**given, **changes}).check()
