"""Proofs of leases: the token of a claim over HTTP cannot be guessed, made or used for another job. [LEASE-1]"""

import asyncio
import pickle
import secrets

import pytest

from holdfast import Queue, Worker, current_job, job
from holdfast.core.errors import LeaseLost, Unsupported
from holdfast.core.job import ClaimRequest, Finish, JobKey, Result
from holdfast.opening import open_store
from holdfast.service import proofs as module
from holdfast.service.proofs import LeaseKeys, Proofs
from tests.service.support import serving, token

pytestmark = pytest.mark.asyncio(loop_scope="module")

MORE = {
    "finish": {"outcome": "complete", "result": "stolen"},
    "extend": {"lease_s": 600},
    "report": {"progress": {"fraction": 1}},
}


async def codes(client, verb, leases):
    """The answer for each lease: a status, or the code of an error."""
    body = {"leases": [{**lease, **MORE[verb]} for lease in leases]}
    items = (await client.post(f"/v1/leases:{verb}", json=body)).json()["items"]
    return [item["error"]["code"] if "error" in item else item["status"] for item in items]


async def test_a_claim_answers_with_an_opaque_token_and_a_growing_fence(client):
    await client.enqueue(id="x")
    (first,) = await client.claim()
    assert await client.finish(first, "release") == {"status": "ready"}
    (second,) = await client.claim()
    kid, fence, mac = second["token"].split(".")
    assert (kid, int(fence), len(mac)) == ("1", second["fence"], 32)
    assert second["fence"] > first["fence"]
    assert (await client.get("/v1/queues/default/jobs/x")).json()["fence"] == second["fence"]


@pytest.mark.parametrize("verb", MORE)
async def test_guessed_tokens_are_lost_and_the_owners_lease_stays_live(client, verb):
    await client.enqueue(id="x")
    (held,) = await client.claim(lease_s=600)
    kid, fence, mac = held["token"].split(".")
    guesses = [f"{kid}.{fence}.{secrets.token_hex(16)}" for _ in range(900)]
    guesses += [f"{kid}.{int(fence) + number}.{mac}" for number in range(1, 51)]
    guesses += [str(number) for number in range(50)]
    found = await codes(client, verb, [{"queue": "default", "id": "x", "token": guess} for guess in guesses])
    assert found == ["lease_lost"] * 1000
    assert await client.finish(held) == {"status": "completed"}


def near_misses(held, sign, tenant):
    """A proof with one change, and the job that it is used for."""
    queue, id, proof, fence = held["queue"], held["id"], held["token"], held["fence"]
    kid, digits, mac = proof.split(".")
    other = "A" if mac[-1] != "A" else "B"
    yield "another tenant's", {}, sign("another", queue, id, fence)
    yield "another queue's", {}, sign(tenant, "other", id, fence)
    yield "another id's", {}, sign(tenant, queue, "y", fence)
    yield "another fence's", {}, sign(tenant, queue, id, fence + 1)
    yield "the fence before", {}, sign(tenant, queue, id, fence - 1)
    yield "for another queue", {"queue": "other"}, proof
    yield "for another id", {"id": "y"}, proof
    yield "for a job that is not there", {"id": "nothing"}, proof
    yield "for a reserved queue", {"queue": "holdfast:flows"}, proof
    yield "for a name that is none", {"queue": "*", "id": "\0"}, proof
    yield "truncated", {}, proof[:-1]
    yield "without its mac", {}, f"{kid}.{digits}."
    yield "without a dot", {}, proof.replace(".", "")
    yield "longer", {}, proof + "A"
    yield "padded", {}, proof + "=="
    yield "with a space", {}, proof + " "
    yield "another last letter", {}, proof[:-1] + other
    yield "another key", {}, f"2.{digits}.{mac}"
    yield "no key", {}, f".{digits}.{mac}"
    yield "fence with a zero", {}, f"{kid}.0{digits}.{mac}"
    yield "fence with a sign", {}, f"{kid}.+{digits}.{mac}"
    yield "fence in other digits", {}, f"{kid}.{''.join(chr(0x0660 + int(c)) for c in digits)}.{mac}"
    yield "fence of a thousand digits", {}, f"{kid}.{'1' * 1000}.{mac}"
    yield "nothing", {}, ""
    yield "not ASCII", {}, proof + "é"


@pytest.mark.parametrize("verb", MORE)
async def test_a_proof_with_one_change_is_lost(service, client, tenant, verb):
    """The proof is checked first: the answer does not reveal whether the job exists or its name is valid."""
    await client.enqueue(id="x")
    await client.enqueue(id="y")
    await client.enqueue(id="x", queue="other")
    (held,) = await client.claim(lease_s=600)
    cases = list(near_misses(held, service.context.proofs.sign, tenant))
    leases = [{"queue": "default", "id": "x", "token": proof, **where} for _, where, proof in cases]
    found = await codes(client, verb, leases)
    assert dict(zip((name for name, _, _ in cases), found, strict=True)) == {name: "lease_lost" for name, _, _ in cases}
    stranger = await service.client("stranger")
    assert await codes(stranger, verb, [{key: held[key] for key in ("queue", "id", "token")}]) == ["lease_lost"]
    assert await client.finish(held) == {"status": "completed"}


