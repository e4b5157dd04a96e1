"""What is sent to the service by those who mean it no good. Tables; `test_attacks` sends each."""

import base64
import hashlib
import hmac
import json
import time

import jwt
from cryptography.hazmat.primitives import serialization

from holdfast.service.signing import new_pair
from tests.service.support import KEY, claims, signed, token

PRIVATE, PUBLIC = {}, {}
for _name in ("RS256", "ES256", "EdDSA"):
    PRIVATE[_name], PUBLIC[_name] = new_pair(_name)
ATTACKER, ATTACKER_PUBLIC = new_pair("RS256")

NOW = int(time.time())


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def forged(header, body=None, signature=b""):
    """A token assembled by hand."""
    parts = [json.dumps(header).encode(), json.dumps(body or claims()).encode()]
    return ".".join([*map(b64, parts), b64(signature)])


def by_hmac(key, header, body=None):
    """A token signed by HMAC with any key, even one that PyJWT refuses."""
    text = forged(header, body).rpartition(".")[0]
    return f"{text}.{b64(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


def pem(name):
    key = jwt.PyJWK(PUBLIC[name]).key
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def pair_signed(name, kid=None, key=None, headers=None, **changes):
    """A token signed by a private key."""
    key = jwt.PyJWK(key or PRIVATE[name]).key
    kid = PRIVATE[name]["kid"] if kid is None else kid
    return jwt.encode(claims(**changes), key, algorithm=name, headers={"kid": kid, **(headers or {})})


def with_kid(kid):
    text = forged({"alg": "RS256", "kid": kid, "typ": "JWT"}).rpartition(".")[0]
    return f"{text}.{b64(b'x' * 256)}"


def tampered():
    head, _, signature = signed().split(".")
    other = b64(json.dumps(claims(tid="victim")).encode())
    return f"{head}.{other}.{signature}"


def cut(token, end):
    head, body, signature = token.split(".")
    return f"{head}.{body}.{signature[:end]}"


