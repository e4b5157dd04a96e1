"""Attacks: each is refused with the right code, and nothing has changed.

What is sent is in `attacks`. All go to one running server, which checks tokens by a shared key and by public ones.
"""

import asyncio
import gzip
import json
import re
from contextlib import suppress

import jwt
import pytest
import pytest_asyncio

from holdfast.core.job import JobState
from holdfast.service.app import ROUTES
from holdfast.service.settings import TokenSettings
from holdfast.store import ListQuery
from holdfast.telemetry import http as http_metrics
from tests.service import attacks
from tests.service.support import ALL, KEY, problem, read_to_the_end, serving, signed, token

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCOPES = {f"jobs:{name}": name for name in ALL}
PROTECTED = [route for route in ROUTES if route.scope]
SECRET = "/v1/queues/default/jobs/secret"
STATUS = {"token_invalid": 401, "token_expired": 401, "scope_missing": 403, "queue_forbidden": 403}


@pytest.fixture(scope="module")
def jwks(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    path.write_text(json.dumps({"keys": list(attacks.PUBLIC.values())}))
    return str(path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(jwks):
    tokens = TokenSettings(hs256_key=KEY, jwks=jwks)
    async with serving("memory:attacks", tokens=tokens) as service:
        owner = await service.client()
        await owner.enqueue(id="secret", payload={"card": 4111})
        await owner.enqueue(id="held", queue="held")
        await owner.enqueue(id="dead", queue="dead", max_attempts=1)
        (service.held,) = await owner.claim("held", lease_s=3600)
        (dead,) = await owner.claim("dead")
        await owner.finish(dead, "fail", error={"type": "E"})
        yield service


@pytest_asyncio.fixture(loop_scope="module")
async def unchanged(service):
    """Fail if any tenant's data has changed."""
    before = await snapshot(service.context.store)
    yield
    assert await snapshot(service.context.store) == before


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bare(service):
    return await service.bare()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def owner(service):
    return await service.client()


async def snapshot(store):
    tenants = await store.tenants()
    jobs = [
        (tenant, job)
        for tenant in tenants
        for stats in await store.stats(tenant)
        for job in (await store.list(ListQuery(tenant, stats.queue, frozenset(JobState)))).jobs
    ]
    paused = [(tenant, one.queue, one.paused) for tenant in tenants for one in await store.stats(tenant)]
    return jobs, paused, await store.last_offset()


@pytest.mark.parametrize("name", attacks.TOKENS)
async def test_an_invalid_token_is_refused(bare, unchanged, name):
    make, code = attacks.TOKENS[name]
    answer = await bare.get(SECRET, headers={"authorization": f"Bearer {make()}"})
    assert attacks.WHY.get(name, "") in problem(answer, STATUS[code], code)["detail"]
    assert "www-authenticate" in answer.headers or code == "queue_forbidden"


@pytest.mark.parametrize("header", ["jku", "x5u"])
@pytest.mark.parametrize("kid", [None, "attacker"])
async def test_an_address_in_a_token_is_never_fetched(bare, unchanged, issuer, header, kid):
    issuer.keys = [attacks.ATTACKER_PUBLIC]
    made = attacks.pair_signed("RS256", kid=kid, key=attacks.ATTACKER, headers={header: issuer.url})
    problem(await bare.get(SECRET, headers={"authorization": f"Bearer {made}"}), 401, "token_invalid")
    assert issuer.asked == 0


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "ES256", "EdDSA"])
async def test_a_signature_is_checked_by_the_one_algorithm_of_its_key(bare, monkeypatch, algorithm):
    allowed, decode = [], jwt.decode

    def noted(*args, **options):
        allowed.append(options["algorithms"])
        return decode(*args, **options)

    monkeypatch.setattr(jwt, "decode", noted)
    made = signed(jti="once") if algorithm == "HS256" else attacks.pair_signed(algorithm, jti="once")
    assert (await bare.get(SECRET, headers={"authorization": f"Bearer {made}"})).status_code == 200
    assert allowed == [[algorithm]]


