"""`python -m bench.dashboard`: how long a page of the dashboard takes, and what open pages cost beside a drain.

**pages**: a store holds `--jobs` jobs of `--tenants` tenants, half of them of one tenant. In a dashboard's process that
has just started, each page is asked for once, and then again: milliseconds until the answer is complete.

**open**: a drain of `--drain` jobs by one worker, with `--pages` open pages and without any, in turns. The pages are
clients that hold the event stream of a page and fetch what changed. The cost is the processor time of the dashboard's
process, and on PostgreSQL of the processes that serve its connections, of that of the worker and the server; and how
much more all of them together took than without pages. PostgreSQL does not vacuum meanwhile: when it does is chance,
and it costs more than the pages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from bench import postgres, valkey
from bench.disk import Folder
from bench.jobs import noop
from bench.measure import cpu_of, ratio
from bench.peer import running
from bench.served import wait_for
from holdfast import Flow, Queue
from holdfast.core.job import AttemptError, ClaimRequest, Envelope, Finish, JobKey, NewJob
from holdfast.dashboard.pages import PAGES
from holdfast.opening import open_store
from holdfast.store import Store, WorkerInfo
from holdfast.testing.processes import free_port

TENANT, QUEUES, CHUNK, AT_ONCE = "bench", 20, 1000, 4
DEAD, HELD, ENDED = 2000, 200, 2000
DAY = 86_400_000
EXPLAINED = 50
"""How often a job is explained."""
CONCURRENCY = 200
SETTLE_S = 12.0
"""Longer than these pages rest after a round: what they do to show the end of a drain belongs to the cost."""
QUERIES = {
    "/job": f"tenant={TENANT}&queue=QUEUE&id=JOB", "/dead/run": f"tenant={TENANT}&do=replay", "/tenants": "",
    "/dead/group": f"tenant={TENANT}&error=ERROR", "/flow": f"tenant={TENANT}&id=flow-1",
    "/schedule": f"tenant={TENANT}&name=nightly", "/worker": f"tenant={TENANT}&id=w1",
}  # fmt: skip
"""What a page is asked with; the others with the tenant alone."""


def query_of(path: str, **known: str) -> str:
    """What a page is asked with, with the names that are known by now."""
    query = QUERIES.get(path, f"tenant={TENANT}")
    for name, text in known.items():
        query = query.replace(name.upper(), text)
    return query


class Disk(contextlib.AbstractContextManager["Disk"]):
    """A directory in place of a server."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="dashboard-", dir=postgres.HERE)
        self._folder = Folder(Path(self._home.name))

    def __exit__(self, *_: object) -> None:
        self._home.cleanup()

    @property
    def url(self) -> str:
        return self._folder.url

    def cpu(self) -> float:
        return 0.0

    def empty(self) -> None:
        self._folder.empty()


STORES: dict[str, Any] = {"file": Disk, "valkey": valkey.Server, "postgres": partial(postgres.Server, autovacuum="off")}


@contextlib.contextmanager
def upkeep(url: str) -> Iterator[None]:
    """What every deployment has: a process that does the upkeep. It has counted what was filled in."""
    with running([sys.executable, "-m", "holdfast", "maintain", "--store", url], dict(os.environ)):
        time.sleep(SETTLE_S)
        yield


@contextlib.contextmanager
def dashboard(url: str) -> Iterator[tuple[str, int]]:
    """A dashboard in a process of its own: its address, and the id of the process."""
    port = free_port()
    command = [sys.executable, "-m", "holdfast", "dashboard", "--store", url, "--port", str(port)]
    with running(command, dict(os.environ)) as process:
        wait_for(process, port)
        yield f"http://127.0.0.1:{port}", process.pid


# First views -------------------------------------------------------------------------------------------------------


async def fill(store: Store, jobs: int, tenants: int) -> None:
    """Half of the jobs are one tenant's, in 20 queues and in all states; the rest are all others'."""
    envelope = Envelope("send", b'{"to": "someone@example.com", "template": "welcome"}', max_attempts=1)
    others = itertools.cycle(f"tenant-{n:05}" for n in range(max(1, tenants - 1)))
    names = ((TENANT if n % 2 else next(others), n) for n in range(jobs))
    new = (NewJob(JobKey(tenant, f"q{n // 2 % QUEUES}", f"{n:08}"), envelope) for tenant, n in names)
    while chunks := [chunk for _ in range(AT_ONCE) if (chunk := list(itertools.islice(new, CHUNK)))]:
        await asyncio.gather(*map(store.enqueue, chunks))
    error = AttemptError("ConnectTimeout", "no answer within 10 s", "Traceback (most recent call last):\n  ...")
    for queue, count, outcome in (("q1", DEAD, "fail"), ("q2", ENDED, "complete"), ("q3", HELD, "")):
        for _ in range(0, count, CHUNK):
            held = (await store.claim(ClaimRequest(TENANT, (queue,), min(count, CHUNK), DAY, "w1"))).jobs
            if held and outcome:
                lost = error if outcome == "fail" else None
                await store.finish([Finish(job.key, job.token, outcome, error=lost) for job in held])
    await store.beat(WorkerInfo("w1", TENANT, "host", 1, ("q1", "q2", "q3"), HELD, HELD), DAY)
    async with Queue(store=store, tenant=TENANT) as queue:
        await queue.schedule("nightly", {"n": 1}, cron="30 2 * * *", queue="q1")
        flow = Flow("report", "flow-1")
        first = flow.add({"n": 1}, name="first", queue="q1")
        for n in range(30):
            flow.add({"n": n}, name=f"part-{n}", queue="q1", after=[first])
        await queue.start(flow)