TOKENS = {
    # The algorithm
    "alg none": (lambda: forged({"alg": "none"}), "token_invalid"),
    "alg None": (lambda: forged({"alg": "None"}), "token_invalid"),
    "alg NONE": (lambda: forged({"alg": "NONE"}), "token_invalid"),
    "alg nOnE": (lambda: forged({"alg": "nOnE"}), "token_invalid"),
    "alg none with a signature": (lambda: forged({"alg": "none"}, signature=b"x" * 32), "token_invalid"),
    "alg empty": (lambda: forged({"alg": ""}), "token_invalid"),
    "alg missing": (lambda: forged({"typ": "JWT"}), "token_invalid"),
    "alg a list": (lambda: forged({"alg": ["HS256"]}), "token_invalid"),
    "alg hs256 in small letters": (lambda: by_hmac(KEY.encode(), {"alg": "hs256"}), "token_invalid"),
    "alg HS384": (lambda: signed(algorithm="HS384"), "token_invalid"),
    "alg HS512": (lambda: signed(algorithm="HS512"), "token_invalid"),
    "alg PS256": (lambda: forged({"alg": "PS256"}, signature=b"x" * 256), "token_invalid"),
    "RSA public key as HMAC secret": (lambda: by_hmac(pem("RS256"), {"alg": "HS256"}), "token_invalid"),
    "EC public key as HMAC secret": (lambda: by_hmac(pem("ES256"), {"alg": "HS256"}), "token_invalid"),
    "public JWK as HMAC secret": (
        lambda: by_hmac(json.dumps(PUBLIC["RS256"]).encode(), {"alg": "HS256", "kid": PUBLIC["RS256"]["kid"]}),
        "token_invalid",
    ),
    "HS256 by RSA key's name": (
        lambda: by_hmac(pem("RS256"), {"alg": "HS256", "kid": PUBLIC["RS256"]["kid"]}), "token_invalid",
    ),
    "empty HMAC key": (lambda: by_hmac(b"", {"alg": "HS256"}), "token_invalid"),
    "RS256 by EC key's name": (lambda: pair_signed("RS256", kid=PUBLIC["ES256"]["kid"]), "token_invalid"),
    "psychic ECDSA signature": (
        lambda: forged({"alg": "ES256", "kid": PUBLIC["ES256"]["kid"]}, signature=b"\0" * 64), "token_invalid",
    ),
    "attacker's key under a known name": (lambda: pair_signed("RS256", key=ATTACKER), "token_invalid"),
    # The header
    "kid a path": (lambda: with_kid("../../../../dev/null"), "token_invalid"),
    "kid an absolute path": (lambda: with_kid("/etc/passwd"), "token_invalid"),
    "kid SQL": (lambda: with_kid("x' UNION SELECT 'key' --"), "token_invalid"),
    "kid a URL": (lambda: with_kid("https://attacker.example/key"), "token_invalid"),
    "kid a command": (lambda: with_kid("|id"), "token_invalid"),
    "kid a number": (lambda: with_kid(1), "token_invalid"),
    "kid a list": (lambda: with_kid(["a"]), "token_invalid"),
    "kid of no key": (lambda: with_kid("nobody"), "token_invalid"),
    "kid with NUL": (lambda: with_kid("a\0b"), "token_invalid"),
    "crit unknown": (lambda: signed(headers={"crit": ["exp"], "exp": 1}), "token_invalid"),
    "crit b64": (lambda: forged({"alg": "HS256", "crit": ["b64"], "b64": False}, signature=b"x"), "token_invalid"),
    "b64 without crit": (lambda: by_hmac(KEY.encode(), {"alg": "HS256", "b64": False}), "token_invalid"),
    "crit b64 that is true": (
        lambda: by_hmac(KEY.encode(), {"alg": "HS256", "crit": ["b64"], "b64": True}), "token_invalid",
    ),
    "crit b64 that is not there": (lambda: by_hmac(KEY.encode(), {"alg": "HS256", "crit": ["b64"]}), "token_invalid"),
    "b64 true without crit": (lambda: by_hmac(KEY.encode(), {"alg": "HS256", "b64": True}), "token_invalid"),
    "key in the token": (
        lambda: pair_signed("RS256", kid="mine", key=ATTACKER, headers={"jwk": ATTACKER_PUBLIC}), "token_invalid",
    ),
    "type JWE": (lambda: signed(headers={"typ": "JWE"}), "token_invalid"),
    "header a list": (lambda: f"{b64(b'[]')}.{b64(b'{}')}.{b64(b'x')}", "token_invalid"),
    "header no JSON": (lambda: f"{b64(b'{')}.{b64(b'{}')}.{b64(b'x')}", "token_invalid"),
    "header nested deeply": (lambda: f"{b64(b'[' * 3000)}.{b64(b'{}')}.{b64(b'x')}", "token_invalid"),
    # The form
    "claims changed": (tampered, "token_invalid"),
    "signature cut": (lambda: cut(signed(), 20), "token_invalid"),
    "signature empty": (lambda: cut(signed(), 0), "token_invalid"),
    "two parts": (lambda: signed().rpartition(".")[0], "token_invalid"),
    "four parts": (lambda: signed() + ".x", "token_invalid"),
    "five parts": (lambda: "a.b.c.d.e", "token_invalid"),
    "dots": (lambda: "...", "token_invalid"),
    "no base64": (lambda: "$$$.$$$.$$$", "token_invalid"),
    "too long": (lambda: signed(x="x" * 9000), "token_invalid"),
    "signed by another key": (lambda: signed(key="another key that is long enough as well"), "token_invalid"),
    "claims a list": (
        lambda: by_hmac(KEY.encode(), {"alg": "HS256"}, ["a"]), "token_invalid",
    ),
    # The claims
    "expired": (lambda: signed(exp=NOW - 60), "token_expired"),
    "exp missing": (lambda: signed(exp=None), "token_invalid"),
    "exp a word": (lambda: signed(exp="tomorrow"), "token_invalid"),
    "exp a list": (lambda: by_hmac(KEY.encode(), {"alg": "HS256"}, claims(exp=[1])), "token_invalid"),
    "exp endless": (lambda: by_hmac(KEY.encode(), {"alg": "HS256"}, claims(exp=float("inf"))), "token_invalid"),
    "exp not a number": (lambda: by_hmac(KEY.encode(), {"alg": "HS256"}, claims(exp=float("nan"))), "token_invalid"),
    "exp in 30000 years": (lambda: signed(exp=10**12), "token_invalid"),
    "exp 1e308": (lambda: signed(exp=1e308), "token_invalid"),
    "exp of 400 digits": (lambda: signed(exp=10**400), "token_invalid"),
    "exp true": (lambda: signed(exp=True, iat=0), "token_expired"),
    "exp a string": (lambda: signed(exp=str(NOW + 86400)), "token_invalid"),
    "exp a string with underscores": (lambda: signed(exp="9_999_999_999"), "token_invalid"),
    "nbf a string": (lambda: signed(nbf=str(NOW - 60)), "token_invalid"),
    "iat a string": (lambda: by_hmac(KEY.encode(), {"alg": "HS256"}, claims(iat=str(NOW))), "token_invalid"),
    "iat below zero": (lambda: signed(iat=-1), "token_invalid"),
    "exp negative": (lambda: signed(exp=-1), "token_expired"),
    "not valid yet": (lambda: signed(nbf=NOW + 86400), "token_invalid"),
    "issued tomorrow": (lambda: signed(iat=NOW + 86400), "token_invalid"),
    "another audience": (lambda: signed(aud="another"), "token_invalid"),
    "audiences without ours": (lambda: signed(aud=["a", "b"]), "token_invalid"),
    "aud missing": (lambda: signed(aud=None), "token_invalid"),
    "another issuer": (lambda: signed(iss="https://attacker.example"), "token_invalid"),
    "iss missing": (lambda: signed(iss=None), "token_invalid"),
    "tid and tenant differ": (lambda: signed(tid="attacker", tenant="acme"), "token_invalid"),
    "tid and tenant_id differ": (lambda: signed(tid="attacker", tenant_id="acme"), "token_invalid"),
    "tid and tenantId differ": (lambda: signed(tid="attacker", tenantId="acme"), "token_invalid"),
    "tid and organization_id differ": (lambda: signed(tid="attacker", organization_id="acme"), "token_invalid"),
    "tid and organizationId differ": (lambda: signed(tid="attacker", organizationId="acme"), "token_invalid"),
    "organization_id is a list": (lambda: signed(tid="acme", organization_id=["acme"]), "token_invalid"),
    "tid null and tenant": (
        lambda: by_hmac(KEY.encode(), {"alg": "HS256"}, {**claims(), "tid": None, "tenant": "acme"}), "token_invalid",
    ),
    "tid missing": (lambda: signed(tid=None), "token_invalid"),
    "tid empty": (lambda: signed(tid=""), "token_invalid"),
    "tid a list": (lambda: signed(tid=["acme"]), "token_invalid"),
    "tid a number": (lambda: signed(tid=1), "token_invalid"),
    "tid an object": (lambda: signed(tid={"$ne": ""}), "token_invalid"),
    "tid a path": (lambda: signed(tid="../acme"), "token_invalid"),
    "tid with a colon": (lambda: signed(tid="acme:x"), "token_invalid"),
    "tid with NUL": (lambda: signed(tid="acme\0"), "token_invalid"),
    "tid with a newline": (lambda: signed(tid="acme\n"), "token_invalid"),
    "tid too long": (lambda: signed(tid="a" * 64), "token_invalid"),
    "tid a star": (lambda: signed(tid="*"), "token_invalid"),
    "scope a list": (lambda: signed(scope=["jobs:read"]), "token_invalid"),
    "queues a string": (lambda: signed(queues="*"), "token_invalid"),
    "queues empty": (lambda: signed(queues=[]), "token_invalid"),
    "no scope": (lambda: signed(scope=None), "scope_missing"),
    "scope a star": (lambda: signed(scope="*"), "scope_missing"),
    "scope a prefix": (lambda: signed(scope="jobs"), "scope_missing"),
    "scope in capitals": (lambda: signed(scope="JOBS:READ"), "scope_missing"),
    "admin does not imply reading": (lambda: signed(scope="jobs:admin"), "scope_missing"),
    "another queue": (lambda: token(queues=["other"]), "queue_forbidden"),
}  # fmt: skip

