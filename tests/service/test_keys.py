"""Keys from a file and from a URL: found, rotated, and never asked for too often."""

import asyncio
import json

import pytest

from holdfast.core.errors import InvalidOption
from holdfast.service import keys as keys_module
from holdfast.service.settings import TokenSettings
from holdfast.service.signing import new_pair, sign
from tests.eventually import eventually
from tests.service.support import problem, serving


def bearer(settings, private):
    made = sign(settings, tenant="acme", scopes=["read"], private_key=json.dumps(private).encode())
    return {"authorization": f"Bearer {made}"}


@pytest.fixture
def impatient(monkeypatch):
    """Read again as soon as a key is missing."""
    monkeypatch.setattr(keys_module, "MIN_RENEW_S", 0.0)


async def test_a_new_key_is_found_and_an_old_one_forgotten(issuer, impatient):
    (first, first_public), (second, second_public) = new_pair("EdDSA"), new_pair("ES256")
    issuer.keys = [first_public]
    settings = TokenSettings(jwks=issuer.url)
    async with serving("memory:rotation", tokens=settings) as service:
        bare = await service.bare()
        old, new = bearer(settings, first), bearer(settings, second)
        assert (await bare.get("/v1/queues", headers=old)).status_code == 200
        problem(await bare.get("/v1/queues", headers=new), 401, "token_invalid")
        issuer.keys = [second_public]
        assert (await bare.get("/v1/queues", headers=new)).status_code == 200
        # The old one was known, and is no more: what was checked with it does not outlive it.
        problem(await bare.get("/v1/queues", headers=old), 401, "token_invalid")


async def test_the_remembered_tokens_of_a_removed_key_are_forgotten(issuer, monkeypatch):
    private, public = new_pair("EdDSA")
    issuer.keys = [public]
    settings = TokenSettings(jwks=issuer.url)
    async with serving("memory:withdrawn", tokens=settings) as service:
        bare, headers = await service.bare(), bearer(settings, private)
        assert (await bare.get("/v1/queues", headers=headers)).status_code == 200
        issuer.keys = []
        monkeypatch.setattr(keys_module, "RENEW_S", 0.0)
        refused = await eventually(lambda: bare.get("/v1/queues", headers=headers), lambda answer: answer.is_error)
        problem(refused, 401, "token_invalid")


async def test_made_up_key_names_do_not_cause_a_read_each(issuer):
    private, public = new_pair("EdDSA")
    issuer.keys = [public]
    settings = TokenSettings(jwks=issuer.url)
    async with serving("memory:made-up", tokens=settings) as service:
        bare = await service.bare()
        for number in range(20):
            headers = bearer(settings, {**private, "kid": f"made-up-{number}"})
            problem(await bare.get("/v1/queues", headers=headers), 401, "token_invalid")
        assert issuer.asked == 1


async def test_keys_stay_valid_while_their_issuer_is_down(issuer, impatient):
    private, public = new_pair("RS256")
    issuer.keys = [public]
    settings = TokenSettings(jwks=issuer.url)
    async with serving("memory:away", tokens=settings) as service:
        issuer.status = 500
        bare = await service.bare()
        missing = bearer(settings, {**private, "kid": "missing"})
        problem(await bare.get("/v1/queues", headers=missing), 401, "token_invalid")
        assert issuer.asked == 2
        assert (await bare.get("/v1/queues", headers=bearer(settings, private))).status_code == 200


async def test_a_redirect_is_not_followed(issuer):
    issuer.status = 302
    with pytest.raises(InvalidOption, match="no keys at"):
        await keys_module.Keys(None, issuer.url).open()
    assert issuer.asked == 1


@pytest.mark.parametrize("source", ["http://keys.example/jwks", "ftp://127.0.0.1/jwks", "gopher://127.0.0.1/"])
async def test_keys_are_fetched_only_over_https(source):
    with pytest.raises(InvalidOption, match="https://"):
        await keys_module.Keys(None, source).open()


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"keys": 1}', '{"keys": []}', '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}',
        '{"keys": [{"kty": "RSA", "n": "!", "e": "AQAB"}]}', '{"keys": [{"kty": "EC", "crv": "P-521"}]}',
    ],
)  # fmt: skip
async def test_a_key_set_without_a_supported_key_is_refused(tmp_path, text):
    path = tmp_path / "jwks.json"
    path.write_text(text)
    with pytest.raises(InvalidOption):
        await keys_module.Keys(None, str(path)).open()


async def test_a_key_for_another_use_or_algorithm_is_ignored(tmp_path):
    path = tmp_path / "jwks.json"
    private, public = new_pair("RS256")
    good = new_pair("EdDSA")[1]
    path.write_text(json.dumps({"keys": [{**public, "use": "enc"}, {**public, "alg": "RS512"}, good]}))
    keys = keys_module.Keys(None, str(path))
    await keys.open()
    assert await keys.find("RS256", private["kid"]) is None
    assert await keys.find("EdDSA", None) is not None
    await keys.close()


async def test_a_token_without_a_key_name_is_valid_if_only_one_key_fits(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [new_pair("EdDSA")[1], new_pair("EdDSA")[1], new_pair("ES256")[1]]}))
    keys = keys_module.Keys(None, str(path))
    await keys.open()
    assert await keys.find("EdDSA", None) is None
    assert (await keys.find("ES256", None)).algorithm == "ES256"
    await asyncio.sleep(0)
    await keys.close()


@pytest.mark.parametrize("key", ["short", "x" * 31])
def test_a_short_shared_key_is_refused(key):
    with pytest.raises(InvalidOption, match="32 bytes") as caught:
        TokenSettings(hs256_key=key).check()
    assert key not in str(caught.value)


async def test_a_malformed_key_is_skipped_and_the_others_stay_valid(tmp_path):
    path = tmp_path / "jwks.json"
    good = new_pair("EdDSA")[1]
    rsa = {"kty": "RSA", "kid": "bad", "n": "!", "e": "AQAB"}
    path.write_text(json.dumps({"keys": [rsa, 1, {**good, "kid": 7}, {"kty": ["EC"]}, good, good]}))
    keys = keys_module.Keys(None, str(path))
    await keys.open()
    assert await keys.find("EdDSA", good["kid"]) is not None
    assert await keys.find("RS256", "bad") is None
    await keys.close()


def test_signing_without_a_key_names_the_missing_option():
    with pytest.raises(InvalidOption, match="--private-key"):
        sign(TokenSettings(jwks="keys.json"), tenant="acme", scopes=["read"])