@pytest.mark.parametrize("algorithm", ["HS256", "RS256", "ES256", "EdDSA"])
async def test_a_valid_token_of_each_algorithm_is_accepted(bare, algorithm):
    good = signed() if algorithm == "HS256" else attacks.pair_signed(algorithm)
    for scheme in ("Bearer", "bearer"):
        assert (await bare.get(SECRET, headers={"authorization": f"{scheme} {good}"})).status_code == 200


async def test_a_token_with_agreeing_aliases_and_a_small_clock_difference_is_accepted(bare):
    good = signed(tenant="acme", tenant_id="acme", nbf=attacks.NOW, aud=["other", "holdfast"])
    assert (await bare.get(SECRET, headers={"authorization": f"Bearer {good}"})).status_code == 200


@pytest.mark.parametrize("name", attacks.HEADERS)
async def test_a_request_without_a_token_in_its_header_is_refused(bare, unchanged, name):
    headers, status, code = attacks.HEADERS[name]
    problem(await bare.get(SECRET, headers=headers, params={"access_token": signed()}), status, code)


@pytest.mark.parametrize("route", PROTECTED, ids=lambda route: f"{route.method} {route.path}")
async def test_every_route_needs_its_scope(service, unchanged, route):
    others = [name for scope, name in SCOPES.items() if scope != route.scope]
    client = await service.client(scopes=others)
    named = {"queue": "default", "id": "secret", "name": "it", "tenant": "acme"}
    path = route.path.format(**named) if "{" in route.path else route.path
    answer = await client.request(route.method, path, **({"json": {}} if route.body else {}))
    problem(answer, 403, "scope_missing")
    assert route.scope in answer.headers["www-authenticate"]
    bare = await service.bare()
    problem(await bare.request(route.method, path), 401, "token_missing")


@pytest.mark.parametrize("name", attacks.BODIES)
async def test_an_invalid_body_is_refused(owner, unchanged, name):
    body, status, code = attacks.BODIES[name]
    problem(await owner.post("/v1/jobs", content=body, headers={"content-type": "application/json"}), status, code)


@pytest.mark.parametrize("name", attacks.KINDS)
async def test_a_body_with_headers_of_another_type_is_refused(owner, unchanged, name):
    headers, status = attacks.KINDS[name]
    bomb = gzip.compress(b" " * 10_000_000)
    problem(await owner.post("/v1/jobs", content=bomb, headers=headers), status, "unsupported_media_type")


async def test_a_chunked_body_is_bounded_too(owner, unchanged):
    async def chunks():
        for _ in range(40):
            yield b" " * 65536

    answer = await owner.post("/v1/jobs", content=chunks(), headers={"content-type": "application/json"})
    problem(answer, 413, "body_too_large")


@pytest.mark.parametrize("name", attacks.BATCHES)
async def test_a_value_over_its_limit_is_refused(owner, unchanged, name):
    body, path, code = attacks.BATCHES[name]
    problem(await owner.post(path, json=body), 400, code)


@pytest.mark.parametrize("name", attacks.PATHS)
async def test_an_unknown_path_is_refused(service, unchanged, name):
    method, path, status, code = attacks.PATHS[name]
    body = b"x" if method.endswith("+") else b""
    answer = await raw(service, f"{method.rstrip('+')} {path} HTTP/1.1\r\n{attacks.HEAD}", body)
    assert answer.status == status, answer.text
    assert answer.code == code
    assert "set-cookie" not in answer.head.lower()


@pytest.mark.parametrize("name", [*attacks.RAW, *attacks.LONG])
async def test_malformed_http_is_refused_and_the_connection_ends(service, unchanged, name):
    answer = await raw(service, (attacks.RAW | attacks.LONG)[name])
    refused = (400, "invalid_request") if name in attacks.RAW else (431, "headers_too_large")
    assert (answer.status, answer.code) == refused, answer.text