WHY = {
    "RS256 by EC key's name": "no key of ours fits",
    "kid of no key": "no key of ours fits",
    "type JWE": "its type",
    "exp in 30000 years": "its `exp` is not a time",
    "exp of 400 digits": "its `exp` is not a time",
    "exp a string": "its `exp` is not a time",
    "nbf a string": "its `nbf` is not a time",
    "iat a string": "its `iat` is not a time",
}
"""What the refusal says, where something else would refuse it too."""

HEADERS = {
    "no token": ([], 401, "token_missing"),
    "token in the query": ([], 401, "token_missing"),
    "basic": ([("authorization", "Basic YWNtZTphY21l")], 401, "token_invalid"),
    "bearer and nothing": ([("authorization", "Bearer")], 401, "token_invalid"),
    "two tokens": ([("authorization", "Bearer a"), ("authorization", "Bearer b")], 400, "invalid_request"),
    "token as a cookie": ([("cookie", "token=x")], 401, "token_missing"),
    "tenant by header": ([("x-tenant", "acme"), ("x-forwarded-user", "acme")], 401, "token_missing"),
}

JSON = "application/json"
BIG = 1024 * 1024 + 1

UNREADABLE = {
    "NaN": b'{"payload": NaN}',
    "Infinity": b'{"payload": Infinity}',
    "minus Infinity": b'{"delay_s": -Infinity}',
    "number beyond a float": b'{"payload": 1e999}',
    "delay beyond a float": b'{"delay_s": 1e999}',
    "raw NUL": b'{"id": "a\0b"}',
    "a surrogate alone": b'{"payload": "\\ud800"}',
    "surrogate in the id": b'{"id": "\\udc00x"}',
    "not UTF-8": b'{"id": "\xff"}',
    "UTF-16": '{"id": "a"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a key twice": b'{"queue": "a", "queue": "b"}',
    "a key twice, spelt differently": b'{"queue": "a", "qu\\u0065ue": "b"}',
    "a key twice in the payload": b'{"payload": {"a": {"b": 1, "b": 2}}}',
    "nested 100000 deep": b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "not closed": b'{"id": "a"',
    "something after it": b'{"id": "a"} {"id": "b"}',
    "nothing": b"",
    "a list": b"[]",
    "null": b"null",
    "a comment": b'{"id": "a" /* x */}',
    "single quotes": b"{'id': 'a'}",
    "id a number": b'{"id": 1}',
    "id an object": b'{"id": {"$gt": ""}}',
    "tenant in the body": b'{"id": "a", "tenant": "victim"}',
    "tid in the body": b'{"id": "a", "tid": "victim"}',
    "__proto__": b'{"id": "a", "__proto__": {"admin": true}}',
    "priority true": b'{"priority": true}',
    "a key that holds for no time": b'{"idempotency_key": "k", "idempotency_ttl_s": 5e-324}',
    "a timeout of nothing": b'{"timeout_s": 5e-324}',
    "run_at a number": b'{"run_at": 1}',
    "run_at in no time zone": b'{"run_at": "2030-01-01T00:00:00"}',
}
"""Bodies that are no JSON, or not the JSON that was asked for: each 400, `invalid_request`."""

