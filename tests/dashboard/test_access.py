"""Who may look and act, on the raw requests."""

import base64
import json
import re
import uuid
from urllib.parse import urlencode

import pytest

from holdfast.core.job import JobKey
from holdfast.dashboard import ByToken
from holdfast.dashboard.guard import POLICY
from holdfast.service.keys import Keys
from holdfast.service.revoked import Revocation, Revoked, RevokedTokens
from holdfast.service.settings import Limits
from holdfast.service.tokens import Tokens
from tests.dashboard.making import fail
from tests.dashboard.support import ALL, KEY, TOKENS, field, operator_token, site, texts, token
from tests.service.support import serving, signed

pytestmark = pytest.mark.asyncio

PATHS = ("/queues", "/queues?fragment=table", "/live?page=/queues")


async def test_every_answer_has_the_headers_of_a_strict_page(opened, guarded):
    for browser, path in [
        (opened.browser(), "/queues"), (opened.browser(), "/nowhere"), (opened.browser(host="evil.example"), "/queues"),
        (guarded.browser(), "/queues"), (guarded.browser(), "/login"), (guarded.browser(), "/static/dashboard.js"),
    ]:  # fmt: skip
        headers = (await browser.get(path)).headers
        assert headers["content-security-policy"] == POLICY
        assert "default-src 'self'" in POLICY
        assert "unsafe" not in POLICY
        assert "frame-ancestors 'none'" in POLICY
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert ("immutable" if "static" in path else "no-store") in headers["cache-control"]


async def test_a_page_on_loopback_opens_without_a_login(opened):
    await opened.queue().enqueue({"n": 1}, queue="mail")
    for host in ("localhost:8001", "127.0.0.1:8001", "[::1]:8001", "localhost"):
        answer = await opened.browser(host=host).get("/queues")
        assert "mail" in texts(answer)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8001", "10.0.0.1", "127.0.0.1.evil.example"])
async def test_a_request_with_a_rebound_host_name_is_refused(opened, host):
    await opened.queue().enqueue({"n": 1}, queue="mail")
    for path in PATHS:
        answer = await opened.browser(host=host).get(path)
        assert answer.status_code == 403
        assert "mail" not in answer.text


async def test_a_request_from_another_machine_or_through_a_proxy_is_refused_without_a_login(opened):
    assert (await opened.browser(address="10.1.2.3").get("/queues")).status_code == 403
    for name in ("x-forwarded-for", "forwarded", "x-real-ip"):
        answer = await opened.browser().get("/queues", headers={name: "10.1.2.3"})
        assert answer.status_code == 403


async def test_without_a_session_nothing_is_shown(guarded):
    await guarded.queue().enqueue({"n": 1}, queue="mail")
    browser = guarded.browser()
    answer = await browser.get("/queues?state=ready")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fqueues%3Fstate%3Dready")
    for path in PATHS[1:]:
        answer = await browser.get(path)
        assert (answer.status_code, "mail" in answer.text) == (401, False)
    answer = await browser.send_form("/queues/pause", {"queue": "mail"})
    assert answer.status_code == 401
    assert not (await guarded.store.stats("acme", ["mail"]))[0].paused


async def test_a_token_opens_its_tenant_and_no_other(guarded):
    await guarded.queue("acme").enqueue({"n": 1}, queue="mail")
    await guarded.queue("rival").enqueue({"n": 1}, queue="secret")
    browser = await guarded.logged_in(token("acme"))
    assert "mail" in texts(await browser.get("/queues"))
    for path in ("/queues?tenant=rival", "/queues?tenant=rival&fragment=table", "/live?page=/queues&tenant=rival",
                 "/tenants", "/live?page=/tenants", "/queues?tenant=nobody"):  # fmt: skip
        answer = await browser.get(path)
        assert (answer.status_code, "secret" in answer.text) == (404, False), path
    answer = await browser.act("/queues/pause?tenant=rival", {"queue": "secret"})
    assert answer.status_code == 404
    assert not (await guarded.store.stats("rival", ["secret"]))[0].paused


async def test_scripts_and_other_sites_cannot_use_the_session_cookie(guarded):
    answer = await guarded.browser().log_in(token())
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert "secure" not in cookie
    answer = await guarded.browser(scheme="https").log_in(token())
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-")
    assert "Secure" in cookie
    assert "strict-transport-security" in answer.headers


