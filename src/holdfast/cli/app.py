"""All commands, in the order in which `holdfast --help` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import (
    get_command,
    get_command_from_info,
    get_command_name,
    get_group_from_info,
    solve_typer_info_defaults,
    solve_typer_info_help,
)

from holdfast.cli import (
    checks,
    dashboard,
    demo,
    dev,
    dlq,
    enqueue,
    events,
    flows,
    jobs,
    move,
    pipeline,
    queues,
    schedules,
    serve,
    tenants,
    tokens,
    trail,
    upkeep,
    worker,
)
from holdfast.cli.output import say


class Commands(Mapping[str, Any]):
    """The commands by name. Each is built on first use: building all takes as long as importing the library."""

    def __init__(self, parts: typer.Typer) -> None:
        self._built = cache(self._build)
        self._builders: dict[str, Callable[[], Any]] = {}
        self.help: dict[str, str] = {}
        """The help text of each command, known without building it."""
        plain: dict[str, Any] = {"pretty_exceptions_short": False, "rich_markup_mode": None}
        for info in parts.registered_commands:
            name = info.name or get_command_name(getattr(info.callback, "__name__", ""))
            self._builders[name] = partial(get_command_from_info, info, **plain)
            self.help[name] = cleandoc(info.help or info.callback.__doc__ or "")
        for group in parts.registered_groups:
            name = solve_typer_info_defaults(group).name or ""
            self._builders[name] = partial(get_group_from_info, group, suggest_commands=True, **plain)
            self.help[name] = solve_typer_info_help(group)

    def __getitem__(self, name: str) -> Any:
        return self._built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def __len__(self) -> int:
        return len(self._builders)

    def _build(self, name: str) -> Any:
        return self._builders[name]()


class Root(TyperGroup):
    """`holdfast`: lists its commands without building them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the signature of the base class
        width = formatter.width - 6 - max(map(len, commands))
        named = ((name, TyperCommand(name, help=text)) for name, text in commands.help.items())
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(width)) for name, one in named])


app = typer.Typer(
    name="holdfast",
    cls=Root,
    help="A reliable multi-tenant job queue.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage. HOLDFAST_STORE and HOLDFAST_TENANT are the defaults of "
    "--store and --tenant. Durations: 30, 30s, 10m, 2h, 1d.",
    # Plain help: with Rich it takes twice as long.
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
        say(ctx.get_help(), lines=True)


_parts = typer.Typer()
for _name, _function in {
    "dev": dev.dev,
    "demo": demo.demo,
    "worker": worker.worker,
    "serve": serve.serve,
    "dashboard": dashboard.dashboard,
    "maintain": upkeep.maintain,
    "migrate": upkeep.migrate,
    "workers": upkeep.list_workers,
    "enqueue": enqueue.enqueue,
    "status": jobs.status,
    "explain": jobs.explain,
    "result": jobs.result,
    "cancel": jobs.cancel,
    "list": jobs.list_jobs,
    "stats": queues.stats,
    "queues": queues.list_queues,
    "pause": queues.pause,
    "resume": queues.resume,
    "events": events.events,
    "tenants": tenants.list_tenants,
    "move": move.move_tenant,
    "trail": trail.trail,
    "conformance": checks.conformance,
    "doctor": checks.doctor,
    "version": checks.version,
}.items():
    _parts.command(_name)(_function)
for _group in (dlq, schedules, flows, tenants, pipeline, tokens):
    _group.register(_parts)

commands = Commands(_parts)
command: Any = get_command(app)
command.commands = commands