async def ask(client: httpx.AsyncClient, path: str) -> tuple[float, str]:
    """Milliseconds until a page is complete, and the page."""
    began = time.perf_counter()
    answer = await client.get(path)
    took = (time.perf_counter() - began) * 1000
    if answer.status_code != 200:
        raise RuntimeError(f"{path} answered {answer.status_code}: {answer.text[-500:]}")
    return took, answer.text


async def measure_pages(place: Any, arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Of each page, the first views and the second ones."""
    store = await open_store(place.url)
    await fill(store, arguments.jobs, arguments.tenants)
    last = (arguments.jobs - 2) // 2 * 2 + 1  # The last one enqueued of this tenant: all others are ahead.
    known = {"queue": f"q{last // 2 % QUEUES}", "job": f"{last:08}", "error": ""}
    with upkeep(place.url):
        explain, claim = await measure_explain(store, known["queue"], known["job"])
    print(f"explain {explain:.2f} ms, a claim of one job {claim:.2f} ms (medians of {EXPLAINED})")
    await store.close()
    found: dict[str, dict[str, list[float]]] = {page.path: {"first": [], "again": []} for page in PAGES}
    for number in range(arguments.rounds):
        turn = number * 3 % len(PAGES)  # Another page is the first of its process.
        pages = [*PAGES[turn:], *PAGES[:turn]]
        with upkeep(place.url), dashboard(place.url) as (base, _):
            async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client:
                # The connection is open, and what is asked for is known; /nowhere reads nothing of the store.
                await client.get("/nowhere")
                for which in ("first", "again"):
                    for page in sorted(pages, key=lambda page: page.path == "/dead/group"):
                        took, html = await ask(client, f"{page.path}?{query_of(page.path, **known)}")
                        found[page.path][which].append(took)
                        if errors := re.findall(r"/dead/group\?[^\"]*error=(\w+)", html):
                            known["error"] = errors[0]
    return found


async def measure_explain(store: Store, queue: str, id_: str) -> tuple[float, float]:
    """Milliseconds to explain a job, and to claim one of its queue, in turns."""
    took: dict[str, list[float]] = {"explain": [], "claim": []}
    async with Queue(store=store, tenant=TENANT) as own:
        for _ in range(EXPLAINED):
            began = time.perf_counter()
            await own.explain(id_, queue=queue)
            middle = time.perf_counter()
            held = (await store.claim(ClaimRequest(TENANT, (queue,), 1, DAY, "w2"))).jobs
            took["explain"].append((middle - began) * 1000)
            took["claim"].append((time.perf_counter() - middle) * 1000)
            await store.finish([Finish(job.key, job.token, "release") for job in held])
    return statistics.median(took["explain"]), statistics.median(took["claim"])


def show_pages(console: Console, name: str, found: dict[str, dict[str, list[float]]], jobs: int, tenants: int) -> None:
    table = Table(
        title=f"{name}: ms until a page is complete, {jobs:,} jobs of {tenants:,} tenants", title_justify="left"
    )
    for column in ("page", "first view, median", "worst", "again, median", "worst"):
        table.add_column(column, justify="left" if column == "page" else "right")
    for path, views in found.items():
        cells = (f(views[which]) for which in ("first", "again") for f in (statistics.median, max))
        table.add_row(path, *(f"{value:.1f}" for value in cells))
    console.print(table)


# Open pages --------------------------------------------------------------------------------------------------------


async def look(client: httpx.AsyncClient, path: str, ready: asyncio.Semaphore, seen: list[int]) -> None:
    """An open page: it holds the stream, and fetches what changed."""
    query = query_of(path, queue="bench", job="0")
    await client.get(f"{path}?{query}")
    live = f"/live?page={path}&{query}"
    async with client.stream("GET", live) as stream:
        if stream.status_code != 200:
            raise RuntimeError(f"{live} answered {stream.status_code}")
        ready.release()
        async for line in stream.aiter_lines():
            if line.startswith("data: {"):
                for fragment in json.loads(line[6:]):
                    await client.get(f"{path}?{query}&fragment={fragment}")
                    seen[0] += 1


@contextlib.asynccontextmanager
async def looking(base: str, count: int) -> AsyncIterator[list[int]]:
    """Open pages, of each kind that is live. Gives how many fragments they fetched."""
    paths = itertools.cycle(page.path for page in PAGES if page.fragments and page.path in LIVE)
    seen, ready = [0], asyncio.Semaphore(0)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=None, limits=limits) as client:
        clients = [asyncio.create_task(look(client, next(paths), ready, seen)) for _ in range(count)]
        try:
            for _ in clients:
                await ready.acquire()
            yield seen
        finally:
            for ended in [task for task in clients if task.done()]:
                ended.result()
            for task in clients:
                task.cancel()
            await asyncio.wait(clients)


LIVE = {"/", "/queues", "/jobs", "/job", "/dead", "/flows", "/schedules", "/events", "/workers", "/tenants"}


async def measure_open(place: Any, pages: int, jobs: int) -> dict[str, float]:
    """A drain: the processor time of the dashboard, and of worker and server."""
    place.empty()
    async with Queue(place.url, tenant=TENANT) as queue:
        for start in range(0, jobs, CHUNK):
            part = range(start, min(jobs, start + CHUNK))
            await queue.enqueue_many([noop.message(n) for n in part], queue="bench")
        await queue.enqueue(noop.message(0), id="0", priority=0)
    with dashboard(place.url) as (base, pid):
        async with contextlib.AsyncExitStack() as stack:
            seen = await stack.enter_async_context(looking(base, pages)) if pages else [0]
            await asyncio.sleep(SETTLE_S)  # The first views are not the drain's.
            before, server, serving, seen[0] = cpu_of(pid), place.cpu(), cpu_for_pages(place), 0
            command = [sys.executable, "-m", "bench.worker", place.url, "--until", str(jobs + 1)]
            command += ["--concurrency", str(CONCURRENCY)]
            worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            said, _ = await worker.communicate()
            tally = json.loads(said.splitlines()[-1])
            await asyncio.sleep(SETTLE_S)
            return {
                "seconds": tally["ended"] - tally["begun"],
                "dashboard": cpu_of(pid) - before,
                "reads": cpu_for_pages(place) - serving,
                "drain": tally["cpu_seconds"] + place.cpu() - server,
                "fetched": seen[0],
            }


def cpu_for_pages(place: Any) -> float:
    """What the server has used for the dashboard, while there is no worker. Only PostgreSQL shows it; else 0."""
    return place.cpu_for_others() if isinstance(place, postgres.Server) else 0.0


async def compare_open(
    console: Console, place: Any, arguments: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """With pages and without any, in turns; who comes first changes from round to round."""
    found: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    for number in range(arguments.rounds):
        for which in ("with", "without")[:: -1 if number % 2 else 1]:
            console.print(f"round {number + 1} of {arguments.rounds}, {which} pages", style="dim", highlight=False)
            pages = arguments.pages if which == "with" else 0
            found[which].append(await measure_open(place, pages, arguments.drain))
    return found


def show_open(console: Console, name: str, found: dict[str, list[dict[str, float]]], pages: int, jobs: int) -> None:
    table = Table(
        title=f"{name}: a drain of {jobs:,} jobs, with {pages} open pages and without any", title_justify="left"
    )
    for column in (
        "",
        "jobs a second",
        "drain, s of processor",
        "dashboard, s",
        "server for it, s",
        "both of the drain",
        "fetched",
    ):
        table.add_column(column, justify="right" if column else "left")
    for which, rounds in found.items():
        middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
        share = statistics.median((one["dashboard"] + one["reads"]) / one["drain"] for one in rounds)
        table.add_row(
            which, f"{jobs / middle['seconds']:,.0f}", f"{middle['drain']:.2f}", f"{middle['dashboard']:.2f}",
            f"{middle['reads']:.2f}", f"{share:.1%}", f"{middle['fetched']:,.0f}",
        )  # fmt: skip
    console.print(table)
    whole = {which: [one["dashboard"] + one["drain"] for one in rounds] for which, rounds in found.items()}
    more, low, high = (one - 1 for one in ratio(whole["with"], whole["without"]))
    console.print(f"All of it together took {more:+.1%} (95 %: {low:+.1%} to {high:+.1%})")


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dashboard")
    parser.add_argument("--only", choices=("pages", "open"))
    parser.add_argument("--stores", default="file,valkey,postgres")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=1_000)
    parser.add_argument("--pages", type=int, default=50, help="how many are open")
    parser.add_argument("--drain", type=int, default=500_000, help="how many jobs are drained beside them")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    console = Console(width=120)
    postgres.HERE.mkdir(exist_ok=True)
    for name in arguments.stores.split(","):
        if arguments.only != "open":
            with STORES[name]() as place:
                found = await measure_pages(place, arguments)
                show_pages(console, name, found, arguments.jobs, arguments.tenants)
        if arguments.only != "pages":
            with STORES[name]() as place:
                compared = await compare_open(console, place, arguments)
                show_open(console, name, compared, arguments.pages, arguments.drain)


if __name__ == "__main__":
    asyncio.run(main())
