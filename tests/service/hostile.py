"""A hundred more attacks, a line each: what is sent, and the refusal it must get. `test_hostile` sends them.

`w` is the world of the test: `victim` owns everything in it; `stranger` is another tenant with every scope; `narrow`
is of the victim's tenant with a token for the queue `mail` alone; `held` and `other` are leases of the victim.
"""

import base64
import json
from urllib.parse import quote

PROOF = "lease proofs"
CURSOR = "cursors and offsets"
NAMES = "names"
SCHEDULE = "schedules"
FLOW = "flows"
STREAM = "event streams"
WORKER = "workers"
BATCH = "batches"
FRAMING = "framing"

SCHEDULES, FLOWS = quote("holdfast:schedules", safe=""), quote("holdfast:flows", safe="")


def finish(who, job, token, **more):
    lease = {"queue": job["queue"], "id": job["id"], "token": token, "outcome": "complete", **more}
    return who.post("/v1/leases:finish", json={"leases": [lease]})


def verb(who, name, job, **changes):
    more = {"extend": {}, "report": {"progress": {"fraction": 0.5}}, "finish": {"outcome": "release"}}[name]
    lease = {"queue": job["queue"], "id": job["id"], "token": job["token"], **more, **changes}
    return who.post(f"/v1/leases:{name}", json={"leases": [lease]})


def parts(w):
    return w.held["token"].split(".")


def proof(change):
    return lambda w: finish(w.victim, w.held, change(*parts(w)))


PROOFS = {
    "the bare number": lambda w: finish(w.victim, w.held, str(w.held["fence"])),
    "kid and number alone": proof(lambda kid, fence, _: f"{kid}.{fence}"),
    "no mac": proof(lambda kid, fence, _: f"{kid}.{fence}."),
    "mac of zeros": proof(lambda kid, fence, mac: f"{kid}.{fence}.{'0' * len(mac)}"),
    "mac in capitals": proof(lambda kid, fence, mac: f"{kid}.{fence}.{mac.upper()}X"),
    "half a mac": proof(lambda kid, fence, mac: f"{kid}.{fence}.{mac[:16]}"),
    "a mac and more": proof(lambda kid, fence, mac: f"{kid}.{fence}.{mac}0"),
    "the next number": proof(lambda kid, fence, mac: f"{kid}.{int(fence) + 1}.{mac}"),
    "the number before": proof(lambda kid, fence, mac: f"{kid}.{int(fence) - 1}.{mac}"),
    "a zero before the number": proof(lambda kid, fence, mac: f"{kid}.0{fence}.{mac}"),
    "a plus before the number": proof(lambda kid, fence, mac: f"{kid}.+{fence}.{mac}"),
    "a number below zero": proof(lambda kid, fence, mac: f"{kid}.-{fence}.{mac}"),
    "arabic digits": proof(lambda kid, fence, mac: f"{kid}.{''.join(chr(0x660 + int(n)) for n in fence)}.{mac}"),
    "a number of 4000 digits": proof(lambda kid, fence, mac: f"{kid}.{'9' * 4000}.{mac}"),
    "an unknown kid": proof(lambda _, fence, mac: f"999.{fence}.{mac}"),
    "no kid": proof(lambda _, fence, mac: f".{fence}.{mac}"),
    "a zero before the kid": proof(lambda kid, fence, mac: f"0{kid}.{fence}.{mac}"),
    "a space behind it": proof(lambda kid, fence, mac: f"{kid}.{fence}.{mac} "),
    "a newline behind it": proof(lambda kid, fence, mac: f"{kid}.{fence}.{mac}\n"),
    "NUL in it": proof(lambda kid, fence, mac: f"{kid}.{fence}.{mac[:5]}\0{mac[5:]}"),
    "four parts": proof(lambda kid, fence, mac: f"{kid}.{fence}.{mac}.{mac}"),
    "of another job": lambda w: finish(w.victim, w.held, w.other["token"]),
    "for another job": lambda w: finish(w.victim, {**w.held, "id": w.other["id"]}, w.held["token"]),
    "for another queue": lambda w: finish(w.victim, {**w.held, "queue": "mail"}, w.held["token"]),
    "for a job that is not there": lambda w: finish(w.victim, {**w.held, "id": "none"}, w.held["token"]),
    "by another tenant": lambda w: finish(w.stranger, w.held, w.held["token"]),
    "extend by another tenant": lambda w: verb(w.stranger, "extend", w.held),
    "report by another tenant": lambda w: verb(w.stranger, "report", w.held),
    "release by another tenant": lambda w: verb(w.stranger, "finish", w.held),
    "extend by the number": lambda w: verb(w.victim, "extend", w.held, token=str(w.held["fence"])),
    "report by the number": lambda w: verb(w.victim, "report", w.held, token=str(w.held["fence"])),
    "extend of another's lease": lambda w: verb(w.victim, "extend", w.held, token=w.other["token"]),
}
"""Each answers `lease_lost` for its item, before anything else. [LEASE-1]"""