async def test_names_with_the_same_concatenation_have_different_proofs(service, client, tenant):
    """Each name has its length before it."""
    await client.enqueue(queue="a", id="bc")
    await client.enqueue(queue="ab", id="c")
    (held,) = await client.claim("a", lease_s=600)
    shown = {"queue": "ab", "id": "c", "token": held["token"]}
    assert await codes(client, "finish", [shown]) == ["lease_lost"]
    sign = service.context.proofs.sign
    alike = {sign("t", "a", "bc", 1), sign("t", "ab", "c", 1), sign("ta", "b", "c", 1), sign("t", "a", "b", 1)}
    assert len(alike) == 4
    assert sign("t", "q", "x1", 2).rpartition(".")[2] != sign("t", "q", "x", 12).rpartition(".")[2]


async def test_a_guess_does_not_reach_the_store(service, client, monkeypatch):
    async def asked(*_, **__):
        raise AssertionError("a guess reached the store")

    await client.claim()  # The keys have just been read.
    for name in ("finish", "extend", "report", "list", "get"):
        monkeypatch.setattr(service.context.store, name, asked)
    for verb in MORE:
        lease = {"queue": "default", "id": "x", "token": f"1.7.{secrets.token_hex(16)}"}
        assert await codes(client, verb, [lease] * 10) == ["lease_lost"] * 10


async def test_processes_and_restarts_share_the_lease_keys(tmp_path):
    url = f"file:{tmp_path}/data"
    async with serving(url) as first, serving(url) as second:
        client = await first.client()
        await client.enqueue(id="x")
        await client.enqueue(id="y")
        held, kept = await client.claim(limit=2, lease_s=600)
        assert await (await second.client()).finish(held) == {"status": "completed"}
    async with serving(url) as again:
        assert await (await again.client()).finish(kept) == {"status": "completed"}


async def test_an_old_key_verifies_until_it_is_dropped(tmp_path, monkeypatch):
    url = f"file:{tmp_path}/data?test_clock=1"
    async with serving(url) as service:
        client = await service.client()
        for id in ("a", "b", "c"):
            await client.enqueue(id=id)
        jobs = await client.claim(limit=1, lease_s=3600)
        keys, store = LeaseKeys(service.context.store), service.context.store
        assert await keys.rotate() == "2"
        monkeypatch.setattr(module, "RENEW_S", 0.0)
        jobs += await client.claim(limit=1, lease_s=3600)
        await store.shift_clock(module.SIGN_AFTER_MS)
        jobs += await client.claim(limit=1, lease_s=3600)
        # The new key signs when every process has read it.
        assert [job["token"].partition(".")[0] for job in jobs] == ["1", "1", "2"]
        assert await client.finish(jobs[0]) == {"status": "completed"}
        await keys.drop("1")
        assert (await client.finish(jobs[1]))["error"]["code"] == "lease_lost"
        assert await client.finish(jobs[2]) == {"status": "completed"}
        (left,) = await store.get([JobKey("acme", "default", "b")])
        assert left.state == "leased"


async def test_the_lease_keys_are_read_again_for_an_unknown_key_but_not_often(monkeypatch):
    store = await open_store("memory:unknown")
    proofs, keys = Proofs(store), LeaseKeys(store)
    await proofs.renew()
    other = Proofs(store)
    await keys.rotate()
    await keys.drop("1")
    await other.renew()
    proof = other.sign("t", "q", "x", 7)
    assert proof.startswith("2.")
    await proofs.renew([proof])
    with pytest.raises(LeaseLost):
        proofs.fence("t", "q", "x", proof)
    monkeypatch.setattr(module, "MIN_RENEW_S", 0.0)
    await proofs.renew(["1.7.x"])  # Known: not read again.
    with pytest.raises(LeaseLost):
        proofs.fence("t", "q", "x", proof)
    await asyncio.gather(*(proofs.renew([proof]) for _ in range(10)))
    assert proofs.fence("t", "q", "x", proof) == 7


@job(queue="fences")
async def fence() -> int:
    return current_job().fence


async def test_a_worker_over_http_sees_a_plain_number(service, tenant):
    async with Queue(f"http://127.0.0.1:{service.port}", token=token(tenant)) as queue:
        ticket = await queue.enqueue(fence.message())
        worker = Worker(queue, jobs=[fence])
        running = asyncio.create_task(worker.run(signals=False))
        seen = await ticket.wait(timeout=30)
        await worker.stop()
        await running
        assert seen > 0


async def test_the_http_store_carries_the_proof_with_the_number(service, client, tenant):
    async with Queue(f"http://127.0.0.1:{service.port}", token=token(tenant)) as queue:
        await client.enqueue(id="x")
        (held,) = (await queue.store.claim(ClaimRequest(tenant, ("default",), 1, 30_000, "w"))).jobs
        travelled = pickle.loads(pickle.dumps(held.token))
        assert travelled == held.token
        lost, done = await queue.store.finish(
            [Finish(held.key, int(held.token), "fail"), Finish(held.key, travelled, "complete", Result(b"1"))]
        )
        assert isinstance(lost, LeaseLost)
        assert done.state == "completed"
        with pytest.raises(Unsupported):
            await LeaseKeys(queue.store).rotate()
