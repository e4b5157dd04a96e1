"""Single jobs: enqueue, status, result, cancel, list."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from holdfast.cli.audit import audited
from holdfast.cli.options import (
    AnyQueue,
    Blobs,
    JobId,
    JobType,
    Json,
    QueueName,
    Store,
    Tenant,
    duration,
    instant,
    words,
)
from holdfast.cli.output import emit, moment, note, on_terminal, say, show, show_pairs, when
from holdfast.cli.session import pages, queues_of, with_queue
from holdfast.core.errors import (
    HoldfastError,
    InvalidOption,
    InvalidPayload,
    JobCanceled,
    JobFailed,
    JobNotFound,
    WaitTimeout,
)

if TYPE_CHECKING:
    from holdfast.jobs.options import EnqueueOptions
    from holdfast.queue.queue import Queue
    from holdfast.queue.records import JobPage, JobRecord

FOREVER = "forever"

Wait = Annotated[
    str | None, typer.Option("--wait", metavar="DURATION", help="Wait so long for the result; `forever` works too.")
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(enqueue)
    app.command()(status)
    app.command()(result)
    app.command()(cancel)
    app.command("list")(list_jobs)


def enqueue(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The job type, or - for a payload without one.")],
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="The queue; that of its @job if not given, else `default`.")
    ] = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="The arguments, as JSON.")] = None,
    payload_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="The same from a file; - is standard input.")
    ] = None,
    id: Annotated[str | None, typer.Option(help="The job's id; made up if not given.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Run it so much later.")] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Run it at this moment (ISO 8601; local time if it has no zone).")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="From 0 (last) to 9 (first).")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="How often it may run at most; as its @job says if not given, else 4.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="A second enqueue with this key finds the first job.")
    ] = None,
    wait: Wait = None,
    blobs: Blobs = None,
    json: Json = False,
) -> None:
    """Enqueue a job. Queue, attempts, retry and timeout that are not given are as the living workers say of the type.

    Without --payload or --payload-file the payload is read from standard input.

    On a terminal, or where standard input is empty, a job is enqueued without arguments.
    """
    from holdfast.budgets import read_counts
    from holdfast.extensions import known_types
    from holdfast.jobs.definition import Message, with_policy

    if delay is not None and run_at is not None:
        raise InvalidOption("delay", "give --delay or --run-at, not both")
    value = read_payload(type, payload, payload_file)
    patience = _patience(wait)
    message = Message.raw(value, "" if type == "-" else type)
    options: EnqueueOptions = {
        "queue": queue,
        "id": id,
        "delay": duration("delay", delay),
        "run_at": instant("run_at", run_at),
        "priority": priority,
        "max_attempts": max_attempts,
        "idempotency_key": idempotency_key,
    }

    async def act(bound: Queue) -> None:
        known = await known_types(bound.store, bound.tenant)
        await read_counts(bound.store, bound.tenant)
        ticket = await bound.enqueue(with_policy(message, known), **options)
        answer: dict[str, Any] = {
            "status": ticket.status,
            "id": ticket.id,
            "queue": ticket.queue,
            "state": ticket.state,
        }
        if ticket.status == "completed":
            answer["result"] = ticket.result
        elif ticket.status == "queued" and (warnings := known.warnings(message.spec.type, ticket.queue)):
            answer["warnings"] = warnings
            for warning in warnings:
                note(f"Warning: {warning}.")
        if wait is None:
            _tell(answer, json)
            return
        if not json:
            note(_sentence(answer))
        try:
            answer["result"] = await ticket.wait(patience)
        except WaitTimeout as error:
            again = f"holdfast result {shlex.quote(ticket.id)} --queue {shlex.quote(ticket.queue)} --wait 30s"
            error.add_note(f"Ask again with: {again}")
            raise
        answer["state"] = "completed"
        emit(answer if json else answer["result"])

    with_queue(store, tenant, act, blobs, create=True)


def read_payload(type: str, text: str | None, file: str | None) -> Any:
    """A payload as it was given: as text, in a file, or by standard input. Raises InvalidOption or InvalidPayload."""
    import msgspec

    if text is not None and file is not None:
        raise InvalidOption("payload", "give --payload or --payload-file, not both")
    if text is not None:
        data, source = text.encode(), "--payload"
    elif file is not None and file != "-":
        try:
            data, source = Path(file).read_bytes(), file
        except OSError as error:
            raise InvalidOption("payload_file", f"{file}: {error.strerror}") from None
    elif file is None and sys.stdin.isatty():
        data, source = b"", ""
    else:
        data, source = sys.stdin.buffer.read(), "standard input"
    if not data.strip():
        if type == "-":
            raise InvalidPayload(
                "a job without a type is its payload; pass --payload, --payload-file or standard input"
            )
        return {}
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidPayload(f"{source} is not JSON: {error}") from None


def status(
    id: JobId,
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: AnyQueue = None,
    blobs: Blobs = None,
    json: Json = False,
) -> None:
    """Show a job: its state, attempts, errors and times. Without --queue it is looked for in all queues."""
    record = with_queue(store, tenant, lambda bound: _find_anywhere(bound, id, queue), blobs)
    document = record.as_dict()
    if json:
        emit(document)
        return
    show_pairs(
        [*_summary(record), *((name, _short(document[name])) for name in ("payload", "result") if name in document)]
    )
    if record.errors:
        say()
        show(
            ["attempt", "at", "error", "message"],
            [[str(error.attempt), when(error.at), error.type, error.message] for error in record.errors],
        )
        if record.errors[-1].traceback:
            say(f"\n{record.errors[-1].traceback.rstrip()}", lines=True)


def result(
    id: JobId,
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: QueueName = "default",
    wait: Wait = None,
    blobs: Blobs = None,
    json: Json = False,
) -> None:
    """Print a job's result, as JSON. Exits with 1 if it failed, was canceled, or is not done in time."""
    patience = _patience(wait)

    async def act(bound: Queue) -> None:
        record = await _find(bound, id, queue)
        if wait is None and record.finished_at is None:
            if json:
                _give_up({"state": record.state})
            raise InvalidState(f"job {id!r} in queue {queue!r} is {record.state.value}; wait for it with --wait 30s")
        try:
            value = await bound.result(id, queue=queue, timeout=patience)
        except (JobFailed, JobCanceled, WaitTimeout) as error:
            if not json:
                raise
            if isinstance(error, WaitTimeout):
                _give_up({"state": (await _find(bound, id, queue)).state})
            if isinstance(error, JobCanceled):
                _give_up({"state": "canceled"})
            why = {"type": error.error_type, "message": error.message, "reason": error.reason}
            _give_up({"state": "failed", "error": why})
        emit({"state": "completed", "result": value} if json else value)

    with_queue(store, tenant, act, blobs)


