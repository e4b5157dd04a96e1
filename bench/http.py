"""`python -m bench.http`: the HTTP service under load, and beside Celery behind FastAPI, in one run on one machine.

Eight parts, each by itself with `--only`; without it the first five:
mixed   traffic of all kinds from 64 connections for a minute: errors, latencies, memory
polls   5,000 long polls that wait for nothing: memory, and whether others are still answered
celery  single enqueues a second, ours and Celery's in turns, both on Valkey
batch   `jobs:batch` beside `enqueue_many` in this process, on the same store
worst   the worst bodies of each size: the longest turn of the event loop, and memory
cost    `--before SRC`: processor time of ordinary requests beside an earlier source tree, in turns
victims a tenant's requests alone and while another attacks, by each attack, on file, Valkey and PostgreSQL
flood   every attack at once for `--seconds`: what the victim waits and loses, the process and the store take
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import cost as requests
from bench import environments, load, served
from bench import victims as attacks
from bench import worst as bodies
from bench.jobs import noop
from bench.load import Connection, Form, Seen
from bench.measure import Figures, percentile
from bench.postgres import Server as PostgresServer
from bench.tables import cell, times
from bench.valkey import Server
from holdfast import Queue

HERE = Path(__file__).parent
RESULTS = HERE / "results-http.json"
PARTS = ("mixed", "polls", "celery", "batch", "worst")
EXTRA = ("cost", "victims", "flood")
STORES = ("file", "valkey", "postgres")

ROUNDS = 5
CONNECTIONS = 64
POLLING = 8
"""How many of the connections wait for jobs instead of asking for things."""
QUEUES = 8
EARLY_S = 10
KEPT_S = 5
HELD_S = 20
ASKED = 200
BATCH = 1_000
BATCHES = 40
SENDERS = 2
OURS, IN_THE_LOOP, IN_A_THREAD = "Holdfast", "Celery, in the loop", "Celery, in a thread"
ENQUEUES = "enqueues a second"
COST = "µs of processor an enqueue"
"""Of the server alone, without Valkey."""
JOBS = "jobs a second"


def main() -> int:
    arguments = _arguments()
    console = Console(width=max(120, Console().width))
    _raise_file_limit()
    (HERE / "out").mkdir(exist_ok=True)
    found: dict[str, Any] = {"settings": _about(arguments)}
    with Server() as valkey:
        found["settings"]["valkey"] = valkey.version
        for part in arguments.only:
            valkey.empty()
            console.print(part, style="dim", highlight=False)
            found[part] = globals()[part](valkey, arguments, console)
    arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    console.print(f"\nEvery value is in {arguments.output}", highlight=False)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.http", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=PARTS + EXTRA, help="these parts alone")
    parser.add_argument("--before", type=Path, help="the `src` of an earlier tree, for cost")
    parser.add_argument("--rounds", type=int, help="of celery and batch (5), of cost (7 or more), of victims (2)")
    parser.add_argument("--seconds", type=float, default=60, help="of mixed traffic")
    parser.add_argument("--turn", type=float, default=8, help="seconds of one turn of celery")
    parser.add_argument("--polls", type=int, default=5_000)
    parser.add_argument("--processes", type=int, default=1, help="of each server")
    parser.add_argument("--attacks", action="append", choices=attacks.ATTACKS, help="of victims: these alone")
    parser.add_argument("--stores", action="append", choices=STORES, help="of victims and flood: these alone")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.only = arguments.only or list(PARTS)
    arguments.attacks = arguments.attacks or list(attacks.ATTACKS)
    arguments.stores = arguments.stores or list(STORES)
    if "cost" in arguments.only and arguments.before is None:
        parser.error("cost needs --before SRC, the `src` of an earlier tree")
    return arguments


# Mixed traffic -----------------------------------------------------------------------------------------------------


def mixed(valkey: Server, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Enqueue, look, list, claim and finish, from 56 connections; 8 more wait for jobs and finish them."""
    with served.ours(valkey.url, arguments.processes) as server:
        seen, memory = load.run(_mixed(server, arguments.seconds))
    latencies = {kind: seen.shown(kind) for kind in seen.ms}
    asked = [ms for kind, values in seen.ms.items() if kind != "long poll" for ms in values]
    result = {
        "requests a second": seen.requests / arguments.seconds,
        "errors": seen.errors[:20],
        "error count": len(seen.errors),
        "kinds": latencies,
        "all but long polls": {"p50": percentile(asked, 50), "p99": percentile(asked, 99)},
        "MiB": memory,
    }
    table = Table(title=f"{CONNECTIONS} connections, {arguments.seconds:g} s", title_justify="left")
    for column in ("", "requests", "p50 ms", "p99 ms"):
        table.add_column(column, justify="right" if column else "left")
    for kind, values in latencies.items():
        table.add_row(kind, f"{values['requests']:,}", f"{values['p50']:.1f}", f"{values['p99']:.1f}")
    console.print(table)
    both = result["all but long polls"]
    console.print(
        f"{result['requests a second']:,.0f} requests a second, {len(seen.errors)} errors; all but long polls: "
        f"p50 {both['p50']:.1f} ms, p99 {both['p99']:.1f} ms\n"
        f"memory of the server: {', '.join(f'{mib:.1f} MiB after {at} s' for at, mib in memory.items())}",
        highlight=False,
    )
    for error in seen.errors[:5]:
        console.print(error, style="red", markup=False)
    return result