def get(who, path, **query):
    return lambda w: getattr(w, who).get(path, params=query)


def put(who, name, **body):
    return lambda w: getattr(w, who).put(f"/v1/schedules/{quote(name, safe='')}", json={"queue": "mail", **body})


def flow(who, *steps, **more):
    return lambda w: getattr(w, who).post("/v1/flows", json={"name": "f", "steps": list(steps), **more})


def post(who, path, **body):
    return lambda w: getattr(w, who).post(path, json=body)


def delete(who, path):
    return lambda w: getattr(w, who).delete(path)


LISTS = ("/v1/queues/default/jobs", "/v1/queues/default/dead-letters", "/v1/queues", "/v1/schedules", "/v1/types")

REFUSED = [
    # What is sent, the status, the code.
    (CURSOR, "a page of none", get("stranger", LISTS[0], limit=0), 400, "invalid_request"),
    (CURSOR, "a page of fewer", get("stranger", LISTS[0], limit=-1), 400, "invalid_request"),
    (CURSOR, "a page of too many", get("stranger", LISTS[0], limit=1001), 400, "invalid_request"),
    (CURSOR, "a page and a half", get("stranger", LISTS[0], limit="1.5"), 400, "invalid_request"),
    (CURSOR, "a page of arabic ten", get("stranger", LISTS[0], limit="\u0661\u0660"), 400, "invalid_request"),
    (CURSOR, "a cursor that is none", get("victim", LISTS[0], cursor="x"), 400, "invalid_option"),
    (CURSOR, "a cursor that is a path", get("victim", LISTS[0], cursor="../../etc/passwd"), 400, "invalid_option"),
    (CURSOR, "a cursor that is SQL", get("victim", LISTS[0], cursor="' OR 1=1 --"), 400, "invalid_option"),
    (CURSOR, "a cursor of 8000 bytes", get("victim", LISTS[0], cursor="9" * 8000), 400, "invalid_option"),
    (CURSOR, "a cursor with NUL", get("victim", LISTS[0], cursor="a\0b"), 400, "invalid_option"),
    (CURSOR, "a cursor below zero", get("victim", LISTS[0], cursor="-1"), 400, "invalid_option"),
    (CURSOR, "a cursor of dead letters", get("victim", LISTS[1], cursor="x"), 400, "invalid_option"),
    (CURSOR, "a cursor of queues with NUL", get("stranger", LISTS[2], cursor="a\0b"), 400, "invalid_option"),
    (CURSOR, "a cursor of schedules", get("victim", LISTS[3], cursor="x"), 400, "invalid_option"),
    (CURSOR, "a cursor of types", get("stranger", LISTS[4], cursor="x"), 400, "invalid_option"),
    (CURSOR, "a state that is none", get("stranger", LISTS[0], state="ready;drop"), 400, "invalid_request"),
    (CURSOR, "an unknown parameter", get("stranger", LISTS[0], tenant="victim"), 400, "invalid_request"),
    (CURSOR, "an offset that is none", get("stranger", "/v1/events", after="x", follow="false"), 400, "invalid_option"),
    (CURSOR, "an offset with a newline", get("stranger", "/v1/events", after="1\n2", follow="false"), 400,
     "invalid_option"),
    (CURSOR, "an offset of 8000 digits", get("stranger", "/v1/events", after="9" * 8000, follow="false"), 400,
     "invalid_option"),
    (CURSOR, "an offset of arabic digits", get("stranger", "/v1/events", after="\u0661\u0662", follow="false"), 400,
     "invalid_option"),
    (NAMES, "a queue of dots", get("stranger", "/v1/queues/%2e%2e/jobs"), 400, "invalid_name"),
    (NAMES, "a queue with NUL", get("stranger", "/v1/queues/a%00b/jobs"), 400, "invalid_name"),
    (NAMES, "a queue with a newline", get("stranger", "/v1/queues/a%0ab/stats"), 400, "invalid_name"),
    (NAMES, "an overlong slash", get("stranger", "/v1/queues/a%c0%afb/jobs"), 400, "invalid_request"),
    (NAMES, "a surrogate", get("stranger", "/v1/queues/a%ed%a0%80/jobs"), 400, "invalid_request"),
    (NAMES, "an id of 513 bytes", get("stranger", "/v1/queues/default/jobs/" + "a" * 513), 400, "invalid_name"),
    (NAMES, "an id with a carriage return", get("stranger", "/v1/queues/default/jobs/a%0db"), 400, "invalid_name"),
    (NAMES, "enqueue into schedules", post("stranger", "/v1/jobs", queue="holdfast:schedules"), 400, "invalid_name"),
    (NAMES, "enqueue into flows", post("stranger", "/v1/jobs", queue="holdfast:flows"), 400, "invalid_name"),
    (NAMES, "enqueue into lease keys", post("stranger", "/v1/jobs", queue="holdfast:lease-keys"), 400, "invalid_name"),
    (NAMES, "claim schedules", post("stranger", "/v1/claims", queues=["holdfast:schedules"]), 400, "invalid_name"),
    (NAMES, "claim revocations", post("stranger", "/v1/claims", queues=["holdfast:revoked"]), 400, "invalid_name"),
    (NAMES, "pause flows", lambda w: w.victim.post(f"/v1/queues/{FLOWS}/pause"), 400, "invalid_name"),
    (NAMES, "cancel in schedules", post("victim", f"/v1/queues/{SCHEDULES}/jobs:cancel", jobs=[{"id": "nightly"}]), 400,
     "invalid_name"),
    (NAMES, "purge in flows", post("victim", f"/v1/queues/{FLOWS}/jobs:purge", jobs=[{"id": "secret"}]), 400,
     "invalid_name"),
    (NAMES, "a worker id with a newline", post("stranger", "/v1/claims", queues=["q"], worker_id="a\nb"), 400,
     "invalid_name"),
    (SCHEDULE, "another tenant's", get("stranger", "/v1/schedules/nightly"), 404, "job_not_found"),
    (SCHEDULE, "remove another tenant's", delete("stranger", "/v1/schedules/nightly"), 404, "job_not_found"),
    (SCHEDULE, "another queue's", get("narrow", "/v1/schedules/nightly"), 404, "job_not_found"),
    (SCHEDULE, "remove another queue's", delete("narrow", "/v1/schedules/nightly"), 404, "job_not_found"),
    (SCHEDULE, "by the route of jobs", get("narrow", f"/v1/queues/{SCHEDULES}/jobs/nightly"), 403, "queue_forbidden"),
    (SCHEDULE, "take a name", put("narrow", "nightly", every_s=60), 400, "invalid_name"),
    (SCHEDULE, "a free name without its queue", put("narrow", "free", every_s=60), 400, "invalid_name"),
    (SCHEDULE, "the name of another queue", put("narrow", "a@default", every_s=60), 400, "invalid_name"),
    (SCHEDULE, "nothing before the queue", put("narrow", "@mail", every_s=60), 400, "invalid_name"),
    (SCHEDULE, "into another queue", put("narrow", "a@mail", every_s=60, queue="default"), 403, "queue_forbidden"),
    (SCHEDULE, "into schedules", put("stranger", "a", every_s=60, queue="holdfast:schedules"), 400, "invalid_name"),
    (SCHEDULE, "at no time", put("stranger", "a"), 400, "invalid_option"),
    (SCHEDULE, "by both", put("stranger", "a", every_s=60, cron="* * * * *"), 400, "invalid_option"),
    (SCHEDULE, "every 0 s", put("stranger", "a", every_s=0), 400, "invalid_option"),
    (SCHEDULE, "every -1 s", put("stranger", "a", every_s=-1), 400, "invalid_option"),
    (SCHEDULE, "every millisecond", put("stranger", "a", every_s=0.001), 400, "invalid_option"),
    (SCHEDULE, "every 1e300 s", put("stranger", "a", every_s=1e300), 400, "invalid_option"),
    (SCHEDULE, "by seconds", put("stranger", "a", cron="* * * * * *"), 400, "invalid_option"),
    (SCHEDULE, "at minute 60", put("stranger", "a", cron="60 * * * *"), 400, "invalid_option"),
    (SCHEDULE, "in steps of 0", put("stranger", "a", cron="*/0 * * * *"), 400, "invalid_option"),
    (SCHEDULE, "on the 30th of February", put("stranger", "a", cron="0 0 30 2 *"), 400, "invalid_option"),
    (SCHEDULE, "by 10000 commas", put("stranger", "a", cron="0" + ",0" * 10_000 + " * * * *"), 400, "invalid_option"),
    (SCHEDULE, "a time zone that is a file", put("stranger", "a", cron="* * * * *", timezone="/etc/passwd"), 400,
     "invalid_option"),
    (SCHEDULE, "a time zone above", put("stranger", "a", cron="* * * * *", timezone="../../../etc/passwd"), 400,
     "invalid_option"),
    (SCHEDULE, "a time zone with NUL", put("stranger", "a", cron="* * * * *", timezone="UTC\0"), 400, "invalid_option"),
    (SCHEDULE, "a payload over 256 KiB", put("stranger", "a", every_s=60, payload="x" * 300_000), 413,
     "payload_too_large"),
    (SCHEDULE, "a name with a newline", put("stranger", "a\nb", every_s=60), 400, "invalid_name"),
    (SCHEDULE, "a name of 600 bytes", put("stranger", "a" * 600, every_s=60), 400, "invalid_name"),
    (FLOW, "another tenant's", get("stranger", "/v1/flows/secret"), 404, "job_not_found"),
    (FLOW, "the result of another tenant's", get("stranger", "/v1/flows/secret/result"), 404, "job_not_found"),
    (FLOW, "cancel another tenant's", delete("stranger", "/v1/flows/secret"), 404, "job_not_found"),
    (FLOW, "replay another tenant's", lambda w: w.stranger.post("/v1/flows/secret/replay"), 404, "job_not_found"),
    (FLOW, "another queue's", get("narrow", "/v1/flows/secret"), 404, "job_not_found"),
    (FLOW, "the result of another queue's", get("narrow", "/v1/flows/secret/result"), 404, "job_not_found"),
    (FLOW, "cancel another queue's", delete("narrow", "/v1/flows/secret"), 404, "job_not_found"),
    (FLOW, "a step in another queue", flow("narrow", {"name": "a", "queue": "default"}), 403, "queue_forbidden"),
    (FLOW, "a step among flows", flow("stranger", {"name": "a", "queue": "holdfast:flows"}), 400, "invalid_name"),
    (FLOW, "a step after itself", flow("stranger", {"name": "a", "after": ["a"]}), 400, "invalid_option"),
    (FLOW, "a circle", flow("stranger", {"name": "a", "after": ["b"]}, {"name": "b", "after": ["a"]}), 400,
     "invalid_option"),
    (FLOW, "after nothing", flow("stranger", {"name": "a", "after": ["z"]}), 400, "invalid_option"),
    (FLOW, "two of a name", flow("stranger", {"name": "a"}, {"name": "a"}), 400, "invalid_option"),
    (FLOW, "no steps", flow("stranger"), 400, "invalid_request"),
    (FLOW, "1001 steps", flow("stranger", *({"name": f"s{n}"} for n in range(1001))), 400, "invalid_request"),
    (FLOW, "edges without end", flow("stranger", *(
        {"name": f"s{n}", "after": [f"s{m}" for m in range(n)]} for n in range(200)
    )), 400, "invalid_option"),
    (FLOW, "a name with a slash", flow("stranger", {"name": "a/b"}), 400, "invalid_name"),
    (FLOW, "payloads over 256 KiB together", flow("stranger", *(
        {"name": f"s{n}", "payload": "x" * 100_000} for n in range(4)
    )), 413, "payload_too_large"),
    (FLOW, "an id of 200 bytes", flow("stranger", {"name": "a"}, id="a" * 200), 400, "invalid_name"),
    (STREAM, "a kind that is none", get("stranger", "/v1/events", kinds="enqueued,x"), 400, "invalid_request"),
    (STREAM, "kinds of commas", get("stranger", "/v1/events", kinds=","), 400, "invalid_request"),
    (STREAM, "follow maybe", get("stranger", "/v1/events", follow="maybe"), 400, "invalid_request"),
    (STREAM, "without the scope", get("producer", "/v1/events"), 403, "scope_missing"),
    (STREAM, "a body", lambda w: w.stranger.request("GET", "/v1/events", json={}), 400, "invalid_request"),
    (WORKER, "no queue", post("stranger", "/v1/workers:beat", worker_id="w", queues=[]), 400, "invalid_request"),
    (WORKER, "a reserved queue", post("stranger", "/v1/workers:beat", worker_id="w", queues=["holdfast:flows"]), 400,
     "invalid_name"),
    (WORKER, "another queue", post("narrow", "/v1/workers:beat", worker_id="w", queues=["default"]), 403,
     "queue_forbidden"),
    (WORKER, "a life of years", post("stranger", "/v1/workers:beat", worker_id="w", queues=["q"], ttl_s=1e9), 400,
     "invalid_request"),
    (WORKER, "1001 types", post("stranger", "/v1/workers:beat", worker_id="w", queues=["q"],
                                types=[{"name": f"t{n}"} for n in range(1001)]), 400, "invalid_request"),
    (WORKER, "a type of endless attempts", post("stranger", "/v1/workers:beat", worker_id="w", queues=["q"],
                                                types=[{"name": "t", "max_attempts": 10**6}]), 400, "invalid_option"),
    (WORKER, "a type in a queue that is not its own", post("narrow", "/v1/workers:beat", worker_id="w",
     queues=["mail"], types=[{"name": "bill", "queue": "default"}]), 403, "queue_forbidden"),
    (WORKER, "the type of another queue's workers", post("narrow", "/v1/workers:beat", worker_id="w", queues=["mail"],
     types=[{"name": "bill", "queue": "mail"}]), 403, "queue_forbidden"),
    (BATCH, "purge in another queue", post("narrow", "/v1/queues/default/jobs:purge", jobs=[{"id": "dead"}]), 403,
     "queue_forbidden"),
    (BATCH, "cancel in another queue", post("narrow", "/v1/queues/default/jobs:cancel", jobs=[{"id": "secret"}]), 403,
     "queue_forbidden"),
    (BATCH, "replay in another queue", post("narrow", "/v1/queues/default/dead-letters:replay", ids=["dead"]), 403,
     "queue_forbidden"),
    (BATCH, "replay by both", post("victim", "/v1/queues/default/dead-letters:replay", ids=["x"], where={}), 400,
     "invalid_option"),
    (BATCH, "replay of 1001", post("victim", "/v1/queues/default/dead-letters:replay", ids=["x"] * 1001), 400,
     "invalid_request"),
    (BATCH, "purge before the year 1", lambda w: w.victim.post(
        "/v1/queues/default/dead-letters:purge", json={"before": "0000-01-01T00:00:00Z"}), 400, "invalid_request"),
]  # fmt: skip