BODIES = {
    **{name: (body, 400, "invalid_request") for name, body in UNREADABLE.items()},
    "integer of 1000 digits": (b'{"payload": ' + b"9" * 1000 + b"}", 400, "invalid_payload"),
    "priority 2^64": (b'{"priority": 18446744073709551616}', 400, "invalid_option"),
    "NUL in the payload": (b'{"payload": "a\\u0000b"}', 400, "invalid_payload"),
    "NUL in the id": (b'{"id": "a\\u0000b"}', 400, "invalid_name"),
    "NUL in the queue": (b'{"queue": "a\\u0000b"}', 400, "invalid_name"),
    "newline in the id": (b'{"id": "a\\r\\nSet-Cookie: x"}', 400, "invalid_name"),
    "newline in the type": (b'{"type": "a\\r\\nb"}', 400, "invalid_name"),
    "nested 101 deep": (b'{"payload": ' + b"[" * 101 + b"]" * 101 + b"}", 400, "invalid_payload"),
    "objects 200 deep": (b'{"payload": ' + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}", 400, "invalid_payload"),
    "id empty": (b'{"id": ""}', 400, "invalid_name"),
    "id too long": (b'{"id": "' + b"x" * 201 + b'"}', 400, "invalid_name"),
    "queue a path": (b'{"queue": "../../etc"}', 400, "invalid_name"),
    "priority 10": (b'{"priority": 10}', 400, "invalid_option"),
    "priority below zero": (b'{"priority": -1}', 400, "invalid_option"),
    "attempts without end": (b'{"max_attempts": 1000000}', 400, "invalid_option"),
    "delay below zero": (b'{"delay_s": -1}', 400, "invalid_option"),
    "delay of ages": (b'{"delay_s": 1e300}', 400, "invalid_option"),
    "retry factor of ages": (b'{"retry": {"factor": 1e9}}', 400, "invalid_option"),
    "payload over 256 KiB": (b'{"payload": "' + b"x" * 262_200 + b'"}', 413, "payload_too_large"),
    "body over 1 MiB": (b'{"payload": "' + b"x" * BIG + b'"}', 413, "body_too_large"),
    "pickle as a codec": (b'{"codec": "pickle", "payload": "gASVAA=="}', 400, "unknown_codec"),
    "msgpack that is none": (b'{"codec": "msgpack", "payload": "wQ=="}', 400, "invalid_payload"),
    "base64 that is none": (b'{"codec": "msgpack", "payload": "$$"}', 400, "invalid_payload"),
}

