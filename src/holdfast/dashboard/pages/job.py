"""One job: what it is, why it is where it is, what happened to it, and what can be done with it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec import Struct, json

from holdfast.core.errors import HoldfastError
from holdfast.core.explain import Explanation, without_others
from holdfast.core.job import FLOW_HEADER, TERMINAL, Job, JobKey, JobState
from holdfast.core.names import FLOWS, check_id
from holdfast.dashboard.page import Action, Done, Form, Fragment, WebPage, of_job
from holdfast.dashboard.showing import pretty
from holdfast.dashboard.timeline import timeline
from holdfast.dashboard.view import NotShown, View
from holdfast.jobs import codec
from holdfast.service.tokens import ADMIN, PRODUCE

FOLDED_LINES, FOLDED_TEXT = 24, 3000
"""A longer payload or result is folded."""
MAX_SHOWN = 256 * 1024


class Value(Struct, frozen=True):
    """A payload or result as text: the beginning, and all of it if that is longer."""

    size: int
    start: str
    rest: str = ""
    problem: str = ""


async def read(view: View) -> dict[str, Any]:
    """What does not change: the payload. 404 if there is no such job."""
    job = await _job(view)
    if job is None:
        raise NotShown(404, await _why_not(view))
    envelope = job.envelope
    return {
        "payload": shown(envelope.payload, envelope.codec),
        "codec": envelope.codec,
        "commands": _commands(view, job),
    }


async def read_job(view: View) -> dict[str, Any]:
    """What changes: its state, its history, its errors, its result."""
    job = await _job(view)
    if job is None:
        return {"job": None}
    now = await view.store.now()
    history = await view.source.histories.of(job, now)
    result = None if job.result is None or job.result.blob else shown(job.result.data, job.result.codec)
    return {
        "job": job,
        "now": now,
        "flow": (job.envelope.headers or {}).get(FLOW_HEADER, ""),
        "why": await _why(view, job),
        "history": history,
        "timeline": timeline(history.spans),
        "result": result,
        "may_cancel": view.may_cancel and job.state not in TERMINAL,
        "may_replay": view.may_act and job.state is JobState.FAILED,
        "may_purge": view.may_act and job.state in TERMINAL and job.queue != FLOWS,
    }


async def _why(view: View, job: Job) -> Explanation | None:
    """Why a job that has not ended is where it is. Only an operator learns how many other tenants wait. [TENANT-2]"""
    if job.state in TERMINAL:
        return None
    found = await view.queue.explain(job.id, queue=job.queue)
    return found if view.viewer.is_operator else without_others(found)


async def _why_not(view: View) -> str:
    """Why there is no such job: it may be a step that has not begun. The viewer may not see all queues of its flow."""
    if view.viewer.queues is not None:
        return "There is no such job. A finished job is forgotten when its time is over."
    key = _key(view)
    found = await view.queue.explain(key.id, queue=key.queue)
    return " ".join(cause.text for cause in found.causes)


def shown(data: bytes, name: str) -> Value:
    """Encoded bytes as text for a page."""
    try:
        text = pretty(codec.decode(data, name))
    except HoldfastError as error:
        return Value(len(data), repr(data[:FOLDED_TEXT]), problem=str(error))
    text = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}\n… cut after {MAX_SHOWN} characters"
    lines = text.splitlines()
    if len(lines) <= FOLDED_LINES and len(text) <= FOLDED_TEXT:
        return Value(len(data), text)
    return Value(len(data), "\n".join(lines[:FOLDED_LINES])[:FOLDED_TEXT], rest=text)


async def cancel(view: View, form: Form) -> Done:
    """Cancel, also a running job. [CANCEL-1]"""
    del form
    key = _key(view)
    answer = (await view.queue.cancel(key.id, queue=key.queue, by=view.by)).status
    says = {"canceled": f"Canceled {key.id}.", "not_found": f"There is no job {key.id} any more."}
    return Done(says.get(answer, f"Too late: {key.id} is {answer}."), _page(view, key), {"answers": {answer: 1}})


async def replay(view: View, form: Form) -> Done:
    """Start a dead letter again. [DEAD-1]"""
    del form
    key = _key(view)
    await view.queue.replay(key.id, queue=key.queue, by=view.by)
    return Done(f"Replayed {key.id}: it is ready again, with attempts from 0.", _page(view, key))


async def purge(view: View, form: Form) -> Done:
    """Forget a finished job. [KEEP-1]"""
    del form
    key = _key(view)
    answer = await view.queue.purge(key.id, queue=key.queue, by=view.by)
    if answer == "not_terminal":
        return Done(f"Too late: {key.id} is not finished any more.", _page(view, key), {"answers": {answer: 1}})
    return Done(f"Purged {key.id}.", view.url("/jobs", queue=key.queue), {"answers": {answer: 1}})


def _key(view: View) -> JobKey:
    queue = view.text("queue")
    return JobKey(view.tenant, view.checked_queue(queue), check_id(view.query.get("id", "")))


async def _job(view: View) -> Job | None:
    (job,) = await view.store.get([_key(view)])
    return job


def _page(view: View, key: JobKey) -> str:
    return view.url("/job", queue=key.queue, id=key.id)


def _commands(view: View, job: Job) -> list[tuple[str, str]]:
    """What to type for the same in a shell."""
    found = [
        ("Look at it", view.command("status", of=job.id, queue=job.queue)),
        ("Ask why it is where it is", view.command("explain", of=job.id, queue=job.queue)),
    ]
    if view.may_cancel and job.state not in TERMINAL:
        found.append(("Cancel it", view.command("cancel", of=job.id, queue=job.queue)))
    if view.may_act and job.state is JobState.FAILED:
        found.append(("Replay it", view.command("dlq", "replay", of=job.id, queue=job.queue)))
    envelope = job.envelope
    with suppress(HoldfastError):
        payload = json.encode(codec.decode(envelope.payload, envelope.codec)).decode()
        if len(payload) <= FOLDED_TEXT:
            again = view.command("enqueue", envelope.type or "-", queue=job.queue, payload=payload)
            found.append(("Enqueue the same again", again))
    return found


PAGE = WebPage(
    "/job", "Job", "job.html", {"job": Fragment(read_job, of_job)}, read=read, parent="/jobs",
    actions=(
        Action("/job/cancel", "job.cancel", PRODUCE, cancel),
        Action("/job/replay", "dead_letters.replay", ADMIN, replay),
        Action("/job/purge", "jobs.purge", ADMIN, purge),
    ),
)  # fmt: skip