async def test_no_url_cookie_or_page_contains_the_token(guarded):
    bearer = token()
    browser = guarded.browser()
    answer = await browser.log_in(bearer)
    shown = await browser.get(answer.headers["location"], follow_redirects=True)
    for text in (answer.headers["location"], str(answer.headers), shown.text):
        assert bearer not in text
        assert bearer.rpartition(".")[2] not in text
    assert (await guarded.browser().get(f"/login?token={bearer}")).status_code == 200
    assert (await guarded.browser().get(f"/queues?token={bearer}")).status_code == 303


async def test_a_session_id_set_by_an_attacker_is_not_used(guarded):
    """Fixation: a cookie of before the login is replaced, and opens nothing afterwards."""
    browser = await guarded.logged_in(token("acme"))
    ((name, before),) = browser.cookies.items()
    form = field(await guarded.browser().get("/login"), "form_token")
    await browser.send_form("/login", {"token": token("rival"), "form_token": form})
    ((_, after),) = browser.cookies.items()
    assert before != after
    assert _claims(before)["session"] != _claims(after)["session"]
    foreign = guarded.browser()
    foreign.cookies.set(name, "chosen-by-another")
    assert (await foreign.get("/queues")).status_code == 303
    answer = await foreign.log_in(token())
    assert answer.status_code == 303
    assert "chosen-by-another" not in answer.headers["set-cookie"]


async def test_a_changed_cookie_opens_nothing(guarded):
    browser = await guarded.logged_in(token("acme"))
    ((name, cookie),) = browser.cookies.items()
    claims, _, digest = cookie.rpartition(".")
    changed = json.dumps({**_claims(cookie), "tenant": "rival"}).encode()
    for bad in (base64.urlsafe_b64encode(changed).decode() + "." + digest, claims, claims + ".", "." + digest, "x"):
        other = guarded.browser()
        other.cookies.set(name, bad)
        assert (await other.get("/queues")).status_code == 303


async def test_a_session_ends_with_logging_out_and_with_its_token(guarded):
    browser = await guarded.logged_in(token())
    ((name, cookie),) = browser.cookies.items()
    form = await browser.form_token()
    assert (await browser.send_form("/logout", {"form_token": form})).status_code == 303
    stolen = guarded.browser()
    stolen.cookies.set(name, cookie)
    assert (await stolen.get("/queues")).status_code == 303

    browser = await guarded.logged_in(token(lifetime_s=-5))  # still in the leeway for clocks
    assert (await browser.get("/queues")).status_code == 303


async def test_a_logout_ends_the_session_in_every_process_that_shares_the_key(monkeypatch):
    key = b"k" * 32

    def shared(store):
        return ByToken.of(TOKENS, store, key=key)

    url = f"memory:{uuid.uuid4().hex}"
    async with site(url, shared) as here, site(url, shared) as there:
        browser, other = await here.logged_in(token()), await here.logged_in(token())
        stolen, kept = there.browser(), there.browser()
        stolen.cookies.update(browser.cookies)
        kept.cookies.update(other.cookies)
        assert (await stolen.get("/queues")).status_code == 200
        assert (await browser.send_form("/logout", {"form_token": await browser.form_token()})).status_code == 303
        monkeypatch.setattr("holdfast.service.revoked.RENEW_S", 0)
        monkeypatch.setattr("holdfast.service.revoked.MAX_AGE_S", 0)
        assert (await stolen.get("/queues")).status_code == 303
        assert (await kept.get("/queues")).status_code == 200
        assert await RevokedTokens(there.store).all() == []


async def test_ended_sessions_are_forgotten_when_they_would_be_over_or_are_too_many(guarded, monkeypatch):
    tokens = RevokedTokens(guarded.store)

    async def kept():
        return [(one.tenant, one.value) for _, one in await tokens.records()]

    monkeypatch.setattr("holdfast.service.revoked.MAX_ENDED", 2)
    await tokens.add(Revocation("acme", "jti", "lost"))
    for session in ("a", "b", "c"):
        await tokens.end_session("acme", session)
    await tokens.end_session("rival", "z")
    assert sorted(await kept()) == [("acme", "b"), ("acme", "c"), ("acme", "lost"), ("rival", "z")]
    monkeypatch.setattr("holdfast.service.revoked.SESSION_S", -1.0)
    await tokens.end_session("acme", "d")
    assert sorted(await kept()) == [("acme", "d"), ("acme", "lost")]


