"""What ordinary requests cost: processor time of the service for each, beside an earlier source tree, in turns.

Both services run at once on a memory store, and each round asks the one and then the other for the same things, the
other one first in every second round. A round's ratio has the disturbances of its own moment alone.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import holdfast
from bench import load
from bench.load import Connection, Form
from bench.measure import Figures, ratio
from bench.peer import running
from bench.served import SCOPES, wait_for
from holdfast.service.settings import TokenSettings
from holdfast.service.signing import new_secret, sign
from holdfast.testing.processes import free_port

SINGLES, BATCHES, BATCH = 200, 10, 100
ALL = "all of a round"
NOW, BEFORE = "now", "before"
JOB = {"queue": "q", "type": "noop", "payload": {"user": 17, "name": "a name", "of": [1, 2, 3]}, "result_ttl_s": 0.001}


def measure(console: Console, before: Path, rounds: int) -> dict[str, Any]:
    figures = Figures()
    now = Path(holdfast.__file__).parents[1]
    with _service(now) as new, _service(before) as old:
        for number in range(rounds + 1):
            order = ((NOW, new), (BEFORE, old))
            for subject, service in order if number % 2 else reversed(order):
                costs = load.run(_round(service))
                if number:  # The first one warms up.
                    for kind, seconds in costs.items():
                        figures.add(kind, subject, seconds * 1e6)
    table = Table(title=f"µs of processor time a request, {rounds} rounds in turns", title_justify="left")
    for column in ("", BEFORE, NOW, "ratio", "95 %"):
        table.add_column(column, justify="right" if column else "left")
    ratios = {}
    for kind in (*KINDS, ALL):
        middle, low, high = ratio(figures.values(kind, NOW), figures.values(kind, BEFORE))
        ratios[kind] = [middle, low, high]
        shown = (f"{figures.median(kind, subject):.0f}" for subject in (BEFORE, NOW))
        table.add_row(kind, *shown, f"{middle:.3f}", f"{low:.3f} to {high:.3f}")
    console.print(table)
    return {"ratios": ratios, "figures": figures.as_dict()}


class _Service:
    def __init__(self, process: subprocess.Popen, form: Form) -> None:
        self.form = form
        self._path = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat")

    def cpu(self) -> float:
        """Seconds of processor time that the event loop's thread has used so far."""
        return int(self._path.read_text().split()[0]) / 1e9


@contextlib.contextmanager
def _service(source: Path) -> Iterator[_Service]:
    key, port = new_secret(), free_port()
    token = sign(TokenSettings(hs256_key=key), tenant="bench", scopes=SCOPES, lifetime_s=86400)
    command = [sys.executable, "-m", "holdfast", "serve", "--store", "memory:cost", "--port", str(port)]
    command += ["--no-access-log", "--log-level", "warning"]
    if "rate_limit_per_tenant" in (source / "holdfast" / "cli" / "serve.py").read_text():
        command += ["--rate-limit-per-tenant", "0", "--change-limit-per-tenant", "0"]
    with running(command, {**os.environ, "HOLDFAST_JWT_HS256_KEY": key, "PYTHONPATH": str(source)}) as process:
        wait_for(process, port)
        yield _Service(process, Form(port, token))


KINDS = ("enqueue", "enqueue 100", "look at one", "page of 100", "claim 1", "finish 1", "claim 100", "finish 100")


async def _round(service: _Service) -> dict[str, float]:
    """Seconds of processor time a request, by kind."""
    form = service.form
    connection = await Connection.open(form.port)
    costs: dict[str, float] = {}
    total = 0.0

    async def ask(kind: str, requests: list[bytes], status: int = 200) -> list[Any]:
        nonlocal total
        before = service.cpu()
        answers = [await connection.ask(request) for request in requests]
        spent = service.cpu() - before
        costs[kind] = spent / len(requests)
        total += spent
        if any(answer.status != status for answer in answers):
            raise RuntimeError(f"{kind}: {answers[0]}")
        return [answer.json() for answer in answers]

    def claims(limit: int, count: int) -> list[bytes]:
        return [form.post("/v1/claims", {"queues": ["q"], "limit": limit})] * count

    def finishes(claimed: list[Any]) -> list[bytes]:
        return [form.post("/v1/leases:finish", {"leases": [_finished(job) for job in one["jobs"]]}) for one in claimed]

    made = await ask("enqueue", [form.post("/v1/jobs", JOB)] * SINGLES, 201)
    await ask("enqueue 100", [form.post("/v1/jobs:batch", {"jobs": [JOB] * BATCH})] * BATCHES)
    await ask("look at one", [form.get(f"/v1/queues/q/jobs/{one['id']}") for one in made])
    await ask("page of 100", [form.get(f"/v1/queues/q/jobs?limit={BATCH}&state=ready")] * BATCHES)
    claimed = await ask("claim 1", claims(1, SINGLES))
    await ask("finish 1", finishes(claimed))
    claimed = await ask("claim 100", claims(BATCH, BATCHES))
    finished = await ask("finish 100", finishes(claimed))
    if sum(len(one["items"]) for one in finished) != BATCH * BATCHES:
        raise RuntimeError("jobs are missing")
    connection.close()
    return {**costs, ALL: total / (4 * SINGLES + 4 * BATCHES)}


def _finished(job: dict[str, Any]) -> dict[str, Any]:
    return {
        "queue": job["queue"],
        "id": job["id"],
        "token": job["token"],
        "outcome": "complete",
        "result": {"ok": True},
    }