KINDS = {
    "gzip": ({"content-type": JSON, "content-encoding": "gzip"}, 415),
    "deflate": ({"content-type": JSON, "content-encoding": "deflate"}, 415),
    "text": ({"content-type": "text/plain"}, 415),
    "a form": ({"content-type": "application/x-www-form-urlencoded"}, 415),
    "UTF-7": ({"content-type": "application/json; charset=utf-7"}, 415),
    "no type": ({}, 415),
    "XML": ({"content-type": "application/xml"}, 415),
}

BATCHES = {
    "1001 items": ({"jobs": [{}] * 1001}, "/v1/jobs:batch", "invalid_request"),
    "another key": ({"jobs": [], "tenant": "x"}, "/v1/jobs:batch", "invalid_request"),
    "items no list": ({"jobs": {"0": {}}}, "/v1/jobs:batch", "invalid_request"),
    "no items": ({}, "/v1/leases:finish", "invalid_request"),
    "items of the wrong name": ({"jobs": []}, "/v1/leases:finish", "invalid_request"),
    "claim of nothing": ({"queues": []}, "/v1/claims", "invalid_request"),
    "claim of 101 queues": ({"queues": ["q"] * 101}, "/v1/claims", "invalid_request"),
    "claim of 1001 jobs": ({"queues": ["q"], "limit": 1001}, "/v1/claims", "invalid_request"),
    "claim of no jobs": ({"queues": ["q"], "limit": 0}, "/v1/claims", "invalid_request"),
    "claim for a day": ({"queues": ["q"], "lease_s": 86400}, "/v1/claims", "invalid_option"),
    "claim for no time": ({"queues": ["q"], "lease_s": 0}, "/v1/claims", "invalid_option"),
    "claim that waits for ever": ({"queues": ["q"], "wait_s": 1e9}, "/v1/claims", "invalid_request"),
    "claim that waits below zero": ({"queues": ["q"], "wait_s": -1}, "/v1/claims", "invalid_request"),
    "claim of a pattern": ({"queues": ["*"]}, "/v1/claims", "invalid_name"),
    "claim for another tenant": ({"queues": ["q"], "tenant": "victim"}, "/v1/claims", "invalid_request"),
    "replay of nothing said": ({}, "/v1/queues/q/dead-letters:replay", "invalid_option"),
    "replay of 1001": ({"ids": ["a"] * 1001}, "/v1/queues/q/dead-letters:replay", "invalid_request"),
    "purge before no time": ({"before": "yesterday"}, "/v1/queues/q/dead-letters:purge", "invalid_request"),
}