async def test_a_revoked_token_ends_its_sessions(guarded, monkeypatch):
    browser = await guarded.logged_in(token(subject="ann"))
    assert (await browser.get("/queues")).status_code == 200
    monkeypatch.setattr("holdfast.service.revoked.RENEW_S", 0)
    monkeypatch.setattr("holdfast.service.revoked.MAX_AGE_S", 0)
    await RevokedTokens(guarded.store).add(Revocation("acme", "sub", "ann"))
    assert (await browser.get("/queues")).status_code == 303
    assert (await guarded.browser().log_in(token(subject="ann"))).status_code == 401


async def test_an_operators_token_can_be_revoked_too(guarded, monkeypatch):
    operator, other = (
        await guarded.logged_in(operator_token(subject="ann")),
        await guarded.logged_in(token(subject="ann")),
    )
    monkeypatch.setattr("holdfast.service.revoked.RENEW_S", 0)
    monkeypatch.setattr("holdfast.service.revoked.MAX_AGE_S", 0)
    revoked = Revocation("", "sub", "ann")
    assert await RevokedTokens(guarded.store).add(revoked)
    assert (await operator.get("/tenants")).status_code == 303
    assert (await guarded.browser().log_in(operator_token(subject="ann"))).status_code == 401
    assert (await other.get("/queues")).status_code == 200
    assert await RevokedTokens(guarded.store).remove(revoked)
    assert (await operator.get("/tenants")).status_code == 200


@pytest.mark.parametrize("bad", ["", "nonsense", "a.b.c"])
async def test_a_bad_token_is_refused_with_the_reason(guarded, bad):
    answer = await guarded.browser().log_in(bad)
    assert answer.status_code in (401, 400)
    assert not answer.headers.get("set-cookie")
    assert "the token is not accepted" in answer.text or "Bearer" in answer.text


async def test_an_address_that_guesses_must_wait_but_not_others():
    def careful(store):
        keys = Keys(KEY, None)
        return ByToken(Tokens(TOKENS, keys, Limits(bad_tokens=0.01)), Revoked(store), keys)

    async with site(f"memory:{uuid.uuid4().hex}", careful) as found:
        guesser = found.browser(address="10.0.0.7")
        assert [(await guesser.log_in(f"a.b.{n}")).status_code for n in range(3)] == [401, 429, 429]
        assert (await guesser.log_in(token())).status_code == 429
        assert (await found.browser(address="10.0.0.9").log_in(token())).status_code == 303


async def test_a_form_from_another_site_does_nothing(guarded):
    """Cross-site request forgery: by Origin, by Sec-Fetch-Site, and by the token of the form."""
    await guarded.queue().enqueue({"n": 1}, queue="mail")
    browser = await guarded.logged_in(token())
    form = {"queue": "mail", "form_token": await browser.form_token()}
    for headers in (
        {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
        {"origin": "null"}, {"origin": None, "sec-fetch-site": None}, {"origin": "http://localhost:8002"},
        {"origin": "http://localhost:8001.evil.example"}, {"sec-fetch-site": "none"},
    ):  # fmt: skip
        answer = await browser.send_form("/queues/pause", form, **{"origin": browser.origin, **headers})
        assert answer.status_code == 403, headers
    other = await guarded.logged_in(token())
    for wrong in ("", "guess", await other.form_token(), field(await guarded.browser().get("/login"), "form_token")):
        answer = await browser.send_form("/queues/pause", {**form, "form_token": wrong})
        assert answer.status_code == 403
    assert (await browser.get("/queues/pause?queue=mail")).status_code == 405
    assert not (await guarded.store.stats("acme", ["mail"]))[0].paused
    assert (await browser.send_form("/queues/pause", form)).status_code == 303
    assert (await guarded.store.stats("acme", ["mail"]))[0].paused


async def test_a_page_of_another_site_cannot_log_a_user_in(guarded):
    form = field(await guarded.browser().get("/login"), "form_token")
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": None}):
        given = {"sec-fetch-site": None, **headers}
        answer = await guarded.browser().send_form("/login", {"token": token(), "form_token": form}, **given)
        assert (answer.status_code, answer.headers.get("set-cookie")) == (403, None)


async def test_a_form_on_loopback_needs_the_same(opened):
    await opened.queue().enqueue({"n": 1}, queue="mail")
    browser = opened.browser()
    form = {"queue": "mail", "form_token": await browser.form_token()}
    assert (await browser.send_form("/queues/pause", form, origin="http://evil.example")).status_code == 403
    assert (await browser.send_form("/queues/pause", {"queue": "mail"})).status_code == 403
    assert (await browser.send_form("/queues/pause", form)).status_code == 303


@pytest.mark.parametrize(
    "to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", "/x\n/y", ""]
)
async def test_a_redirect_never_leads_elsewhere(guarded, to):
    browser = guarded.browser()
    form = field(await browser.get("/login", params={"next": to}), "form_token")
    answer = await browser.send_form("/login", {"token": token(), "form_token": form, "next": to})
    assert answer.headers["location"] == "/"
    await guarded.queue().enqueue({"n": 1}, queue="mail")
    answer = await browser.act("/queues/pause", {"queue": "mail", "back": to})
    assert re.match(r"/queues(\?|$)", answer.headers["location"])


