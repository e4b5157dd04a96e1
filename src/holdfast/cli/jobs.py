"""Single jobs: status, result, cancel, list."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from holdfast.cli import bulk
from holdfast.cli.audit import audited, operator
from holdfast.cli.dlq import DryRun, ErrorFilter
from holdfast.cli.options import AnyQueue, Blobs, JobId, JobType, Json, Store, Tenant, Wait, wait_limit
from holdfast.cli.output import emit, moment, note, say, show, show_pairs, when
from holdfast.cli.session import find_explanation, find_job, job_not_found, pages, pages_of, with_queue
from holdfast.core.errors import HoldfastError, JobCanceled, JobFailed, JobNotFound, WaitTimeout

if TYPE_CHECKING:
    from holdfast.queue.filters import JobFilter
    from holdfast.queue.queue import Queue
    from holdfast.queue.records import JobPage, JobRecord


def status(
    id: JobId,
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: AnyQueue = None,
    blobs: Blobs = None,
    json: Json = False,
) -> None:
    """Show a job: its state, attempts, errors and times. Without --queue the job is looked up in all queues."""
    record = with_queue(store, tenant, lambda bound: find_job(bound, id, queue), blobs)
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


def explain(
    id: JobId, *, store: Store = None, tenant: Tenant = None, queue: AnyQueue = None, json: Json = False
) -> None:
    """Say why a job is where it is, and what would move it. Without --queue the job is looked up in all queues."""
    found = with_queue(store, tenant, lambda bound: find_explanation(bound, id, queue))
    if json:
        emit(found)
    else:
        say(str(found), lines=True)


def result(
    id: JobId,
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: AnyQueue = None,
    wait: Wait = None,
    blobs: Blobs = None,
    json: Json = False,
) -> None:
    """Print a job's result as JSON. Without --queue the job is looked up in all queues.

    Exits with 1 if the job failed, was canceled, or is not done in time.
    """
    limit = wait_limit(wait)

    async def act(bound: Queue) -> None:
        record = await find_job(bound, id, queue)
        if wait is None and record.finished_at is None:
            if json:
                _exit_with({"state": record.state})
            state = record.state.value
            raise InvalidState(f"job {id!r} in queue {record.queue!r} is {state}; wait for it with --wait 30s")
        try:
            value = await bound.result(id, queue=record.queue, timeout=limit)
        except (JobFailed, JobCanceled, WaitTimeout) as error:
            if not json:
                raise
            if isinstance(error, WaitTimeout):
                _exit_with({"state": (await find_job(bound, id, record.queue)).state})
            if isinstance(error, JobCanceled):
                _exit_with({"state": "canceled"})
            why = {"type": error.error_type, "message": error.message, "reason": error.reason}
            _exit_with({"state": "failed", "error": why})
        emit({"state": "completed", "result": value} if json else value)

    with_queue(store, tenant, act, blobs)


def cancel(
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The job's id.")] = None,
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: AnyQueue = None,
    only_waiting: Annotated[bool, typer.Option("--only-waiting", help="Leave the job alone if it is running.")] = False,
    all: Annotated[bool, typer.Option("--all", help="All waiting jobs of the queue, or of all queues.")] = False,
    running: Annotated[bool, typer.Option("--running", help="With --all or filters: running jobs too.")] = False,
    state: bulk.State = None,
    type: JobType = None,
    error: ErrorFilter = None,
    prefix: bulk.Prefix = None,
    since: bulk.Since = None,
    until: bulk.Until = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Cancel a job, even if it is running, or all waiting jobs that match.

    Without --queue the job is looked up in all queues. Exits with 1 if the job of that id could not be canceled.
    """
    given = {"state": state, "type": type, "error": error, "id": prefix, "since": since, "until": until}
    bulk.check_choice(id, all=all, dry_run=dry_run, running=running, **given)
    if id is not None:
        _cancel_one(id, store, tenant, queue, only_waiting=only_waiting, json=json)
        return
    chosen = bulk.filters(queue=queue, **given)
    with audited("jobs.cancel", store, tenant, dry_run=dry_run, queue=queue, **given) as facts:
        with_queue(
            store,
            tenant,
            lambda bound: bulk.cancel_matching(bound, chosen, facts, running=running, dry_run=dry_run, json=json),
        )


def _cancel_one(
    id: str, store: str | None, tenant: str | None, queue: str | None, *, only_waiting: bool, json: bool
) -> None:
    async def act(bound: Queue) -> tuple[str | None, str]:
        name = queue
        if name is None:
            try:
                name = (await find_job(bound, id, None)).queue
            except JobNotFound:
                if json:
                    return None, "not_found"
                raise
        answer = await bound.cancel(id, queue=name, only_waiting=only_waiting, by=operator())
        if answer.status == "not_found" and not json:
            raise await job_not_found(bound, id, name)
        return name, answer.status

    with audited("job.cancel", store, tenant, queue=queue, id=id) as facts:
        name, answer = with_queue(store, tenant, act)
        facts.update(queue=name, answers={answer: 1})
    if json:
        emit({"status": answer, "id": id, "queue": name})
    elif answer == "canceled":
        say(f"canceled {id}")
    else:
        raise InvalidState(f"job {id!r} in queue {name!r} is {'running' if answer == 'processing' else answer}")
    if answer != "canceled":
        raise typer.Exit(1)


def list_jobs(
    *,
    store: Store = None,
    tenant: Tenant = None,
    queue: AnyQueue = None,
    newest: Annotated[bool, typer.Option("--newest", help="By time, the latest first, across queues.")] = False,
    state: bulk.State = None,
    type: JobType = None,
    error: ErrorFilter = None,
    prefix: bulk.Prefix = None,
    since: bulk.Since = None,
    until: bulk.Until = None,
    limit: Annotated[int, typer.Option(min=1, help="The most jobs to show.")] = 50,
    cursor: Annotated[str | None, typer.Option(help="Continue after an earlier list.")] = None,
    all: Annotated[bool, typer.Option("--all", help="Show all jobs, without a limit.")] = False,
    json: Json = False,
) -> None:
    """List jobs of one queue, or of all queues in turn.

    Waiting jobs come first, in the order they will run, then running and then finished jobs. With --newest the latest
    come first: by when they are due, when their lease ends, or when they ended. --error, --id, --since and --until
    need --newest.
    """
    chosen = bulk.filters(state=state, type=type, error=error, id=prefix, since=since, until=until)
    most = None if all else limit

    async def act(bound: Queue) -> tuple[list[JobRecord], str | None]:
        def page(name: str | None, at: str | None, size: int) -> Awaitable[JobPage]:
            one: JobFilter = {**chosen, "queue": name}
            return bound.list(newest=newest, cursor=at, limit=size, **one)

        if newest:
            return await pages_of(queue, cursor, most, page)
        return await pages(bound, queue, cursor, most, page)

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
        f"No jobs match{'' if queue is None else f' in queue {queue}'}. `holdfast queues` lists the queues.",
    )
    if at is not None:
        note(f"There are more; continue with --cursor {shlex.quote(at)}, or show --all.")


class InvalidState(HoldfastError):
    """The state of the job does not allow this."""

    code = "invalid_state"


def _exit_with(document: dict[str, Any]) -> NoReturn:
    emit(document)
    raise typer.Exit(1)


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
