"""The OpenAPI document is complete and true: requests made from it are answered as it says. [by schemathesis]

A few for each route, the same ones each time; HOLDFAST_HTTP_EXAMPLES=100 makes 100, others each time.
"""

import os
import re
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
CURSORS = ("cursor", "after")
REAL = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}
PHASES = (Phase.explicit, Phase.generate)
CONFIG = schemathesis.Config.from_dict(
    {"phases": {"coverage": {"enabled": EXAMPLES > FEW}}, "generation": {"mode": "all"}}
)
schema = schemathesis.openapi.from_dict(document(ROUTES), config=CONFIG)


@pytest.fixture(scope="module")
def address():
    """A server in a process of its own."""
    command = [sys.executable, "-m", "tests.service.child", "memory:"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.terminate()


def plain(value):
    """Without NUL and integers beyond 64 bits, and with integers only: to JSON Schema 1.0 is an integer."""
    if isinstance(value, dict):
        return {plain(name): plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, int) and abs(value) >= 2**63:
        return 2**53
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def fits(name, value):
    """Whether a value fits the document."""
    pattern = document(ROUTES)["components"]["schemas"]["PutSchedule"]["properties"][name]
    pattern = pattern.get("pattern") or next(one["pattern"] for one in pattern["anyOf"] if "pattern" in one)
    return isinstance(value, str) and value != "UTC" and re.search(pattern, value) is not None


def quick(values):
    """The same, without the wait."""
    wait_s = values.get("wait_s")
    is_wait = isinstance(wait_s, (int, float)) and not isinstance(wait_s, bool) and 0 <= wait_s <= 60
    return {**values, "wait_s": 0.01} if is_wait else values


def tame(case):
    """Without waits, and without rules that a schema cannot express.

    That is: values in other codecs, values that no store can keep, cursors, which only a list can make, and which of
    the things that look like cron expressions and time zones are some.
    """
    if isinstance(case.body, dict):
        case.body = {**case.body, **{name: part for name, part in REAL.items() if fits(name, case.body.get(name))}}
        left_out = ("codec",) if case.body.get("codec") == "msgpack" else ()
        if isinstance(case.body.get("cursor"), str):
            left_out = (*left_out, "cursor")
        case.body = quick({name: part for name, part in case.body.items() if name not in left_out})
    if isinstance(case.body, (dict, list)):
        case.body = plain(case.body)
    if case.operation.path == "/v1/flows":
        untangle(case.body)
    if isinstance(case.query, dict):
        case.query = quick({name: part for name, part in case.query.items() if part == "" or name not in CURSORS})
        if case.operation.path == "/v1/events" and str(case.query.get("follow", True)).lower() == "true":
            case.query["follow"] = "false"
    if case.headers:
        case.headers = {name: part for name, part in case.headers.items() if name.lower() != "last-event-id"}


def untangle(flow):
    """Steps of one flow have different names, and wait only for existing steps."""
    steps = flow.get("steps") if isinstance(flow, dict) else None
    for number, step in enumerate(steps if isinstance(steps, list) else ()):
        if isinstance(step, dict) and isinstance(step.get("name"), str) and step["name"]:
            step["name"] = f"{step['name'][:20]}{number}"
        if isinstance(step, dict) and isinstance(step.get("after"), list):
            step["after"] = [name for name in step["after"] if not isinstance(name, str)]
        if isinstance(step, dict) and step.get("codec") == "msgpack":
            del step["codec"]


@schema.parametrize()
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=EXAMPLES == FEW, suppress_health_check=list(HealthCheck),
    phases=PHASES,
)  # fmt: skip
def test_every_answer_is_in_the_document(case, address):
    tame(case)
    case.call_and_validate(base_url=address, headers={"Authorization": f"Bearer {token()}"})


def test_every_problem_has_a_status_and_every_route_its_own_name():
    names = [operation["operationId"] for path in document(ROUTES)["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)
    assert all(code in STATUS for route in ROUTES for code in route.refuses)
