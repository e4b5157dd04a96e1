"""`holdfast enqueue`: one job, from options and a JSON payload."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import Blobs, Json, Store, Tenant, Wait, wait_limit
from holdfast.cli.output import emit, note, on_terminal, say
from holdfast.cli.session import with_queue
from holdfast.core.errors import InvalidOption, InvalidPayload, WaitTimeout
from holdfast.jobs.moments import duration, instant

if TYPE_CHECKING:
    from holdfast.jobs.options import EnqueueOptions
    from holdfast.queue.queue import Queue


def enqueue(
    type: Annotated[str, typer.Argument(metavar="TYPE", help="The job type, or - for a payload without one.")],
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="The queue. Default: the queue of its @job, else `default`.")
    ] = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="The arguments, as JSON.")] = None,
    payload_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read the arguments from a file; - is standard input.")
    ] = None,
    id: Annotated[str | None, typer.Option(help="The job's id. Default: a generated one.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Run the job after this delay.")] = None,
    run_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Run the job at this time (ISO 8601; local time without a zone).")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="From 0 (last) to 9 (first).")] = None,
    max_attempts: Annotated[
        int | None, typer.Option(help="The most runs of the job. Default: that of its @job, else 4.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="A second enqueue with this key makes no second job.")
    ] = None,
    wait: Wait = None,
    blobs: Blobs = None,
    json: Json = False,
) -> None:
    """Enqueue a job.

    Queue, attempts, retry policy and timeout default to what the live workers report for the job type.

    Without --payload or --payload-file the payload is read from standard input.

    On a terminal, or if standard input is empty, the job gets no arguments.
    """
    from holdfast.budgets import read_counts
    from holdfast.extensions import known_types
    from holdfast.jobs.definition import Message, with_policy

    if delay is not None and run_at is not None:
        raise InvalidOption("delay", "give --delay or --run-at, not both")
    value = read_payload(type, payload, payload_file)
    limit = wait_limit(wait)
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
            _print_answer(answer, json)
            return
        if not json:
            note(_sentence(answer))
        try:
            answer["result"] = await ticket.wait(limit)
        except WaitTimeout as error:
            again = f"holdfast result {shlex.quote(ticket.id)} --queue {shlex.quote(ticket.queue)} --wait 30s"
            error.add_note(f"Ask again with: {again}")
            raise
        answer["state"] = "completed"
        emit(answer if json else answer["result"])

    with_queue(store, tenant, act, blobs, create=True)


def read_payload(type: str, text: str | None, file: str | None) -> Any:
    """Read a payload from an option, a file or standard input. Raises InvalidOption or InvalidPayload."""
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
                "a job without a type needs a payload; pass --payload, --payload-file or standard input"
            )
        return {}
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidPayload(f"{source} is not JSON: {error}") from None


def _print_answer(answer: dict[str, Any], json: bool) -> None:
    if json:
        emit(answer)
    elif on_terminal():
        say(_sentence(answer))
    else:
        # Standard output gets only the id, for `id=$(holdfast enqueue ...)`.
        sys.stdout.write(f"{answer['id']}\n")
        note(_sentence(answer))


def _sentence(answer: dict[str, Any]) -> str:
    state = f" ({answer['state']})" if answer["state"] and answer["status"] != answer["state"] else ""
    return f"{answer['status']}: {answer['id']} in queue {answer['queue']}{state}"
