"""All commands, in the order in which `holdfast --help` lists them."""

from __future__ import annotations

from typing import Annotated

import typer
from typer.main import get_command

from holdfast.cli import (
    checks,
    dev,
    dlq,
    events,
    flows,
    jobs,
    pipeline,
    queues,
    schedules,
    serve,
    tenants,
    tokens,
    upkeep,
    worker,
)

app = typer.Typer(
    name="holdfast",
    help="A reliable multi-tenant job queue.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage. HOLDFAST_STORE and HOLDFAST_TENANT stand in for --store and "
    "--tenant. Durations: 30, 30s, 10m, 2h, 1d.",
    # Plain help: with Rich it takes twice as long to appear.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def holdfast(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False
) -> None:
    """A reliable multi-tenant job queue."""
    if version:
        checks.version()
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


for _group in (
    dev,
    worker,
    serve,
    upkeep,
    jobs,
    queues,
    events,
    dlq,
    schedules,
    flows,
    tenants,
    pipeline,
    tokens,
    checks,
):
    _group.register(app)

command = get_command(app)
