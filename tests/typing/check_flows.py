"""Read by pyright and mypy, not run: a step keeps the type of its result."""

from __future__ import annotations

from typing import Any, assert_type

from holdfast import Flow, job
from holdfast.flows.flow import FlowStep


@job
async def extract(day: str) -> int:
    return 1


def report() -> Flow:
    flow = Flow("report")
    first = flow.add(extract.message("x"), name="extract")
    assert_type(first, FlowStep[int])
    other = flow.add({"any": "json"}, after=[first])
    assert_type(other, FlowStep[Any])
    steps = [flow.add(extract.message(day), after=[first]) for day in ("a", "b")]
    flow.add(extract.message("z"), after=steps, priority=9)
    return flow