PATHS = {
    "dots": ("GET", "/v1/queues/../queues/default/jobs/secret", 404, "not_found"),
    "dots, encoded": ("GET", "/v1/queues/%2e%2e/stats", 400, "invalid_name"),
    "double slash": ("GET", "//v1/queues", 404, "not_found"),
    "slash at the end": ("GET", "/v1/queues/", 404, "not_found"),
    "capitals": ("GET", "/V1/queues", 404, "not_found"),
    "colon, encoded": ("POST", "/v1/jobs%3Abatch", 404, "not_found"),
    "slash of the route, encoded": ("GET", "/v1%2Fqueues", 404, "not_found"),
    "semicolon": ("GET", "/v1/queues;x=1", 404, "not_found"),
    "backslash": ("GET", "/v1/queues/%5C..%5Cx/stats", 400, "invalid_name"),
    "NUL in the id": ("GET", "/v1/queues/default/jobs/a%00b", 400, "invalid_name"),
    "newline in the id": ("GET", "/v1/queues/default/jobs/a%0d%0aSet-Cookie:%20x", 400, "invalid_name"),
    "newline in the queue": ("GET", "/v1/queues/a%0d%0ab/stats", 400, "invalid_name"),
    "overlong dot": ("GET", "/v1/queues/default/jobs/%c0%ae", 400, "invalid_request"),
    "not UTF-8": ("GET", "/v1/queues/default/jobs/%ff", 400, "invalid_request"),
    "encoded surrogate": ("GET", "/v1/queues/default/jobs/%ed%a0%80", 400, "invalid_request"),
    "id too long": ("GET", "/v1/queues/default/jobs/" + "x" * 201, 400, "invalid_name"),
    "queue too long": ("GET", f"/v1/queues/{'x' * 129}/stats", 400, "invalid_name"),
    "parameter twice": ("GET", "/v1/queues/default/jobs?limit=1&limit=1000", 400, "invalid_request"),
    "parameter unknown": ("GET", "/v1/queues?tenant=victim", 400, "invalid_request"),
    "limit below zero": ("GET", "/v1/queues/default/jobs?limit=-1", 400, "invalid_request"),
    "limit of ages": ("GET", "/v1/queues/default/jobs?limit=1000000000", 400, "invalid_request"),
    "limit of hex": ("GET", "/v1/queues/default/jobs?limit=0x10", 400, "invalid_request"),
    "state unknown": ("GET", "/v1/queues/default/jobs?state=everything", 400, "invalid_request"),
    "cursor of SQL": ("GET", "/v1/queues/default/jobs?cursor='%20OR%201=1--", 400, "invalid_option"),
    "cursor no UTF-8": ("GET", "/v1/queues/default/jobs?cursor=%ff", 400, "invalid_request"),
    "wait of ages": ("GET", "/v1/queues/default/jobs/secret/result?wait_s=1e9", 400, "invalid_request"),
    "wait nan": ("GET", "/v1/queues/default/jobs/secret/result?wait_s=nan", 400, "invalid_request"),
    "offset of no store": ("GET", "/v1/events?after=..%2F..%2Fx", 400, "invalid_option"),
    "100 parameters": ("GET", "/v1/queues?" + "&".join(f"a{n}=1" for n in range(100)), 400, "invalid_request"),
    "PUT": ("PUT", "/v1/jobs", 405, "method_not_allowed"),
    "PATCH": ("PATCH", "/v1/queues/default/jobs/secret", 405, "method_not_allowed"),
    "TRACE": ("TRACE", "/v1/jobs", 405, "method_not_allowed"),
    "HEAD": ("HEAD", "/v1/queues", 405, None),
    "DELETE of a queue": ("DELETE", "/v1/queues", 405, "method_not_allowed"),
    "GET with a body": ("GET+", "/v1/queues", 400, "invalid_request"),
    "admin pages": ("GET", "/admin", 404, "not_found"),
    "HEAD of the document": ("HEAD", "/openapi.json", 405, None),
    "docs": ("GET", "/docs", 404, "not_found"),
    "environment": ("GET", "/.env", 404, "not_found"),
}

