"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import typer

from holdfast.core.errors import InvalidOption
from holdfast.jobs.moments import duration

STORE_VARIABLE, TENANT_VARIABLE, BLOBS_VARIABLE = "HOLDFAST_STORE", "HOLDFAST_TENANT", "HOLDFAST_BLOBS"

_STORE_HELP = f"The store, such as file:./data. [env: {STORE_VARIABLE}]"

Store = Annotated[str | None, typer.Option("--store", metavar="URL", help=_STORE_HELP)]
Tenant = Annotated[str | None, typer.Option("--tenant", help=f"The tenant. [env: {TENANT_VARIABLE}]")]
Blobs = Annotated[
    str | None,
    typer.Option("--blobs", metavar="URL", help=f"The blob store for large results. [env: {BLOBS_VARIABLE}]"),
]
QueueName = Annotated[str, typer.Option("--queue", "-q", help="The queue.")]
AnyQueue = Annotated[str | None, typer.Option("--queue", "-q", help="The queue. Default: all queues of the tenant.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wait = Annotated[
    str | None, typer.Option("--wait", metavar="DURATION", help="Wait this long for the result, or `forever`.")
]
JobType = Annotated[str | None, typer.Option("--type", help="Only jobs of this type.")]

JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.")]
# Options of commands that run jobs.
Modules = Annotated[
    str | None, typer.Argument(metavar="[MODULE[,MODULE...]]", help="The modules whose @job functions to run.")
]
AllTenants = Annotated[
    bool, typer.Option("--all-tenants", help="Serve every tenant, in fair turns; ignores HOLDFAST_TENANT.")
]
Queues = Annotated[
    str | None,
    typer.Option("--queues", metavar="QUEUE[,QUEUE...]", help="The queues to serve. Default: those of the jobs."),
]
Handler = Annotated[
    str | None,
    typer.Option("--handler", metavar="MODULE:FUNCTION", help="The function for jobs without a type."),
]
Concurrency = Annotated[int, typer.Option("--concurrency", "-c", help="The most jobs that a worker runs at once.")]
Lease = Annotated[
    str, typer.Option("--lease", metavar="SECONDS", help="How long a worker keeps a job without renewing its lease.")
]
Grace = Annotated[
    str, typer.Option("--grace", metavar="SECONDS", help="How long running jobs may continue after a stop.")
]

MetricsPort = Annotated[
    int | None, typer.Option("--metrics-port", min=1, max=65535, help="Serve Prometheus metrics on this port.")
]
MetricsHost = Annotated[str, typer.Option("--metrics-host", help="The address of --metrics-port.")]
GaugesByTenant = Annotated[
    str | None,
    typer.Option(
        "--gauges-by-tenant", metavar="TENANTS", help="Tenants, with commas, to export one by one in the metrics."
    ),
]

StoreUrl = Annotated[str, typer.Argument(metavar="URL", help="The store, such as file:./data.")]


def store_url(given: str | None) -> str:
    """The store's URL from the option or the environment. Raises InvalidOption if neither has one."""
    return _given(given, "store", "--store", STORE_VARIABLE)


def tenant_name(given: str | None, flags: str = "--tenant") -> str:
    """The tenant from the option or the environment. Raises InvalidOption if neither has one."""
    return _given(given, "tenant", flags, TENANT_VARIABLE)


def blobs_url(given: str | None) -> str | None:
    """The blob store's URL from the option or the environment."""
    return given or os.environ.get(BLOBS_VARIABLE) or None


@contextmanager
def needing(command: str, extra: str) -> Generator[None]:
    """Raise InvalidOption with the command that installs the libraries of an extra, if they are missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        reason = f"it needs {error.name}; install it with: pip install 'holdfast[{extra}]'"
        raise InvalidOption(command, reason) from error


def words(option: str, text: str | None) -> list[str] | None:
    """The parts of `a,b,c`; None stays None. Raises InvalidOption for an empty part."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InvalidOption(option, f"{text!r} has an empty name; write a,b,c")
    return parts


def gauges_by_tenant(text: str | None, port: int | None) -> tuple[str, ...]:
    """The tenants of `--gauges-by-tenant`. Raises InvalidOption without `--metrics-port`."""
    tenants = words("gauges_by_tenant", text)
    if tenants and port is None:
        raise InvalidOption("gauges_by_tenant", "it needs --metrics-port")
    return tuple(tenants or ())


def wait_limit(text: str | None) -> timedelta | None:
    """How long `--wait` waits. None: no limit. Raises InvalidOption."""
    return None if text == "forever" else duration("wait", text)


def _given(given: str | None, option: str, flags: str, variable: str) -> str:
    value = given or os.environ.get(variable)
    if not value:
        raise InvalidOption(option, f"not given; pass {flags} or set {variable}")
    return value
