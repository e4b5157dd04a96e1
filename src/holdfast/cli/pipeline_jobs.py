"""Commands on jobs in bulk, on Spark: replay dead letters, run workers, enqueue files, move a tenant."""

from __future__ import annotations

import tempfile
import uuid
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.audit import audited, operator
from holdfast.cli.move import DryRun, Source, Target, Wait, make_plan, print_moved, print_preview, run
from holdfast.cli.options import (
    AllTenants,
    Blobs,
    Concurrency,
    Grace,
    Handler,
    Json,
    Lease,
    Modules,
    Queues,
    Store,
    Tenant,
    store_url,
    tenant_name,
)
from holdfast.cli.output import clock, emit, note, say, show
from holdfast.cli.pipeline import Conf, Master, Remote, check_spark, stop_by
from holdfast.cli.pipeline_tables import Yes, spark_session
from holdfast.jobs.moments import duration

if TYPE_CHECKING:
    from holdfast.pipeline.replay import ReplayPreview, ReplayReceipt

ALL = "(all)"
"""The tenant in the audit trail for a command on all tenants."""

Tasks = Annotated[int, typer.Option(min=1, help="The number of parallel tasks.")]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (replay, work, enqueue, move):
        app.command()(command)


# Replay -----------------------------------------------------------------------------------------------------------


def replay(
    *,
    where: Annotated[str, typer.Option(metavar="SQL", help="Which dead letters, by the columns of the store's jobs.")],
    store: Store = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Only this tenant's dead letters. Default: all.")
    ] = None,
    yes: Yes = False,
    receipt: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The directory for the set and the answers. Executors must see it. Give it again to continue.",
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="The most replays a second, in all tasks together.")] = 1000.0,
    tasks: Tasks = 4,
    patience: Annotated[str, typer.Option(help="How long to wait for a full quota or an unavailable store.")] = "5m",
    sample: Annotated[int, typer.Option(min=0, help="How many dead letters to show.")] = 10,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Replay exactly the dead letters that a condition selects, each once. Without --yes, only show them.

    A dry run with --receipt keeps the set, and --yes with the same receipt replays exactly that set. Exits with 1 if
    some could not be replayed, or if the store does not agree with the receipt.
    """
    check_spark(remote)
    from holdfast.pipeline import replay as replaying

    waits = duration("patience", patience)
    patience_s = waits.total_seconds() if waits else 0.0
    plan = replaying.ReplayPlan(store_url(store), where, tenant, rate, tasks, patience_s, operator())
    with spark_session(master, remote, conf) as spark:
        if yes:
            place = (receipt or Path(f"holdfast-replay-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")).absolute()
            with audited("dead_letters.replay", store, tenant or ALL, where=where, receipt=str(place)) as facts:
                done = replaying.replay(spark, plan, place)
                facts |= {"count": done.chosen, "answers": done.answers}
            _print_replayed(done, place, json)
            return
        if receipt is None:
            found = replaying.preview(spark, plan, sample)
        else:
            replaying.choose(spark, plan, receipt.absolute())
            found = replaying.shown(spark, receipt.absolute(), sample)
        _print_chosen(found, json)


def _print_chosen(found: ReplayPreview, json: bool) -> None:
    if json:
        emit({"dry_run": True, "matching": found.total, "groups": found.groups, "sample": found.sample})
        return
    columns = ["tenant", "queue", "type", "count"]
    show(columns, [[str(group[name]) for name in columns] for group in found.groups], "No dead letters match.")
    if found.sample:
        say()
        show(
            ["id", "type", "error", "runs", "failed"],
            [
                [row["job_id"], row["type"], row["error_type"] or "", str(row["attempts"]), clock(row["finished_at"])]
                for row in found.sample
            ],
        )
    say(f"would replay {found.total}; --yes does it")


def _print_replayed(done: ReplayReceipt, place: Path, json: bool) -> None:
    check = done.check
    agrees = check is not None and check.ok
    if json:
        emit({"receipt": str(place), "agrees": agrees, **_document(done)})
    else:
        say(f"replayed {done.answers.get('replayed', 0)} of {done.chosen}; receipt: {place}")
        for answer in ("gone", "refused", "quota"):
            if count := done.answers.get(answer, 0):
                note(f"{answer}: {count}, listed in {place / 'answers'}")
        if check is not None and not agrees:
            note(f"Error: the store has {check.found} replayed once and {check.more} more often, not {check.expected}")
        if done.state == "partial":
            note("Some jobs were over a quota; the same command continues with them")
    if not agrees or done.answers.get("refused") or done.state != "done":
        raise typer.Exit(1)


def _document(done: ReplayReceipt) -> dict[str, Any]:
    import msgspec

    return msgspec.to_builtins(done)


# Work -------------------------------------------------------------------------------------------------------------


def work(
    modules: Modules = None,
    *,
    store: Store = None,
    tenant: Tenant = None,
    all_tenants: AllTenants = False,
    queues: Queues = None,
    handler: Handler = None,
    tasks: Annotated[int, typer.Option(min=1, help="The number of workers; each takes one core of the cluster.")] = 2,
    concurrency: Concurrency = 10,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when no job is left.")] = False,
    for_: Annotated[str | None, typer.Option("--for", metavar="DURATION", help="Stop after this time.")] = None,
    stop_file: Annotated[Path | None, typer.Option(help="Stop when this file appears. Executors must see it.")] = None,
    code: Annotated[
        list[Path] | None,
        typer.Option(
            help="A module or package to send to the executors. Default: the modules found in this directory."
        ),
    ] = None,
    lease: Lease = "30",
    grace: Grace = "20",
    blobs: Blobs = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Run workers on Spark's executors, with the same leases as any worker.

    Ctrl-C lets running jobs finish, if the executors see the stop file: on one machine they do. A second Ctrl-C ends
    the workers at once, and the leases expire.
    """
    check_spark(remote)
    from holdfast.cli.running import make_worker, worker_config
    from holdfast.pipeline import work as working

    for_s = duration("for", for_)
    config = worker_config(
        modules, handler, store=store, tenant=tenant, all_tenants=all_tenants, queues=queues,
        concurrency=concurrency, lease=lease, grace=grace, blobs=blobs,
    )  # fmt: skip
    stop = (stop_file or Path(tempfile.gettempdir()) / f"holdfast-stop-{uuid.uuid4().hex}").absolute()
    plan = working.WorkPlan(
        config.store, tasks, until_empty, None if for_s is None else for_s.total_seconds(), str(stop)
    )
    named = [name.partition(":")[0].partition(".")[0] for name in (*config.modules, handler or "")]
    packed = working.pack(code if code is not None else _found_here(named))
    with spark_session(master, remote, conf) as spark:
        stop_by(stop.touch, stop.exists)
        try:
            done = working.work(spark, plan, partial(make_worker, config), packed)
        finally:
            if stop_file is None:
                stop.unlink(missing_ok=True)
    if json:
        emit({"totals": done.totals, "left": done.left, "workers": done.workers})
    else:
        done_counts = ", ".join(
            f"{count} {name}" for name, count in done.totals.items() if count or name == "completed"
        )
        left = ", ".join(f"{count} {state}" for state, count in done.left.items() if count)
        say(f"{done_counts}; left: {left or 'nothing'}")


