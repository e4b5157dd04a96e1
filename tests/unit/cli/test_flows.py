import asyncio
import json

from holdfast import Flow, Queue
from tests.unit.running import run_one


def start(url):
    async def act():
        async with Queue(url, tenant="acme") as queue:
            flow = Flow("report", "f1")
            first = flow.add({"n": 1}, name="extract", queue="etl")
            flow.add({"n": 2}, name="load", after=[first])
            await queue.start(flow)

    asyncio.run(act())


def test_show_lists_the_state_of_each_step_and_the_steps_before_it(cli, url):
    start(url)
    answer = cli("flow", "show", "f1")
    assert answer.code == 0
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["name", "report"] in lines
    assert ["steps", "0", "of", "2", "completed"] in lines
    assert ["extract", "ready", "-", "etl", "-", "-", "-", "-"] in lines
    assert ["load", "blocked", "-", "default", "extract", "-", "-", "-"] in lines


def test_show_as_json_is_the_whole_record(cli, url):
    start(url)
    found = json.loads(cli("flow", "show", "f1", "--json").out)
    assert (found["id"], found["state"]) == ("f1", "ready")
    assert [(step["id"], step["after"]) for step in found["steps"]] == [("f1/extract", []), ("f1/load", ["extract"])]


def test_a_missing_flow_is_an_error(cli):
    answer = cli("flow", "show", "nothing")
    assert (answer.code, answer.out, answer.err) == (1, "", "Error: no flow 'nothing'\n")


def test_a_flow_is_canceled_and_replayed_by_the_commands_of_jobs(cli, url):
    start(url)
    assert cli("cancel", "f1", "--queue", "holdfast:flows").code == 0
    assert json.loads(cli("flow", "show", "f1", "--json").out)["state"] == "canceled"

    async def fail():
        async with Queue(url, tenant="acme") as queue:
            await run_one(queue, "holdfast:flows", outcome="fail")

    start(url)
    asyncio.run(fail())
    assert cli("dlq", "replay", "f1", "--queue", "holdfast:flows").code == 0
    assert json.loads(cli("flow", "show", "f1", "--json").out)["replays"] == 1