def cancel(
    id: JobId,
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: QueueName = "default",
    only_waiting: Annotated[bool, typer.Option("--only-waiting", help="Leave it alone if it is running.")] = False,
    json: Json = False,
) -> None:
    """Cancel a job, a running one too. Exits with 1 where there was nothing to cancel."""

    async def act(bound: Queue) -> str:
        answer = await bound.cancel(id, queue=queue, only_waiting=only_waiting)
        if answer.status == "not_found" and not json:
            raise await _with_queues(bound, JobNotFound(queue, id))
        return answer.status

    with audited("job.cancel", store, tenant, queue=queue, id=id) as facts:
        answer = with_queue(store, tenant, act)
        facts["answers"] = {answer: 1}
    if json:
        emit({"status": answer, "id": id, "queue": queue})
    elif answer == "canceled":
        say(f"canceled {id}")
    else:
        raise InvalidState(f"job {id!r} in queue {queue!r} is {'running' if answer == 'processing' else answer}")
    if answer != "canceled":
        raise typer.Exit(1)


def list_jobs(
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: AnyQueue = None,
    state: Annotated[str | None, typer.Option(metavar="STATE[,STATE...]", help="Only jobs in these states.")] = None,
    type: JobType = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Where the list before ended.")] = None,
    all: Annotated[bool, typer.Option("--all", help="All of them, whatever --limit says.")] = False,
    json: Json = False,
) -> None:
    """List jobs, of one queue or queue by queue.

    Waiting ones come first, in the order they will run, then running, then finished ones.
    """
    states = words("state", state)

    async def act(bound: Queue) -> tuple[list[JobRecord], str | None]:
        def page(name: str, at: str | None, size: int) -> Awaitable[JobPage]:
            return bound.list(queue=name, state=states, type=type, cursor=at, limit=size)

        return await pages(bound, queue, cursor, None if all else limit, page)

    found, at = with_queue(store, tenant, act)
    if json:
        emit({"jobs": [record.as_dict() for record in found], "cursor": at})
        return
    rows = [
        [
            record.id,
            record.queue,
            record.type,
            record.state.value,
            f"{record.attempts}/{record.max_attempts}",
            when(record.enqueued_at),
            when(record.finished_at or record.visible_at),
        ]
        for record in found
    ]
    show(
        ["id", "queue", "type", "state", "runs", "enqueued", "due/done"],
        rows,
        f"No such jobs{'' if queue is None else f' in queue {queue}'}. `holdfast queues` shows which queues there are.",
    )
    if at is not None:
        note(f"There are more: --cursor {shlex.quote(at)}, or --all.")