def _found_here(names: list[str]) -> list[Path]:
    """The modules in the current directory, where executors would not find them."""
    paths: list[Path] = []
    for name in dict.fromkeys(name for name in names if name):
        here = Path.cwd()
        paths += [path for path in (here / f"{name}.py", here / name) if path.exists()][:1]
    return paths


# Enqueue ----------------------------------------------------------------------------------------------------------


def enqueue(
    *,
    from_: Annotated[str, typer.Option("--from", metavar="PATH", help="A Parquet, CSV or JSON file, or a directory.")],
    store: Store = None,
    tenant: Tenant = None,
    queue: Annotated[str, typer.Option("--queue", "-q", help="The queue of rows without a column queue.")] = "default",
    type: Annotated[str | None, typer.Option("--type", help="The type of rows without a column type.")] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="The column with the ids of the jobs.")
    ] = None,
    format: Annotated[
        str | None, typer.Option(metavar="parquet|csv|json", help="The format, if the file name does not show it.")
    ] = None,
    write: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A name for this write. Writing again with this name adds only what is missing."
        ),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="From 0 (last) to 9 (first).")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="The most runs of a job.")] = None,
    patience: Annotated[str, typer.Option(help="How long to wait for a full quota or an unavailable store.")] = "5m",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Enqueue a file, a job for each row. No row is enqueued twice, even if Spark retries.

    Columns: id or idempotency_key, payload, queue, type, priority, max_attempts, run_at or delay. Without a column
    payload, all other columns together form the payload.
    """
    check_spark(remote)
    from holdfast.pipeline.enqueue import enqueue as enqueue_rows
    from holdfast.pipeline.enqueue import read_rows

    waits = duration("patience", patience)
    given = {
        "queue": queue,
        "type": type,
        "write": write,
        "priority": priority,
        "maxAttempts": max_attempts,
        "patience": waits.total_seconds() if waits else 0.0,
    }
    options = {name: str(value) for name, value in given.items() if value is not None}
    url, whose = store_url(store), tenant_name(tenant)
    with spark_session(master, remote, conf) as spark:
        count = enqueue_rows(read_rows(spark, from_, format, id), url, whose, options)
    if json:
        emit({"rows": count})
    else:
        say(f"enqueued {count} rows")


# Move -------------------------------------------------------------------------------------------------------------


def move(
    source: Source,
    target: Target,
    *,
    tenant: Tenant = None,
    wait: Wait = "60",
    dry_run: DryRun = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Move a tenant to another store like `holdfast move`, with a task for each queue.

    The executors must reach both stores.
    """
    check_spark(remote)
    from holdfast.pipeline.move import check_stores, spark_walker

    plan = make_plan(source, target, tenant, wait)
    check_stores(plan)
    if dry_run:
        print_preview(plan, json)
        return
    with spark_session(master, remote, conf) as spark:
        done = run(plan, spark_walker(spark, plan), json)
    print_moved(done, json)