async def answered(service, first, then):
    """The answer to `then`, sent after the answer to `first`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        async with asyncio.timeout(20):
            writer.write(first.replace("{token}", token()).encode())
            answer, rest = await reader.readuntil(b"}"), b""
            with suppress(OSError):  # Where the server has ended the connection.
                writer.write(then.replace("{token}", token()).encode())
                writer.write_eof()
                rest = await read_to_the_end(reader)
            return Answer(answer.decode()), Answer(rest.decode())
    finally:
        writer.close()


async def test_bytes_after_an_upgrade_are_not_a_request(service, unchanged):
    length = f"Content-Length: {len(attacks.SMUGGLED)}\r\n\r\n"
    head = attacks.NO_TOKEN + "Connection: Upgrade\r\nUpgrade: h2c\r\n" + length
    first, then = await answered(service, head, attacks.SMUGGLED)
    assert (first.status, first.code, then.text) == (400, "invalid_request", "")


async def test_an_endless_trailer_is_not_stored(service, unchanged):
    head = "POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: "
    first, then = await answered(service, head, "a" * 40_000)
    assert (first.status, then.status, then.code) == (404, 431, "headers_too_large")


async def test_a_body_in_chunks_of_one_byte_is_accepted(owner):
    async def chunks():
        for byte in b'{"id": "small", "queue": "small", "payload": "' + b"x" * 10_000 + b'"}':
            yield bytes([byte])

    answer = await owner.post("/v1/jobs", content=chunks(), headers={"content-type": "application/json"})
    assert answer.status_code == 201


async def test_the_openapi_path_serves_only_the_document(bare):
    answer = await bare.post("/openapi.json")
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "GET"


@pytest.mark.parametrize("sub", ["\0x", "x" * 3000, "a\nb", ""])
async def test_a_subject_that_is_no_valid_worker_id_is_not_used_as_one(service, sub):
    tenant = f"subject-{len(sub)}"
    client = await service.bare(signed(tid=tenant, sub=sub))
    await client.enqueue(id="x")
    await client.claim()
    assert (await client.get("/v1/queues/default/jobs/x")).json()["worker_id"] == "http"


async def test_a_request_after_a_body_is_a_request_of_its_own(service):
    """A pipelined request is answered by itself, in order; none of it counts as the first one's body."""
    two = "GET /v1/queues HTTP/1.1\r\n" + attacks.HEAD + "\r\nGET /nothing HTTP/1.1\r\n" + attacks.HEAD
    answer = await raw(service, two)
    assert answer.statuses == [200, 404]


ITEM_ROUTES = [
    ("GET", "/v1/queues/{queue}/jobs/{id}"),
    ("DELETE", "/v1/queues/{queue}/jobs/{id}"),
    ("GET", "/v1/queues/{queue}/jobs/{id}/result"),
    ("GET", "/v1/queues/{queue}/jobs/{id}/events"),
    ("GET", "/v1/queues/{queue}/jobs"),
    ("GET", "/v1/queues/{queue}/stats"),
    ("GET", "/v1/queues/{queue}/dead-letters"),
    ("GET", "/v1/queues/{queue}/jobs/{id}/explain"),
]


def comparable(answer):
    skipped = ("date", "x-request-id")
    return answer.status_code, answer.content, [line for line in answer.headers.raw if line[0].decode() not in skipped]


@pytest.mark.parametrize("queue, id", [("default", "secret"), ("held", "held"), ("dead", "dead")])
@pytest.mark.parametrize("method, path", ITEM_ROUTES)
async def test_another_tenants_data_answers_byte_for_byte_like_missing_data(
    service, unchanged, method, path, queue, id
):
    """[TENANT-2] Another tenant asks for data of `acme`, and for data that does not exist."""
    stranger = await service.client("stranger")
    foreign = await stranger.request(method, path.format(queue=queue, id=id))
    nothing = await stranger.request(method, path.format(queue=f"{queue[:-1]}x", id=id))
    status, content, headers = comparable(nothing)
    made_up = f"{queue[:-1]}x".encode()
    assert comparable(foreign) == (status, content.replace(made_up, queue.encode()), headers)


async def test_queues_of_another_tenant_are_not_listed(service, unchanged):
    """[TENANT-2]"""
    answer = await (await service.client("stranger")).get("/v1/queues")
    assert (answer.status_code, answer.content) == (200, b'{"queues":[],"cursor":null}')


