"""An address that keeps sending bad tokens has to wait; who has a good one goes on, also from there."""

import asyncio

import httpx
import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidOption
from holdfast.service import limits
from holdfast.service.errors import Refusal
from holdfast.service.settings import TokenSettings, check_proxies
from tests.service.support import KEY, NO_TLS, problem, serving, signed, token

ONE = {"bad_tokens": 0.001}
"""One is for free, and the next in a quarter of an hour."""
OTHER_KEY = "a key that the service does not know of"


def bearer(made):
    return {"authorization": f"Bearer {made}"}


def guess(number):
    return signed(OTHER_KEY, jti=str(number))


async def ask(client, made, **headers):
    return await client.get("/v1/queues", headers={**bearer(made), **headers})


@pytest.fixture
def checked(monkeypatch):
    """The tokens whose signature was checked."""
    seen, decode = [], jwt.decode

    def noted(made, *args, **options):
        seen.append(made)
        return decode(made, *args, **options)

    monkeypatch.setattr(jwt, "decode", noted)
    return seen


async def test_an_address_that_guesses_must_wait_and_costs_no_check(checked):
    async with serving("memory:guesses", bad_tokens=0.5) as service:
        bare = await service.bare()
        answers = await asyncio.gather(*(ask(bare, guess(number)) for number in range(40)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(refused) > 10
        for answer in refused:
            problem(answer, 429, "rate_limited")
            assert int(answer.headers["retry-after"]) >= 1
        assert len(checked) == 40 - len(refused)
        assert {answer.status_code for answer in answers} == {401, 429}


async def test_an_accepted_token_stays_accepted():
    async with serving("memory:good-ones", **ONE) as service:
        good = await service.client()
        assert (await good.get("/v1/queues")).status_code == 200
        bare = await service.bare()
        problem(await ask(bare, guess(0)), 401, "token_invalid")
        problem(await ask(bare, guess(1)), 429, "rate_limited")
        assert [(await good.get("/v1/queues")).status_code for _ in range(20)] == [200] * 20


async def test_a_token_similar_to_an_accepted_one_is_checked(checked):
    async with serving("memory:likenesses", **ONE) as service:
        made, bare = token(), await service.bare()
        assert (await ask(bare, made)).status_code == 200
        problem(await ask(bare, guess(0)), 401, "token_invalid")
        seen = len(checked)
        for likeness in (made[:-1], f"{made}=", made.swapcase(), made.rpartition(".")[0] + "."):
            problem(await ask(bare, likeness), 429, "rate_limited")
        assert len(checked) == seen


async def test_a_new_valid_token_is_accepted_after_the_wait(monkeypatch):
    async with serving("memory:new-ones", **ONE) as service:
        bare = await service.bare()
        problem(await ask(bare, guess(0)), 401, "token_invalid")
        answer = await ask(bare, token())
        problem(answer, 429, "rate_limited")
        buckets = service.context.tokens._bad._buckets
        later = buckets._clock() + int(answer.headers["retry-after"])
        monkeypatch.setattr(buckets, "_clock", lambda: later)
        assert (await ask(bare, token())).status_code == 200


async def test_another_address_does_not_wait():
    async with serving("memory:addresses", **ONE) as service:
        bare = await service.bare()
        problem(await ask(bare, guess(0)), 401, "token_invalid")
        problem(await ask(bare, token()), 429, "rate_limited")
        transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2", verify=NO_TLS)
        assert (await ask(await service.bare(transport=transport), token())).status_code == 200


@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "x-real-ip"])
async def test_an_address_in_a_header_is_ignored(name):
    async with serving("memory:made-up-addresses", **ONE) as service:
        bare = await service.bare()
        problem(await ask(bare, guess(0), **{name: "192.0.2.1"}), 401, "token_invalid")
        for number in range(2, 5):
            problem(await ask(bare, guess(number), **{name: f"192.0.2.{number}"}), 429, "rate_limited")


async def test_behind_a_trusted_proxy_each_client_has_its_address():
    """The client's own entries in the header come before the proxy's, and do not count."""
    async with serving("memory:proxies", proxies="127.0.0.1", **ONE) as service:
        bare = await service.bare()
        problem(await ask(bare, guess(0), **{"x-forwarded-for": "192.0.2.1"}), 401, "token_invalid")
        problem(await ask(bare, guess(1), **{"x-forwarded-for": "198.51.100.9, 192.0.2.1"}), 429, "rate_limited")
        assert (await ask(bare, token(), **{"x-forwarded-for": "192.0.2.1, 192.0.2.2"})).status_code == 200


async def test_the_limit_can_be_switched_off():
    async with serving("memory:no-limit", bad_tokens=0) as service:
        bare = await service.bare()
        for number in range(5):
            problem(await ask(bare, guess(number)), 401, "token_invalid")


async def test_a_missing_or_expired_token_does_not_count_as_a_guess(monkeypatch):
    tokens = TokenSettings(hs256_key=KEY, leeway_s=0)
    async with serving("memory:no-guesses", tokens=tokens, **ONE) as service:
        bare, made = await service.bare(), token()
        assert (await ask(bare, made)).status_code == 200
        monkeypatch.setattr(service.context.tokens, "left_s", lambda _: 0.0)
        for _ in range(3):
            problem(await ask(bare, made), 401, "token_expired")
            problem(await bare.get("/v1/queues"), 401, "token_missing")
            problem(await bare.get("/v1/queues", headers={"authorization": "Basic eDp5"}), 401, "token_invalid")
        monkeypatch.undo()
        assert (await ask(bare, token("other"))).status_code == 200


def sent(bad, address):
    """Whether a token from there would be checked; it is an invalid one."""
    try:
        bad.check(address)
    except Refusal:
        return False
    bad.count(address)
    return True


@pytest.mark.parametrize(
    "first, second, same",
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:0:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("unknown", "_hidden", True),
    ],
)
def test_an_ipv6_address_counts_as_its_network(first, second, same):
    bad = limits.BadTokens(0.001, lambda: 0.0)
    assert sent(bad, first)
    assert sent(bad, second) is not same


def test_addresses_are_forgotten_before_there_are_too_many(monkeypatch):
    monkeypatch.setattr(limits, "MAX_KEYS", 10)
    bad = limits.BadTokens(0.001, lambda: 0.0)
    for number in range(100):
        assert sent(bad, f"192.0.2.{number}")
        assert len(bad._buckets._levels) <= 10
    assert not sent(bad, "192.0.2.99")


@given(st.floats(1e-6, 1e9), st.lists(st.floats(0, 10), max_size=30))
def test_a_refusal_never_says_to_retry_at_once(rate, pauses):
    """A retry after the given time is checked."""
    now = [0.0]
    rates = limits.TokenRates(rate, lambda: now[0])

    def take():
        rates.check(b"token")
        rates.take(b"token")

    for pause_s in (0.0, *pauses):
        now[0] += pause_s
        for _ in range(3):
            try:
                take()
            except Refusal as refusal:
                wait_s = int(refusal.headers["retry-after"])
                assert wait_s >= 1
                now[0] += wait_s + 0.001
                take()


@pytest.mark.parametrize("text", ["*", "proxy.example", "10.0.0.0/33", "10.0.0.1,,10.0.0.2", "10.0.0.1/8"])
def test_a_trusted_proxy_must_be_an_address(text):
    with pytest.raises(InvalidOption, match="addresses and networks"):
        check_proxies(text)


def test_addresses_and_networks_can_be_trusted():
    for text in ("", "10.0.0.7", "10.0.0.7, 10.1.0.0/16,::1"):
        assert check_proxies(text) == text