@pytest.mark.parametrize("scopes, status", [(("read",), 403), (("read", "produce"), 403), (("read", "admin"), 303)])
async def test_an_action_needs_its_scope(guarded, scopes, status):
    await guarded.queue().enqueue({"n": 1}, queue="mail")
    browser = await guarded.logged_in(token(scopes=scopes))
    page = await browser.get("/queues")
    assert ("Pause" in texts(page)) == (status == 303)
    assert (await browser.act("/queues/pause", {"queue": "mail"})).status_code == status
    assert (await guarded.store.stats("acme", ["mail"]))[0].paused == (status == 303)


async def test_a_page_needs_the_scope_to_read(guarded):
    browser = await guarded.logged_in(token(scopes=("produce", "admin")))
    for path in PATHS:
        assert (await browser.get(path)).status_code == 403


async def test_a_token_for_some_queues_shows_those_alone(guarded):
    for name in ("mail", "secret"):
        await guarded.queue().enqueue({"n": 1}, queue=name)
    browser = await guarded.logged_in(token(queues=["mail"]))
    for path in ("/queues", "/queues?fragment=table"):
        answer = await browser.get(path)
        assert "mail" in texts(answer)
        assert "secret" not in answer.text
    assert (await browser.act("/queues/pause", {"queue": "secret"})).status_code == 404
    assert not (await guarded.store.stats("acme", ["secret"]))[0].paused


async def test_a_token_that_no_cookie_can_hold_is_refused_with_the_reason(guarded):
    answer = await guarded.browser().log_in(token(queues=[f"{'q' * 100}{n}" for n in range(40)]))
    assert (answer.status_code, answer.headers.get("set-cookie")) == (400, None)
    assert "fewer queues" in answer.text


async def test_an_operator_sees_all_tenants_and_acts_by_its_scopes(guarded):
    for name in ("acme", "rival"):
        await guarded.queue(name).enqueue({"n": 1}, queue=f"of-{name}")
    browser = await guarded.logged_in(operator_token(("operator",)))
    assert {"acme", "rival"} <= set(texts(await browser.get("/tenants")))
    assert (await browser.get("/queues")).headers["location"] == "/tenants"
    assert "of-rival" in texts(await browser.get("/queues?tenant=rival"))
    form = {"queue": "of-rival"}
    answer = await browser.act("/queues/pause?tenant=rival", form, "/queues?tenant=rival")
    assert answer.status_code == 403
    browser = await guarded.logged_in(operator_token(("operator", *ALL)))
    answer = await browser.act("/queues/pause?tenant=rival", form, "/queues?tenant=rival")
    assert answer.status_code == 303
    assert (await guarded.store.stats("rival", ["of-rival"]))[0].paused