@pytest.mark.parametrize("path", ["/v1/leases:finish", "/v1/leases:extend", "/v1/leases:report"])
async def test_another_tenants_lease_is_lost_like_a_missing_one_and_stays_live(service, unchanged, path):
    """Not even with its correct token."""
    stranger = await service.client("stranger")
    more = {
        "/v1/leases:finish": {"outcome": "complete", "result": 1},
        "/v1/leases:extend": {"lease_s": 60},
        "/v1/leases:report": {"progress": {"fraction": 1}},
    }[path]
    held = service.held
    true = {"queue": "held", "id": "held", "token": held["token"], **more}
    made_up = {"queue": "held", "id": "made-up", "token": held["token"], **more}
    items = (await stranger.post(path, json={"leases": [true, made_up]})).json()["items"]
    assert [item["error"]["code"] for item in items] == ["lease_lost", "lease_lost"]
    assert items[0]["error"]["message"].replace("'held' in", "'made-up' in") == items[1]["error"]["message"]


@pytest.mark.parametrize("verb, more", [("cancel", {}), ("purge", {}), ("set-result-ttl", {"result_ttl_s": 1})])
@pytest.mark.parametrize("queue, id", [("default", "secret"), ("held", "held"), ("dead", "dead")])
async def test_a_batch_with_another_tenants_job_answers_as_for_a_missing_job(service, unchanged, verb, more, queue, id):
    """[TENANT-2]"""
    stranger = await service.client("stranger")
    jobs = [{"id": id, **more}, {"id": "made-up", **more}]
    answer = await stranger.post(f"/v1/queues/{queue}/jobs:{verb}", json={"jobs": jobs})
    assert answer.json()["items"] == [{"status": "not_found"}] * 2


async def test_another_tenants_dead_letters_are_neither_replayed_nor_purged(service, unchanged):
    stranger = await service.client("stranger")
    path = "/v1/queues/dead/dead-letters"
    answer = (await stranger.post(f"{path}:replay", json={"ids": ["dead"]})).json()
    assert answer["tenant"] == "stranger"
    assert answer["items"][0]["error"]["code"] == "job_not_found"
    assert (await stranger.post(f"{path}:replay", json={"where": {}})).json()["items"] == []
    assert (await stranger.post(f"{path}:purge", json={})).json()["purged"] == 0


async def test_every_operators_route_names_its_tenant(service, unchanged):
    stranger, asked = await service.client("stranger"), set()
    for route in ROUTES:
        # Those of one schedule or flow do so in tests of their own, where there is one.
        if route.scope == "jobs:admin" and not {"{name}", "{id}"} & {*re.findall(r"{\w+}", route.path)}:
            by_filter = route.path.endswith(("dead-letters:replay", "/v1/jobs:cancel"))
            body = {"json": {route.batch: []} if route.batch else {"where": {}} if by_filter else {}}
            answer = await stranger.request(
                route.method, route.path.format(queue="empty"), **(body if route.body else {})
            )
            assert (answer.status_code, answer.json()["tenant"]) == (200, "stranger")
            asked.add(route.path.rpartition("/")[2])
    assert asked >= {"pause", "resume", "dead-letters:replay", "dead-letters:purge", "jobs:purge"}


async def test_another_tenant_claims_no_job_and_sees_no_event(service, unchanged):
    stranger = await service.client("stranger")
    assert await stranger.claim("default", "held", "dead") == []
    stream = await stranger.get("/v1/events", params={"follow": "false"})
    assert "secret" not in stream.text
    assert "data:" not in stream.text


async def test_metrics_name_no_tenant_no_queue_and_no_job(service, owner, bare):
    http_metrics.enable()
    assert (await owner.get(SECRET)).status_code == 200
    await (await service.client("stranger")).get(SECRET)
    text = (await bare.get("/metrics")).text
    assert 'route="/v1/queues/{queue}/jobs/{id}",status="200"' in text
    assert not re.search(r"acme|stranger|secret|default|held\b", text)


QUEUE_ROUTES = [
    *((method, path, None) for method, path in ITEM_ROUTES),
    ("POST", "/v1/queues/{queue}/pause", None),
    ("POST", "/v1/queues/{queue}/resume", None),
    ("POST", "/v1/queues/{queue}/jobs:cancel", {"jobs": [{"id": "secret"}]}),
    ("POST", "/v1/queues/{queue}/jobs:purge", {"jobs": [{"id": "secret"}]}),
    ("POST", "/v1/queues/{queue}/jobs:set-result-ttl", {"jobs": [{"id": "secret", "result_ttl_s": 1}]}),
    ("POST", "/v1/queues/{queue}/dead-letters:replay", {"ids": ["secret"]}),
    ("POST", "/v1/queues/{queue}/dead-letters:replay", {"where": {}}),
    ("POST", "/v1/queues/{queue}/dead-letters:purge", {}),
]
NOT_FOR = "the token is not for the queue 'default'"


