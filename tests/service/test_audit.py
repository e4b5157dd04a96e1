"""Who did what: a line for each act of an operator, with who, from where, on what and how it ended; never a secret."""

import json
import logging

import pytest

from holdfast.core.job import JobState
from holdfast.core.names import AUDIT, OPERATOR
from holdfast.ids import new_id
from holdfast.opening import open_store
from holdfast.service.app import ROUTES
from holdfast.service.listening import listen
from holdfast.service.server import running
from holdfast.service.settings import ServiceSettings
from holdfast.service.tokens import ADMIN
from holdfast.store import ListQuery
from holdfast.telemetry.logging import JsonFormatter
from tests.service.support import TOKENS, Client, serving, signed, token


class Lines(logging.Handler):
    """Collects the lines of the audit trail, as JSON text."""

    def __init__(self):
        super().__init__()
        self.texts = []
        self.setFormatter(JsonFormatter())

    def emit(self, record):
        self.texts.append(self.format(record))

    def taken(self):
        """The lines since the last call, without the fields that differ each time."""
        found, self.texts = [json.loads(text) for text in self.texts], []
        for line in found:
            assert line.pop("request_id")
            assert (line.pop("logger"), line.pop("event"), line.pop("via")) == ("holdfast.audit", "audit", "http")
            del line["at"], line["level"]
        return found


@pytest.fixture
def lines():
    lines, logger = Lines(), logging.getLogger("holdfast.audit")
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(lines)
    logger.setLevel(logging.NOTSET)


WHO = {"sub": "ops@example.com", "jti": "token-1", "address": "127.0.0.1", "tenant": "acme"}


def operator(**changes):
    return signed(sub=WHO["sub"], jti=WHO["jti"], **changes)


def test_every_route_of_an_operator_has_a_name_in_the_trail():
    for route in ROUTES:
        changes = route.scope == ADMIN and route.method != "GET"
        assert bool(route.action) or not changes, route.path


async def test_each_action_of_an_operator_is_one_line(lines):
    async with serving("memory:audit") as service:
        client = await service.bare(operator())
        await client.post("/v1/queues/q/pause")
        await client.post("/v1/queues/q/resume")
        assert lines.taken() == [
            {"action": "queue.pause", "outcome": "done", **WHO, "queue": "q"},
            {"action": "queue.resume", "outcome": "done", **WHO, "queue": "q"},
        ]

        for number in range(3):
            await client.enqueue(queue="q", id=f"j{number}", payload="classified", max_attempts=1)
        for job in await client.claim("q", limit=3):
            await client.finish(job, "fail", error={"type": "E", "message": "classified"})
        await client.post("/v1/queues/q/dead-letters:replay", json={"ids": ["j0", "nowhere"]})
        await client.post("/v1/queues/q/dead-letters:replay", json={"where": {"type": "", "error": "E"}})
        assert lines.taken() == [
            {
                "action": "dead_letters.replay", "outcome": "done", **WHO, "queue": "q", "ids": ["j0", "nowhere"],
                "count": 2, "answers": {"replayed": 1, "job_not_found": 1},
            },
            {"action": "dead_letters.replay", "outcome": "done", **WHO, "queue": "q", "error": "E",
             "answers": {"replayed": 2}},
        ]  # fmt: skip

        await client.delete("/v1/queues/q/jobs/j0")
        await client.post("/v1/queues/q/jobs:cancel", json={"jobs": [{"id": "j1"}, {"id": "nowhere"}]})
        await client.post("/v1/queues/q/jobs:purge", json={"jobs": [{"id": "j0"}]})
        await client.post("/v1/queues/q/dead-letters:purge", json={"before": "2026-01-01T00:00:00Z", "type": "t"})
        canceled, several, forgotten, purged = lines.taken()
        assert canceled == {
            "action": "job.cancel", "outcome": "done", **WHO, "queue": "q", "id": "j0", "answers": {"canceled": 1}
        }  # fmt: skip
        assert (several["action"], several["answers"]) == ("jobs.cancel", {"canceled": 1, "not_found": 1})
        assert (forgotten["action"], forgotten["ids"], forgotten["count"]) == ("jobs.purge", ["j0"], 1)
        assert (purged["action"], purged["type"], purged["count"]) == ("dead_letters.purge", "t", 0)

        body = {"every_s": 60, "queue": "q", "type": "t", "payload": "classified"}
        await client.put("/v1/schedules/nightly", json=body)
        await client.delete("/v1/schedules/nightly")
        put, removed = lines.taken()
        assert put == {
            "action": "schedule.put", "outcome": "done", **WHO, "name": "nightly", "queue": "q", "type": "t",
            "every_s": 60.0,
        }  # fmt: skip
        assert removed == {"action": "schedule.remove", "outcome": "done", **WHO, "name": "nightly"}