async def _mixed(server: served.Served, seconds: float) -> tuple[Seen, dict[str, float]]:
    seen, memory = Seen(), {}
    end = time.monotonic() + seconds

    async def watch() -> None:
        for at in sorted({min(EARLY_S, seconds / 2), seconds * 0.99}):
            await asyncio.sleep(max(0.0, end - seconds + at - time.monotonic()))
            memory[f"{at:.0f}"] = server.rss()

    async def act(connection: Connection, number: int) -> None:
        if number < POLLING:
            await _poll(seen, connection, server.form, end)
        else:
            await _ask(seen, connection, server.form, end, random.Random(number))

    watching = asyncio.create_task(watch())
    await load.each(server.form.port, CONNECTIONS, act)
    await watching
    return seen, memory


async def _ask(seen: Seen, connection: Connection, form: Form, end: float, chance: random.Random) -> None:
    mine: list[tuple[str, str]] = []
    while time.monotonic() < end:
        queue = f"q{chance.randrange(QUEUES)}"
        what = chance.choices(("enqueue", "get", "list", "claim"), (35, 20, 10, 35))[0]
        if what == "enqueue":
            where = "polled" if chance.random() < 0.05 else queue
            job = {"queue": where, "type": "noop", "payload": {"n": 1}, "result_ttl_s": KEPT_S}
            answer = await seen.ask(connection, what, form.post("/v1/jobs", job))
            mine = [*mine[-20:], (where, answer.json()["id"])] if answer.status == 201 else mine
        elif what == "get" and mine:
            where, id = chance.choice(mine)
            # A finished job is soon forgotten.
            await seen.ask(connection, what, form.get(f"/v1/queues/{where}/jobs/{id}"), 200, 404)
        elif what == "list":
            await seen.ask(connection, what, form.get(f"/v1/queues/{queue}/jobs?limit=20&state=ready"))
        elif what == "claim":
            wish = {"queues": [queue], "limit": 1, "lease_s": 60}
            await _finish(seen, connection, form, await seen.ask(connection, what, form.post("/v1/claims", wish)))


async def _poll(seen: Seen, connection: Connection, form: Form, end: float) -> None:
    while (left := end - time.monotonic()) > 0:
        wish = {"queues": ["polled"], "limit": 5, "lease_s": 60, "wait_s": min(20.0, left)}
        answer = await seen.ask(connection, "long poll", form.post("/v1/claims", wish))
        await _finish(seen, connection, form, answer)


async def _finish(seen: Seen, connection: Connection, form: Form, claimed: load.Answer) -> None:
    jobs = claimed.json().get("jobs", ()) if claimed.status == 200 else ()
    leases = [
        {"queue": job["queue"], "id": job["id"], "token": job["token"], "outcome": "complete", "result": 1}
        for job in jobs
    ]
    if leases:
        answer = await seen.ask(connection, "finish", form.post("/v1/leases:finish", {"leases": leases}))
        seen.errors += [f"finish: {item}" for item in answer.json()["items"] if item.get("status") != "completed"]


# Long polls --------------------------------------------------------------------------------------------------------