HEAD = "Host: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
POST = "POST /v1/jobs HTTP/1.1\r\n" + HEAD
GET = "GET /v1/queues HTTP/1.1\r\n" + HEAD
NO_TOKEN = "POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKS = "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
SMUGGLED = "POST /v1/jobs HTTP/1.1\r\n" + HEAD + 'Content-Length: 17\r\n\r\n{"id":"smuggled"}'

RAW = {
    "length and chunks": POST + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
    "chunks and length": POST + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two lengths": POST + "Content-Length: 2\r\nContent-Length: 90\r\n\r\n{}" + SMUGGLED,
    "the same length twice": POST + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "length in a list": POST + "Content-Length: 2, 2\r\n\r\n{}",
    "length below zero": POST + "Content-Length: -2\r\n\r\n{}",
    "length with a sign": POST + "Content-Length: +2\r\n\r\n{}",
    "length in hex": POST + "Content-Length: 0x2\r\n\r\n{}",
    "length of 5000 zeros": POST + f"Content-Length: {'0' * 5000}\r\n\r\n",
    "length of 5000 zeros and 2": POST + f"Content-Length: {'0' * 5000}2\r\n\r\n{{}}",
    "length of ages": POST + "Content-Length: 99999999999999999999999\r\n\r\n{}",
    "space before the colon": POST + "Content-Length : 2\r\n\r\n{}",
    "a folded header": POST + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "xchunked": POST + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked, identity": POST + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "a chunk of a wrong size": POST + "Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
    "a chunk longer than it says": POST + "Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    "a header after the body": POST + CHUNKS + "X-A: b\r\n\r\n",
    "the token after the body": NO_TOKEN + CHUNKS + "Authorization: Bearer {token}\r\n\r\n",
    "all headers after the body": "POST /v1/jobs HTTP/1.1\r\n" + CHUNKS + HEAD + "\r\n",
    "an upgrade to h2c": GET + "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + SMUGGLED,
    "an upgrade to websocket": GET + "Connection: upgrade\r\nUpgrade: websocket\r\n\r\n" + SMUGGLED,
    "an upgrade with a body": POST + "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    "an upgrade that the connection does not have": GET + "Upgrade: h2c\r\n\r\n",
    "NUL in a header": GET + "X-A: a\0b\r\n\r\n",
    "newline alone in a header": GET + "X-A: a\rb\r\n\r\n",
    "a header without a name": GET + ": x\r\n\r\n",
    "no host": "GET /v1/queues HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n",
    "two hosts": GET + "Host: y\r\n\r\n",
    "no host, at the document": "GET /openapi.json HTTP/1.1\r\n\r\n",
    "two hosts, at the document": "GET /openapi.json HTTP/1.1\r\n" + HEAD + "Host: y\r\n\r\n",
    "no host, where nothing is": "GET /nothing HTTP/1.1\r\n\r\n",
    "two hosts, where nothing is": "GET /nothing HTTP/1.1\r\n" + HEAD + "Host: y\r\n\r\n",
    "a space in the path": "GET /v1/que ues HTTP/1.1\r\n" + HEAD + "\r\n",
    "HTTP/0.9": "GET /v1/queues\r\n\r\n",
    "HTTP/3.0": "GET /v1/queues HTTP/3.0\r\n" + HEAD + "\r\n",
    "HTTP/2 at once": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown method": "STEAL /v1/queues HTTP/1.1\r\n" + HEAD + "\r\n",
    "CONNECT": "CONNECT attacker.example:443 HTTP/1.1\r\n" + HEAD + "\r\n",
    "a TLS hello": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a path of 8-bit": "GET /v1/queues/\xff HTTP/1.1\r\n" + HEAD + "\r\n",
}

LONG = {
    "headers of 40 KiB": GET + "X-A: " + "a" * 40_000 + "\r\n\r\n",
    "2000 headers": GET + "".join(f"X-{n}: aaaaaaaaaaa\r\n" for n in range(2000)) + "\r\n",
    "a path of 40 KiB": "GET /v1/" + "a" * 40_000 + " HTTP/1.1\r\n" + HEAD + "\r\n",
}
