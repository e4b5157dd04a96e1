"""The OpenAPI document is complete and true: requests made from it are answered as it says. [by schemathesis]

A few for each route, the same ones each time; HOLDFAST_HTTP_EXAMPLES=100 makes so many, others each time.
"""

import os
import subprocess
import sys

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from holdfast.service.app import ROUTES
from holdfast.service.errors import STATUS
from holdfast.service.openapi import document
from tests.service.support import token

FEW = 12
EXAMPLES = int(os.environ.get("HOLDFAST_HTTP_EXAMPLES", FEW))
PHASES = (Phase.explicit, Phase.generate)
CONFIG = schemathesis.Config.from_dict({"phases": {"coverage": {"enabled": False}}, "generation": {"mode": "all"}})
schema = schemathesis.openapi.from_dict(document(ROUTES), config=CONFIG)


@pytest.fixture(scope="module")
def address():
    """A server in a process of its own."""
    command = [sys.executable, "-m", "tests.service.child", "memory:"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


@schema.hook
def map_body(context, body):
    """Nobody waits in here, and what a schema cannot say is left out: other codecs, and values nobody can keep."""
    if isinstance(body, dict):
        body.pop("codec", None)
        if isinstance(body.get("wait_s"), (int, float)):
            body["wait_s"] = min(body["wait_s"], 0.01)
    return plain(body)


def plain(value):
    """Without NUL, without integers beyond 64 bits, and with integers as such: to JSON Schema 1.0 is one."""
    if isinstance(value, dict):
        return {plain(name): plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, int) and abs(value) >= 2**63:
        return 2**53
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


@schema.hook
def map_query(context, query):
    """A stream ends, and cursors are those of nobody: only a list can make one."""
    query = {name: value for name, value in (query or {}).items() if name not in ("cursor", "after")}
    if "wait_s" in query:
        query["wait_s"] = 0.01
    return {**query, "follow": "false"} if context.operation.path == "/v1/events" else query


@schema.hook
def map_headers(context, headers):
    return {name: value for name, value in (headers or {}).items() if name.lower() != "last-event-id"}


@schema.parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES == FEW, suppress_health_check=list(HealthCheck),
    phases=PHASES,
)  # fmt: skip
def test_every_answer_is_in_the_document(case, address):
    case.call_and_validate(base_url=address, headers={"Authorization": f"Bearer {token()}"})


def test_every_problem_has_a_status_and_every_route_its_own_name():
    names = [operation["operationId"] for path in document(ROUTES)["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)
    assert all(code in STATUS for route in ROUTES for code in route.refuses)