def polls(valkey: Server, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Thousands of claims wait; others enqueue, and one poll of all is answered by the job it waited for."""
    with served.ours(valkey.url) as server:
        result = load.run(_polls(server, arguments.polls))
    console.print(
        f"{result['held']:,} long polls held for {HELD_S} s: {result['MiB with them']:.0f} MiB, "
        f"{result['MiB before']:.0f} before ({result['KiB each']:.1f} KiB each)\n"
        f"enqueue meanwhile: p50 {result['enqueue p50 ms']:.1f} ms, p99 {result['enqueue p99 ms']:.1f} ms; "
        f"a job for them came after {result['woken ms']:.1f} ms; {result['error count']} errors",
        highlight=False,
    )
    return result


async def _polls(server: served.Served, count: int) -> dict[str, Any]:
    form, seen = server.form, Seen()
    other = await Connection.open(form.port)
    enqueue = form.post("/v1/jobs", {"queue": "elsewhere", "payload": 1})
    await seen.ask(other, "warm-up", enqueue)
    before = server.rss()
    wish = form.post("/v1/claims", {"queues": ["idle"], "wait_s": 60})
    waiting: set[asyncio.Future[load.Answer]] = set()
    connections: list[Connection] = []
    for _ in range(count):
        connections.append(await Connection.open(form.port))
        waiting.add(asyncio.ensure_future(connections[-1].ask(wish)))
    await asyncio.sleep(HELD_S)
    answered = {one for one in waiting if one.done()}
    memory = server.rss()
    for _ in range(ASKED):
        await seen.ask(other, "enqueue", enqueue)
    began = time.perf_counter()
    await seen.ask(other, "wake", form.post("/v1/jobs", {"queue": "idle", "payload": "for one of you"}))
    done, waiting = await asyncio.wait(waiting - answered, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    woken = (time.perf_counter() - began) * 1000
    for one in done:
        jobs = one.result().json()["jobs"]
        seen.errors += [] if len(jobs) == 1 else [f"a poll came back with {len(jobs)} jobs"]
    if len(done) != 1 or answered:
        seen.errors.append(f"{len(answered)} polls ended early, {len(done)} were woken by one job")
    for one in waiting:
        one.cancel()
    for connection in [*connections, other]:
        connection.close()
    latencies = seen.shown("enqueue")
    return {
        "held": count - len(answered), "MiB before": before, "MiB with them": memory,
        "KiB each": (memory - before) * 1024 / count,
        "enqueue p50 ms": latencies["p50"], "enqueue p99 ms": latencies["p99"],
        "woken ms": woken, "errors": seen.errors[:20], "error count": len(seen.errors),
    }  # fmt: skip


# Beside Celery -----------------------------------------------------------------------------------------------------


def celery(valkey: Server, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Single enqueues in turns; the order changes from round to round. No worker runs."""
    if not environments.ready("celery"):
        console.print("installing Celery and FastAPI (once)", style="dim", highlight=False)
        environments.prepare("celery")
    figures, errors = Figures(), []
    job = {"queue": "bench", "type": "noop", "payload": {"n": 1}}
    subjects = (
        (OURS, "/v1/jobs", job),
        (IN_THE_LOOP, "/in-the-loop", {"n": 1}),
        (IN_A_THREAD, "/in-a-thread", {"n": 1}),
    )
    for number in range(arguments.rounds or ROUNDS):
        turn = number % len(subjects)
        for subject, path, body in subjects[turn:] + subjects[:turn]:
            valkey.empty()
            start = served.ours if subject == OURS else served.celery
            with start(valkey.url, arguments.processes) as server:
                request = server.form.post(path, body)
                load.run(load.rate(server.form, CONNECTIONS, 1, request))
                before = server.cpu()
                rate, seen = load.run(load.rate(server.form, CONNECTIONS, arguments.turn, request))
                figures.add(COST, subject, (server.cpu() - before) / seen.requests * 1e6)
            figures.add(ENQUEUES, subject, rate)
            figures.add("p99 ms", subject, seen.shown("request")["p99"])
            errors += seen.errors
    table = Table(
        title=f"{CONNECTIONS} connections, median of {arguments.rounds or ROUNDS} rounds", title_justify="left"
    )
    table.add_column("")
    for subject, _, _ in subjects:
        table.add_column(subject, justify="right")
    for measure in (ENQUEUES, "p99 ms", COST):
        table.add_row(measure, *(cell(figures, measure, subject, "{:,.0f}") for subject, _, _ in subjects))
    console.print(table)
    best = max(figures.median(ENQUEUES, IN_THE_LOOP), figures.median(ENQUEUES, IN_A_THREAD))
    ratio = figures.median(ENQUEUES, OURS) / best
    console.print(f"ours / the better one of Celery's: {times(ratio)} ({len(errors)} errors)", highlight=False)
    return {"ratio": ratio, "errors": errors[:20], "error count": len(errors), "figures": figures.as_dict()}


# Batches -----------------------------------------------------------------------------------------------------------


def batch(valkey: Server, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The same jobs by `enqueue_many` here, and by `jobs:batch` from two connections, bodies made on the way."""
    figures, errors = Figures(), []
    with tempfile.TemporaryDirectory(prefix="http-", dir=HERE / "out") as directory:
        for number in range(arguments.rounds or ROUNDS):
            for store, url in (("valkey", valkey.url), ("file", f"file:{directory}/{number}")):
                turns = [_in_process, _over_http, _by_client]
                for turn in turns if number % 2 else reversed(turns):
                    valkey.empty()
                    errors += turn(figures, store, url)
    ratios = {}
    for store in ("valkey", "file"):
        many, ours, client = (figures.median(f"{JOBS}, {store}", subject) for subject in _SUBJECTS)
        ratios[store] = ours / many
        console.print(
            f"{store}: enqueue_many in process {many:,.0f} jobs a second; jobs:batch {ours:,.0f}, {ours / many:.2f} of "
            f"it; Queue over HTTP {client:,.0f}, {client / many:.2f} of it ({len(errors)} errors)",
            highlight=False,
        )
    return {"ratios": ratios, "errors": errors[:20], "error count": len(errors), "figures": figures.as_dict()}


_SUBJECTS = ("enqueue_many", "jobs:batch", "Queue over HTTP")


def _in_process(figures: Figures, store: str, url: str) -> list[str]:
    figures.add(f"{JOBS}, {store}", _SUBJECTS[0], load.run(_enqueue_many(url)))
    return []


async def _enqueue_many(url: str, **options: Any) -> float:
    async with Queue(url, tenant="bench", **options) as queue:
        await queue.enqueue_many(noop.message(n) for n in range(BATCH))
        began = time.perf_counter()
        await queue.enqueue_many(noop.message(n) for n in range(BATCH * BATCHES))
        return BATCH * BATCHES / (time.perf_counter() - began)


def _over_http(figures: Figures, store: str, url: str) -> list[str]:
    with served.ours(url) as server:
        rate, errors = load.run(_batches(server.form))
    figures.add(f"{JOBS}, {store}", _SUBJECTS[1], rate)
    return errors


async def _batches(form: Form) -> tuple[float, list[str]]:
    seen = Seen()

    async def send(connection: Connection, batches: int) -> None:
        for _ in range(batches):
            jobs = [{"queue": "bench", "type": "noop", "payload": {"n": n}} for n in range(BATCH)]
            answer = await seen.ask(connection, "batch", form.post("/v1/jobs:batch", {"jobs": jobs}))
            if answer.body.count(b'"queued"') != BATCH:
                seen.errors.append(answer.body[:200].decode(errors="replace"))

    await load.each(form.port, SENDERS, lambda connection, _: send(connection, 1))
    began = time.perf_counter()
    await load.each(form.port, SENDERS, lambda connection, _: send(connection, BATCHES // SENDERS))
    return BATCH * BATCHES / (time.perf_counter() - began), seen.errors


def _by_client(figures: Figures, store: str, url: str) -> list[str]:
    with served.ours(url) as server:
        figures.add(f"{JOBS}, {store}", _SUBJECTS[2], load.run(_enqueue_many(server.url, token=server.token)))
    return []


# The worst bodies ---------------------------------------------------------------------------------------------------


def worst(_: Server, __: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Each in a request of its own, at a service on a memory store."""
    with tempfile.TemporaryDirectory(prefix="http-", dir=HERE / "out") as directory:
        return bodies.measure(console, directory)


# Ordinary requests ---------------------------------------------------------------------------------------------------


def cost(_: Server, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """At least 7 rounds, whatever was said."""
    return requests.measure(console, arguments.before, max(7, arguments.rounds or 0))


# A victim and an attacker ---------------------------------------------------------------------------------------------


def victims(valkey: Server, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """In short rounds, alone and attacked in turns."""
    with _stores(valkey, arguments.stores) as (urls, _):
        rounds = arguments.rounds or attacks.ROUNDS
        return attacks.measure(console, urls, arguments.seconds / 15, rounds, arguments.attacks)


def flood(valkey: Server, arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All at once, for a minute."""
    with _stores(valkey, arguments.stores) as (urls, size):
        return attacks.flood(console, urls, arguments.seconds, size)


@contextlib.contextmanager
def _stores(valkey: Server, wanted: Collection[str]) -> Iterator[tuple[dict[str, str], Callable[[str], float]]]:
    """A store of each kind, and how many MiB each has."""
    with tempfile.TemporaryDirectory(prefix="http-", dir=HERE / "out") as directory, PostgresServer() as postgres:

        def size(store: str) -> float:
            if store == "file":
                return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file()) / 2**20
            return (valkey.memory() if store == "valkey" else postgres.memory()) / 2**20

        urls = {"file": f"file:{directory}/store", "valkey": valkey.url, "postgres": postgres.url}
        yield {store: urls[store] for store in wanted}, size


# What it was measured on -------------------------------------------------------------------------------------------


def _about(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "rounds": arguments.rounds or ROUNDS, "connections": CONNECTIONS, "processes": arguments.processes,
        "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}",
        "processors": os.cpu_count(), "peers": environments.PINNED["celery"],
    }  # fmt: skip


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