async def _acted(client):
    """Who acted, by the events of the log: each kind and operator once."""
    await client.enqueue(queue="q", id="c1")
    await client.enqueue(queue="q", id="c2")
    await client.enqueue(queue="q", id="c3", type="t")
    await client.delete("/v1/queues/q/jobs/c1")
    await client.post("/v1/queues/q/jobs:cancel", json={"jobs": [{"id": "c2"}]})
    await client.post("/v1/jobs:cancel", json={"where": {"queue": "q", "type": "t"}})
    for number in range(3):
        await client.enqueue(queue="q", id=f"d{number}", max_attempts=1)
    for replays in range(3):
        for job in await client.claim("q", limit=3):
            await client.finish(job, "fail", error={"type": "E", "message": "no"})
        if replays < 2:
            chosen = {"where": {"error": "E"}} if replays else {"ids": ["d0", "d1", "d2"]}
            await client.post("/v1/queues/q/dead-letters:replay", json=chosen)
    await client.post("/v1/queues/q/jobs:purge", json={"jobs": [{"id": "d0"}]})
    await client.post("/v1/queues/q/dead-letters:purge", json={})
    lines = (await client.get("/v1/events?follow=false")).text.splitlines()
    events = [json.loads(line.partition(":")[2]) for line in lines if line.startswith("data:")]
    kinds = ("canceled", "replayed", "purged")
    acts = [event for event in events if event["kind"] in kinds]
    assert [sum(event["kind"] == kind for event in acts) for kind in kinds] == [3, 6, 3]
    assert not any("by" in event["data"] for event in events if event["kind"] not in kinds)
    return {event["data"].get("by") for event in acts}


@pytest.mark.parametrize(
    "claims, name",
    [
        ({"sub": "ops@example.com", "jti": "token-1"}, "ops@example.com"),
        ({"sub": None, "jti": "token-1"}, "token-1"),
        ({"sub": None, "jti": None}, "a token"),
        ({"sub": "\u00fc\n\u0000" + "x" * 300}, "\u00fc??" + "x" * 197),
    ],
)
async def test_the_events_of_an_action_name_the_token(claims, name):
    async with serving(f"memory:{new_id()}") as service:
        assert await _acted(await service.bare(signed(**claims))) == {name}


async def test_a_client_cannot_say_who_acts():
    async with serving("memory:audit-claims-to-be") as service:
        client = await service.bare(operator())
        await client.enqueue(queue="q", id="j")
        for path, body in (
            ("jobs:cancel", {"jobs": [{"id": "j", "by": "bob"}]}),
            ("jobs:purge", {"jobs": [{"id": "j", "by": "bob"}]}),
            ("dead-letters:replay", {"ids": ["j"], "by": "bob"}),
            ("dead-letters:purge", {"by": "bob"}),
        ):
            answer = await client.post(f"/v1/queues/q/{path}", json=body)
            assert answer.status_code >= 400 or "error" in answer.json()["items"][0], (path, answer.text)
        assert (await client.delete("/v1/queues/q/jobs/j?by=bob")).status_code >= 400
        await client.delete("/v1/queues/q/jobs/j")
        *_, last = (await client.get("/v1/queues/q/jobs/j/events")).json()["events"]
        assert (last["kind"], last["data"]) == ("canceled", {"by": "ops@example.com"})