PACKED = {
    "a time that is none": b"\xc7\x03\xff\0\0\0",
    "not a number": b"\xcb\x7f\xf8\0\0\0\0\0\0",
    "a map in a key": b"\x81\x80\x01",
    "more behind the value": b"\x01\x01",
    "a list of four billion": b"\xdd\xff\xff\xff\xff",
    "a key twice": b"\x82\xa1a\x01\xa1a\x02",
    "a key twice in another spelling": b"\x82\xa1a\x01\xd9\x01a\x02",
    "text that is not UTF-8": b"\xa2\xc3\x28",
    "nested 101 deep": b"\x91" * 101 + b"\x01",
    "the byte that is never used": b"\xc1",
}
"""Values in MessagePack: each is refused, and none of them reads more than it is."""


def packed(data):
    return json.dumps({"codec": "msgpack", "payload": base64.b64encode(data).decode()})


HEAD = "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
RAW = {
    "a length below zero": HEAD + "Content-Length: -2\r\n\r\n{}",
    "a length with a plus": HEAD + "Content-Length: +2\r\n\r\n{}",
    "two lengths in one": HEAD + "Content-Length: 2, 2\r\n\r\n{}",
    "two lengths": HEAD + "Content-Length: 2\r\nContent-Length: 44\r\n\r\n{}",
    "a length and chunks": HEAD + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks that are none": HEAD + "Transfer-Encoding: xchunked\r\n\r\n{}",
    "chunks twice": HEAD + "Transfer-Encoding: chunked, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a chunk of minus one": HEAD + "Transfer-Encoding: chunked\r\n\r\n-1\r\n{}\r\n0\r\n\r\n",
    "a space before the colon": HEAD + "Content-Length : 2\r\n\r\n{}",
    "a folded header": HEAD + "X-A: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "the preface of HTTP/2": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an upgrade to h2c": HEAD + "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}",
    "no host": "POST /v1/jobs HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n{}",
    "two hosts": HEAD + "Host: y\r\nContent-Length: 2\r\n\r\n{}",
}
"""Requests that another server on the way might read in another way: refused, and the connection is over."""
