"""Tokens that an operator has revoked."""

import asyncio
import time

import pytest

from holdfast.core.errors import InvalidName, InvalidOption, StoreUnavailable
from holdfast.opening import open_store
from holdfast.service import revoked as module
from holdfast.service.revoked import Revocation, RevokedTokens
from tests.eventually import eventually
from tests.service.support import problem, serving, signed

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def at_once(monkeypatch):
    """Every request reads the revocations."""
    monkeypatch.setattr(module, "RENEW_S", 0.0)
    monkeypatch.setattr(module, "MAX_AGE_S", 0.0)


async def answers(service, tenant, **claims):
    client = await service.bare(signed(tid=tenant, **claims))
    answer = await client.get("/v1/queues")
    if answer.status_code != 200:
        assert problem(answer, 401, "token_invalid")["detail"].endswith("it was revoked")
    return answer.status_code


async def test_tokens_are_refused_by_jti_by_sub_and_by_the_time_of_issue(service, tenant, at_once):
    """Only those of this tenant."""
    tokens, now = RevokedTokens(service.context.store), int(time.time())
    long = "j" * 500 + "\x00é"
    assert await answers(service, tenant, jti=long, sub="w") == 200
    for revocation in (Revocation(tenant, "jti", long), Revocation(tenant, "sub", "thief")):
        assert await tokens.add(revocation)
        assert not await tokens.add(revocation)
    assert await answers(service, tenant, jti=long, sub="w") == 401
    assert await answers(service, tenant, jti="other", sub="thief") == 401
    assert await answers(service, tenant, jti="other", sub="w") == 200
    assert await answers(service, tenant, jti="thief", sub="jti") == 200
    assert await answers(service, f"{tenant}x", jti=long, sub="thief") == 200
    assert await answers(service, tenant, iat=None) == 200
    await tokens.add(Revocation(tenant, "issued_before", str(now - 100)))
    await tokens.add(Revocation(tenant, "issued_before", str(now - 200)))
    assert await answers(service, tenant, iat=now - 101) == 401
    assert await answers(service, tenant, iat=now - 100) == 200
    assert await answers(service, tenant, iat=None) == 401
    assert await answers(service, f"{tenant}x", iat=now - 1000) == 200
    assert await tokens.remove(Revocation(tenant, "sub", "thief"))
    assert not await tokens.remove(Revocation(tenant, "sub", "thief"))
    assert await answers(service, tenant, sub="thief") == 200
    assert [one.kind for one in await tokens.all(tenant)] == ["jti", "issued_before", "issued_before"]


async def test_an_empty_revocation_is_refused(service, tenant):
    tokens = RevokedTokens(service.context.store)
    with pytest.raises(InvalidOption):
        await tokens.add(Revocation(tenant, "jti", ""))
    with pytest.raises(InvalidName):
        await tokens.add(Revocation("-holdfast", "jti", "x"))


async def test_a_known_token_is_refused_while_the_revocations_are_too_old(monkeypatch):
    """A revocation of another process counts too: the list is in the store."""
    async with serving("memory:revoked") as service:
        store = await open_store("memory:revoked")
        client = await service.bare(signed(jti="j"))
        assert (await client.get("/v1/queues")).status_code == 200
        await RevokedTokens(store).add(Revocation("acme", "jti", "j"))
        monkeypatch.setattr(module, "RENEW_S", 0.0)
        # It is read in the background, and the request does not wait for it.
        statuses = [(await client.get("/v1/queues")).status_code]
        await eventually(lambda: client.get("/v1/queues"), lambda answer: answer.status_code == 401)
        assert statuses == [200]


async def test_without_the_revocations_no_request_is_answered(monkeypatch, at_once):
    async with serving("memory:unlisted") as service:
        client = await service.client()
        assert (await client.get("/v1/queues")).status_code == 200

        async def away(_):
            raise StoreUnavailable("away")

        monkeypatch.setattr(service.context.store, "list", away)
        problem(await client.get("/v1/queues"), 503, "store_unavailable")
        problem(await client.get("/v1/queues"), 503, "store_unavailable")
        assert (await client.get("/healthz")).status_code == 200


async def test_a_waiting_claim_and_a_stream_end_with_their_token(at_once):
    async with serving("memory:waits") as service:
        worker, owner = await service.bare(signed(jti="j")), await service.client()
        claim = asyncio.create_task(worker.post("/v1/claims", json={"queues": ["default"], "wait_s": 60}))
        async with worker.stream("GET", "/v1/events") as stream:
            lines = stream.aiter_bytes()
            await anext(lines)
            await RevokedTokens(service.context.store).add(Revocation("acme", "jti", "j"))
            await owner.enqueue(id="x")
            assert b"x" not in b"".join([part async for part in lines])
        problem(await claim, 401, "token_invalid")
        (job,) = await owner.claim()
        assert (job["id"], job["attempt"]) == ("x", 1)