async def test_refused_and_failed_actions_are_in_the_trail_too(lines, monkeypatch):
    async with serving("memory:audit-refused") as service:
        shy = await service.bare(operator(scope="jobs:read"))
        await shy.post("/v1/queues/q/pause")
        narrow = await service.bare(operator(queues=["other"]))
        await narrow.post("/v1/queues/q/pause")
        client = await service.bare(operator())
        await client.post("/v1/queues/q/dead-letters:replay", json={})
        await client.delete("/v1/schedules/none")

        async def broken(*_, **__):
            raise RuntimeError("a secret of the house")

        with monkeypatch.context() as patch:
            patch.setattr(service.context.store, "pause", broken)
            await client.post("/v1/queues/q/pause")
    said = lines.texts[:]
    assert [(line["action"], line["outcome"]) for line in lines.taken()] == [
        ("queue.pause", "scope_missing"),
        ("queue.pause", "queue_forbidden"),
        ("dead_letters.replay", "invalid_option"),
        ("schedule.remove", "job_not_found"),
        ("queue.pause", "internal_error"),
    ]
    assert "secret" not in "".join(said)


async def test_only_actions_of_operators_are_in_the_trail(lines):
    async with serving("memory:audit-others") as service:
        producer = await service.bare(operator(scope="jobs:produce jobs:read"))
        await producer.enqueue(queue="q", id="a")
        await producer.delete("/v1/queues/q/jobs/a")
        await producer.get("/v1/queues/q/jobs/a")
        stranger = await service.bare("not.a.token")
        await stranger.post("/v1/queues/q/pause")
        operators = await service.bare(operator())
        await operators.get("/v1/queues/q/dead-letters")
    assert lines.texts == []


async def test_a_line_of_the_trail_is_bounded_and_has_no_control_characters(lines):
    async with serving("memory:audit-bounds") as service:
        client = await service.bare(signed(sub="s\x9b" * 300, jti="j" * 300))
        where = {"type": "t", "error": "\u202e" * 100_000}
        await client.post("/v1/queues/q/dead-letters:replay", json={"where": where})
        await client.post("/v1/queues/q/dead-letters:replay", json={"ids": [f"{n:0>200}" for n in range(1000)]})
        await client.post("/v1/queues/%0a%1b%ff/pause")
    where, ids, odd = lines.texts
    assert len(where) < 4000
    assert len(ids) < 25_000
    assert (json.loads(ids)["count"], len(json.loads(ids)["ids"])) == (1000, 100)
    assert json.loads(odd)["outcome"] == "invalid_request"
    assert all(text.isprintable() for text in lines.texts)


async def test_a_trusted_proxy_names_the_address_of_its_client(lines):
    async with serving("memory:audit-proxy", proxies="127.0.0.1") as service:
        client = await service.bare(operator())
        await client.post("/v1/queues/q/pause", headers={"x-forwarded-for": "192.0.2.7"})
    assert json.loads(lines.texts[0])["address"] == "192.0.2.7"


async def test_the_trail_can_be_kept_in_a_queue(url, tenant):
    """Each action once, refused ones too; no token can reach that queue, and no list shows it."""
    sock = listen("127.0.0.1", 0, 30)
    settings = ServiceSettings(store=url, tokens=TOKENS, upkeep=False, audit_queue=True)
    async with running(settings, sock) as server, Client(server.port, token(tenant)) as ours:
        await ours.post("/v1/queues/mail/pause")
        await ours.post("/v1/queues/mail/resume")
        async with Client(server.port, token(tenant, ["read"])) as reader:
            assert (await reader.post("/v1/queues/mail/pause")).status_code == 403
        answer = await ours.post("/v1/claims", json={"queues": ["holdfast:audit"]})
        assert answer.json()["code"] == "invalid_name"
        assert (await ours.get("/v1/queues/holdfast%3Aaudit/jobs")).json()["jobs"] == []
    sock.close()
    store = await open_store(url)
    try:
        query = ListQuery(OPERATOR, AUDIT, frozenset({JobState.READY}))
        lines = [json.loads(job.envelope.payload) for job in (await store.list(query)).jobs]
        found = [(line["action"], line["outcome"]) for line in lines if line["tenant"] == tenant]
        assert sorted(found) == [
            ("queue.pause", "done"),
            ("queue.pause", "scope_missing"),
            ("queue.resume", "done"),
        ]
        assert "-holdfast" not in await store.tenants()
    finally:
        await store.close()