async def test_all_routes_of_a_queue_are_tried_with_a_token_for_another():
    of_queue = {(route.method, route.path) for route in ROUTES if "{queue}" in route.path}
    assert of_queue == {(method, path) for method, path, _ in QUEUE_ROUTES}


@pytest.mark.parametrize("method, path, body", QUEUE_ROUTES)
async def test_a_token_for_some_queues_is_not_valid_for_others(service, unchanged, method, path, body):
    client = await service.client(queues=["held"])
    more = {} if body is None else {"json": body}
    answer = await client.request(method, path.format(queue="default", id="secret"), **more)
    assert problem(answer, 403, "queue_forbidden")["detail"] == NOT_FOR


async def test_a_workers_token_for_some_queues_claims_finishes_and_lists_no_other(service, unchanged):
    client = await service.client(queues=["held"])
    problem(await client.post("/v1/claims", json={"queues": ["held", "default"]}), 403, "queue_forbidden")
    problem(await client.post("/v1/jobs", json={"queue": "default"}), 403, "queue_forbidden")
    lease = {"queue": "default", "id": "secret", "token": service.context.proofs.sign("acme", "default", "secret", 1)}
    for verb, more in (("finish", {"outcome": "complete"}), ("extend", {}), ("report", {"progress": {"fraction": 1}})):
        answer = await client.post(f"/v1/leases:{verb}", json={"leases": [{**lease, **more}]})
        assert answer.json()["items"] == [{"error": {"code": "queue_forbidden", "message": NOT_FOR}}]
    assert [one["queue"] for one in (await client.get("/v1/queues")).json()["queues"]] == ["held"]
    events = (await client.get("/v1/events", params={"follow": "false"})).text
    assert '"queue":"held"' in events
    assert "secret" not in events


async def test_another_tenants_cursor_shows_none_of_its_jobs(service):
    owner = await service.client("rich")
    await owner.post("/v1/jobs:batch", json={"jobs": [{"id": f"rich-{n}"} for n in range(3)]})
    cursor = (await owner.get("/v1/queues/default/jobs", params={"limit": 1})).json()["cursor"]
    stranger = await service.client("stranger")
    answer = await stranger.get("/v1/queues/default/jobs", params={"cursor": cursor})
    assert "rich" not in answer.text


@pytest.mark.parametrize(
    "header, value",
    [("x-request-id", "a\tb"), ("x-request-id", "<script>"), ("traceparent", "00-zz-1-1"), ("x-request-id", "a" * 65)],
)
async def test_a_malformed_request_id_or_trace_is_not_passed_on(owner, header, value):
    answer = await owner.post("/v1/claims", json={"queues": ["nobodys"]}, headers={header: value})
    assert answer.status_code == 200
    assert value not in answer.headers.values()


async def test_an_answer_is_never_rendered_as_a_page(owner):
    answer = await owner.get("/v1/queues/default/jobs/%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers


class Answer:
    """The bytes that a raw connection returned."""

    def __init__(self, text):
        self.text = text
        self.statuses = [int(status) for status in re.findall(r"HTTP/1\.1 (\d{3}) ", text)]
        self.count = len(self.statuses)
        self.status = self.statuses[0] if self.statuses else 0
        self.head, _, body = text.partition("\r\n\r\n")
        self.code = json.loads(body)["code"] if body.startswith("{") and self.count == 1 else None


async def raw(service, text, body=None):
    """Send these bytes, and read until the server closes the connection."""
    if body is not None or text.endswith(attacks.HEAD):
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        text += f"{length}Connection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
    try:
        writer.write(text.replace("{token}", token()).encode("latin-1") + (body or b""))
        writer.write_eof()
        async with asyncio.timeout(20):
            return Answer((await read_to_the_end(reader)).decode("latin-1"))
    finally:
        writer.close()
