"""`holdfast demo`: a demonstration on its own store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    *,
    directory: Annotated[Path, typer.Option("--dir", help="The directory for the data.")] = Path("demo-data"),
    jobs: Annotated[int, typer.Option(min=100, max=20_000, help="About how many jobs.")] = 4000,
    lease: Annotated[float, typer.Option(min=1, max=10, help="The lease of a job, in seconds.")] = 2.0,
    get_spark: Annotated[
        str,
        typer.Option(metavar="COMMAND", help="A command that installs PySpark; it runs if only PySpark is missing."),
    ] = "",
) -> None:
    """Run three tenants with thousands of jobs, kill a worker, and show that nothing is lost."""
    from holdfast.demo.run import run

    raise typer.Exit(run(directory, jobs, lease, get_spark))