class InvalidState(HoldfastError):
    """The job is not in a state in which this can be done."""

    code = "invalid_state"


async def _find(bound: Queue, id: str, queue: str) -> JobRecord:
    record = await bound.get(id, queue=queue)
    if record is None:
        raise await _with_queues(bound, JobNotFound(queue, id))
    return record


async def _find_anywhere(bound: Queue, id: str, queue: str | None) -> JobRecord:
    if queue is not None:
        return await _find(bound, id, queue)
    import asyncio

    records = await asyncio.gather(*(bound.get(id, queue=name) for name in await queues_of(bound, None)))
    found = [record for record in records if record is not None]
    if len(found) > 1:
        names = ", ".join(record.queue for record in found)
        raise InvalidOption("queue", f"job {id!r} is in several queues: {names}; name one with --queue")
    if not found:
        error = JobNotFound(bound.name, id)
        error.add_note(f"Nor in any other queue of {bound.tenant}.")
        raise error
    return found[0]


async def _with_queues(bound: Queue, error: JobNotFound) -> JobNotFound:
    """The same error, with a word on where else to look."""
    others = [stats.queue for stats in await bound.queues() if stats.queue != error.queue]
    if others:
        error.add_note(f"Other queues of {bound.tenant}: {', '.join(others)}. Name one with --queue.")
    return error


def _give_up(document: dict[str, Any]) -> NoReturn:
    emit(document)
    raise typer.Exit(1)


def _patience(wait: str | None) -> timedelta | None:
    return None if wait == FOREVER else duration("wait", wait)


def _tell(answer: dict[str, Any], json: bool) -> None:
    if json:
        emit(answer)
    elif on_terminal():
        say(_sentence(answer))
    else:
        # The id alone and exactly, for `id=$(holdfast enqueue ...)`.
        sys.stdout.write(f"{answer['id']}\n")
        note(_sentence(answer))


def _sentence(answer: dict[str, Any]) -> str:
    state = f" ({answer['state']})" if answer["state"] and answer["status"] != answer["state"] else ""
    return f"{answer['status']}: {answer['id']} in queue {answer['queue']}{state}"


def _summary(record: JobRecord) -> Sequence[tuple[str, str]]:
    progress = record.progress
    return [
        ("id", record.id),
        ("queue", record.queue),
        ("tenant", record.tenant),
        ("type", record.type),
        ("state", record.state.value),
        ("reason", record.reason or ""),
        ("attempts", f"{record.attempts} of {record.max_attempts}"),
        ("priority", str(record.priority)),
        ("progress", f"{progress.fraction:.0%} {progress.message}".rstrip() if progress is not None else ""),
        ("worker", record.worker_id or ""),
        ("key", record.idempotency_key or ""),
        ("replays", str(record.replays or "")),
        ("enqueued", moment(record.enqueued_at)),
        ("visible", moment(record.visible_at)),
        ("claimed", moment(record.claimed_at)),
        ("deadline", moment(record.deadline) if record.finished_at is None else ""),
        ("finished", moment(record.finished_at)),
        ("expires", moment(record.expires_at)),
    ]


def _short(value: Any, limit: int = 2000) -> str:
    import msgspec

    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters; --json shows all)"