async def test_tokens_of_operators_and_tenants_are_not_interchangeable(guarded):
    async with serving(f"memory:{uuid.uuid4().hex}") as service:
        client = await service.bare(signed(tid=None, scope="jobs:operator jobs:read"))
        assert (await client.get("/v1/queues")).status_code == 401
    browser = await guarded.logged_in(_signed(scope="jobs:operator jobs:read"))
    assert (await browser.get("/tenants")).status_code == 404
    for claims in ({"tid": None, "scope": "jobs:read"}, {"tid": None, "tenant": "acme", "scope": "jobs:operator"}):
        assert (await guarded.browser().log_in(_signed(**claims))).status_code == 401


async def test_an_action_is_recorded_with_its_user(guarded, caplog):
    await guarded.queue().enqueue({"n": 1}, queue="mail")
    browser = await guarded.logged_in(token(subject="ann"))
    caplog.set_level("INFO", "holdfast.audit")
    await browser.act("/queues/pause", {"queue": "mail"})
    lines = [record for record in caplog.records if record.name == "holdfast.audit"]
    assert len(lines) == 1
    text = lines[0].getMessage() + str(lines[0].__dict__)
    for fact in ("queue.pause", "ann", "acme", "mail", "dashboard", "127.0.0.1", "done"):
        assert fact in text


@pytest.mark.parametrize(
    "path, given, query",
    [
        ("/job/purge", {"id": "harmless"}, {"queue": "mail", "id": "bad"}),
        ("/job/purge", {"queue": "other"}, {"queue": "mail", "id": "bad"}),
        ("/dead/purge-one", {"id": "harmless"}, {"queue": "mail", "id": "bad"}),
        ("/dead/purge", {"until": "9" * 13, "queue": "mail"}, {"queue": "other"}),
        ("/queues/pause", {"queue": "mail"}, {"queue": "other"}),
    ],
)
async def test_an_action_whose_form_and_address_differ_is_refused(opened, caplog, path, given, query):
    """Else its line in the trail would name one thing, and the action would take the other."""
    await fail(opened.store, ["bad"])
    browser = opened.browser()
    caplog.set_level("INFO", "holdfast.audit")
    to = f"{path}?{urlencode({'tenant': 'acme', **query})}"
    assert (await browser.act(to, given, page="/queues?tenant=acme")).status_code == 400
    assert not [record for record in caplog.records if record.name == "holdfast.audit"]
    assert await opened.store.get([JobKey("acme", "mail", "bad")]) != [None]
    assert not (await opened.store.stats("acme", ["mail"]))[0].paused


async def test_a_run_acts_on_the_queue_that_its_line_in_the_trail_names(opened, caplog):
    await fail(opened.store, ["bad"])
    browser = opened.browser()
    caplog.set_level("INFO", "holdfast.audit")
    answer = await browser.act("/dead/purge?tenant=acme&queue=other", {"until": "9" * 13}, page="/queues?tenant=acme")
    assert answer.status_code == 303
    (line,) = [record.getMessage() for record in caplog.records if record.name == "holdfast.audit"]
    assert "queue=other" in line
    assert await opened.store.get([JobKey("acme", "mail", "bad")]) != [None]


@pytest.mark.parametrize("place", ["image", "empty", "iframe", "script"])
async def test_a_page_of_another_site_cannot_make_a_dashboard_without_login_work(opened, place):
    for path in ("/dead/run?do=purge&tenant=acme", "/proof?doctor=1&tenant=acme", "/live?page=/queues&tenant=acme"):
        for whose in ("cross-site", "same-site"):
            headers = {"sec-fetch-site": whose, "sec-fetch-dest": place, "sec-fetch-mode": "no-cors"}
            assert (await opened.browser().get(path, headers=headers)).status_code == 403
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-dest": "document", "sec-fetch-mode": "navigate"}
    assert (await opened.browser().get("/queues?tenant=acme", headers=headers)).status_code == 200


async def test_a_malformed_origin_is_that_of_another_site(opened):
    form = {"form_token": await opened.browser().form_token("/queues?tenant=acme"), "queue": "mail"}
    answer = await opened.browser().send_form("/queues/pause?tenant=acme", form, origin="http://[")
    assert answer.status_code == 403


def _claims(cookie):
    return json.loads(base64.urlsafe_b64decode(cookie.rpartition(".")[0] + "=="))


def _signed(**changes):
    return signed(KEY, **changes)
