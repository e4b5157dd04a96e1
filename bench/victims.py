"""One tenant attacks, another works: how long the other waits, alone and meanwhile, and what the process takes.

The service runs in a process of its own whose loop is watched (`bench.worst`). The attacker is another one (`python -m
bench.victims KIND PORT SECONDS`, its token in TOKEN), at nice 19, from an address of its own and at a fixed rate: both
share the processors with the service, so that its own work counts as little as can be. The victim enqueues, looks,
claims and finishes, one job after the other, and counts what it gets back.

Shown beside each ratio, for it may be the machine's and not the service's: the interval of the ratio, how long the
service's threads waited for a processor, how much of one the attacker took, and how long the disk took to flush 4 KiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import load
from bench.load import Connection, Form, Seen
from bench.measure import percentile
from bench.served import SCOPES
from bench.worst import KEY, read_line
from holdfast.service.settings import TokenSettings
from holdfast.service.signing import new_secret, sign

PACE_S = 0.02
ADDRESS = "127.0.0.2"
ROUNDS = 2
"""Alone and attacked, in turns."""
CONNECTIONS = 8
BLOCK = 40
"""Requests that follow each other are alike: the interval is of samples of blocks of them."""
SAMPLES = 1000
FLUSH_EVERY_S = 0.2
SETTLE_S = 30
IDLE = 0.08
"""Processor time of a service without requests, of one processor."""


def measure(
    console: Console, stores: dict[str, str], seconds: float, rounds: int, kinds: Collection[str]
) -> dict[str, Any]:
    """Each attack by itself, on each store."""
    found = {}
    table = Table(title=f"A victim's requests, {rounds} rounds of {seconds:g} s each", title_justify="left")
    for column in (
        "", "attacks", "alone p99, ms", "attacked p99, ms", "ratio (95 %)", "loop's delay, ms", "lost",
        "waited for a processor, ms/s", "attacker's processor", "flush p99, ms",
    ):  # fmt: skip
        table.add_column(column, justify="right" if column else "left")
    for store, url in stores.items():
        for kind in kinds:
            disk = url.removeprefix("file:") if store == "file" else ""
            with _service(url) as service:
                one = found[f"{store}, {kind}"] = load.run(_compare(service, kind, seconds, rounds, disk))
            flushes = one["flush p99"]
            table.add_row(
                f"{store}, {kind}", " ".join(f"{code}:{count}" for code, count in one["answers"].items()),
                f"{one['alone p99']:.1f}", f"{one['attacked p99']:.1f}",
                "{:.2f} ({:.2f} to {:.2f})".format(one["ratio"], *one["interval"]),
                f"{one['clock ms']:.1f}", str(one["lost"]), "{:.0f}, {:.0f}".format(*one["waited"]),
                f"{one['attacker']:.0%}", "{:.1f}, {:.1f}".format(*flushes) if flushes else "",
            )  # fmt: skip
    console.print(table)
    return found


def flood(console: Console, stores: dict[str, str], seconds: float, size: Callable[[str], float]) -> dict[str, Any]:
    """Every attack at once."""
    found = {}
    for store, url in stores.items():
        before = size(store)
        with _service(url) as service:
            one = found[store] = load.run(_flood(service, seconds))
        one["store MiB"] = size(store) - before
        console.print(
            f"{store}: victim alone p99 {one['alone p99']:.1f} ms; in {seconds:g} s {one['requests']} requests, "
            f"p50 {one['p50']:.1f}, p99 {one['p99']:.1f}, most {one['most']:.1f} ms, {one['lost']} lost; process "
            f"{one['MiB']:.0f} MiB at most; store {one['store MiB']:+.1f} MiB; loop's delay {one['clock ms']:.1f} ms; "
            f"attacker {one['answers']}",
            highlight=False,
        )
    return found


class _Service:
    def __init__(self, process: subprocess.Popen[str], key: str) -> None:
        self._process = process
        self.port = int(read_line(process))
        self._settings = TokenSettings(hs256_key=key)

    def token(self, tenant: str) -> str:
        return sign(self._settings, tenant=tenant, scopes=SCOPES, lifetime_s=86400)

    def ask(self, command: str) -> dict[str, float]:
        self._process.stdin.write(f"{command}\n")
        return json.loads(read_line(self._process))

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def settle(self) -> None:
        """Wait until nothing is left of an attack: its requests are worked on after it has gone."""
        end, before = time.monotonic() + SETTLE_S, -1.0
        while before < (now := self._cpu_s()) - IDLE * 0.5 and time.monotonic() < end:
            before = now
            await asyncio.sleep(0.5)

    def waited(self) -> float:
        """Seconds that its threads were ready to run and had no processor."""
        threads = Path(f"/proc/{self._process.pid}/task").iterdir()
        return sum(int((thread / "schedstat").read_text().split()[1]) for thread in threads) / 1e9

    def most(self) -> float:
        """MiB."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0


@contextlib.contextmanager
def _service(url: str) -> Iterator[_Service]:
    key = new_secret()
    command = [sys.executable, "-m", "bench.worst", url, "", "0.005"]
    process = subprocess.Popen(
        command, env={**os.environ, KEY: key}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        yield _Service(process, key)
    finally:
        process.communicate()


class _Phase:
    """Alone, or attacked."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.waited_s = self.took_s = 0.0
        self.flushes: list[float] = []
        self.lost = 0

    async def run(self, service: _Service, victim: Form, seconds: float, disk: str) -> None:
        waited, began = service.waited(), time.monotonic()
        async with _flushing(disk, self.flushes):
            seen, missing = await _work(victim, seconds)
        self.ms += seen
        self.lost += missing
        self.took_s += time.monotonic() - began
        self.waited_s += service.waited() - waited

    @property
    def p99(self) -> float:
        return percentile(self.ms, 99)


async def _compare(service: _Service, kind: str, seconds: float, rounds: int, disk: str) -> dict[str, Any]:
    alone, attacked, answers, cpu_s = _Phase(), _Phase(), Counter(), 0.0
    victim = Form(service.port, service.token("victim"))
    await _work(victim, 1)
    service.ask("begin")
    for _ in range(rounds):
        await service.settle()
        await alone.run(service, victim, seconds, disk)
        async with _attacked(service, [kind], seconds + 1) as found:
            await attacked.run(service, victim, seconds, disk)
        answers += found["answers"]
        cpu_s += found["cpu_s"]
    return {
        "alone p99": alone.p99, "attacked p99": attacked.p99, "ratio": attacked.p99 / alone.p99,
        "interval": _interval(alone.ms, attacked.ms), "answers": dict(answers), "lost": alone.lost + attacked.lost,
        "waited": [phase.waited_s * 1000 / phase.took_s for phase in (alone, attacked)],
        "attacker": cpu_s / rounds / (seconds + 1),
        "flush p99": [percentile(phase.flushes, 99) for phase in (alone, attacked) if disk],
        **service.ask("end"),
    }  # fmt: skip


def _interval(alone: Sequence[float], attacked: Sequence[float]) -> list[float]:
    """Of 95 %, for the ratio of the p99."""
    chance = random.Random(0)

    def sample(values: Sequence[float]) -> float:
        blocks = [values[at : at + BLOCK] for at in range(0, len(values), BLOCK)]
        return percentile([ms for block in chance.choices(blocks, k=len(blocks)) for ms in block], 99)

    ratios = [sample(attacked) / sample(alone) for _ in range(SAMPLES)]
    return [percentile(ratios, at) for at in (2.5, 97.5)]


@contextlib.asynccontextmanager
async def _flushing(directory: str, ms: list[float]) -> AsyncIterator[None]:
    """Flush 4 KiB now and then, in a file of its own beside the store."""

    def flush(path: Path) -> None:
        with path.open("r+b") as file:
            file.write(os.urandom(4096))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            ms.append((time.perf_counter() - began) * 1000)

    async def repeat() -> None:
        path = Path(f"{directory}.flushed")
        await asyncio.to_thread(path.touch)
        while True:
            await asyncio.to_thread(flush, path)
            await asyncio.sleep(FLUSH_EVERY_S)

    task = asyncio.create_task(repeat()) if directory else None
    yield
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


async def _flood(service: _Service, seconds: float) -> dict[str, Any]:
    victim = Form(service.port, service.token("victim"))
    await _work(victim, 1)
    alone, _ = await _work(victim, min(10.0, seconds))
    service.ask("begin")
    async with _attacked(service, list(ATTACKS), seconds + 1) as found:
        seen, lost = await _work(victim, seconds)
    return {
        "alone p99": percentile(alone, 99), "requests": len(seen), "p50": percentile(seen, 50),
        "p99": percentile(seen, 99), "most": max(seen), "lost": lost, "answers": found["answers"],
        "MiB": service.most(), **service.ask("end"),
    }  # fmt: skip


async def _work(form: Form, seconds: float) -> tuple[list[float], int]:
    """How long each request of the victim took, and how many of its jobs did not come back."""
    seen, made, done = Seen(), 0, 0
    end = time.monotonic() + seconds
    connection = await Connection.open(form.port)
    claim = form.post("/v1/claims", {"queues": ["own"], "limit": 10})
    while time.monotonic() < end:
        job = await seen.ask(connection, "ask", form.post("/v1/jobs", {"queue": "own", "payload": {"n": made}}))
        made += 1
        made -= job.status != 201  # Refused: it was not acknowledged.
        await seen.ask(connection, "ask", form.get(f"/v1/queues/own/jobs/{job.json().get('id', 'none')}"), 200, 404)
        done += await _finish(seen, connection, form, await seen.ask(connection, "ask", claim))
        await asyncio.sleep(PACE_S)
    while made > done and (more := await _finish(seen, connection, form, await connection.ask(claim))):
        done += more
    connection.close()
    for error in sorted(set(seen.errors))[:3]:
        sys.stderr.write(f"the victim was refused {len(seen.errors)} times: {error}\n")
    return seen.ms["ask"], made - done


async def _finish(seen: Seen, connection: Connection, form: Form, claimed: load.Answer) -> int:
    jobs = claimed.json().get("jobs", ())
    leases = [{"queue": "own", "id": one["id"], "token": one["token"], "outcome": "complete"} for one in jobs]
    answer = await seen.ask(connection, "ask", form.post("/v1/leases:finish", {"leases": leases}))
    return sum(item.get("status") == "completed" for item in answer.json().get("items", ()))


@contextlib.asynccontextmanager
async def _attacked(service: _Service, kinds: list[str], seconds: float) -> AsyncIterator[dict[str, Any]]:
    """Run the block while the attacker attacks. Then there is what it was answered, and its processor time."""
    command = ["nice", "-n", "19", sys.executable, "-m", "bench.victims", ",".join(kinds), str(service.port)]
    environment = {**os.environ, "TOKEN": service.token("attacker")}
    process = await asyncio.create_subprocess_exec(*command, str(seconds), env=environment, stdout=subprocess.PIPE)
    await process.stdout.readline()  # It has started.
    found: dict[str, Any] = {}
    yield found
    out, _ = await process.communicate()
    found |= json.loads(out)


# The attacker ------------------------------------------------------------------------------------------------------

PIECE = 256 * 1024 - 16
LISTS = b"[%s0]" % (b"[]," * (PIECE // 3 - 2))
LARGE = b'{"jobs":[%s]}' % b",".join([b'{"queue":"large","payload":%s}' % LISTS] * 15)
SMALL = json.dumps({"jobs": [{"queue": "flood", "payload": "x" * 100}] * 100}).encode()
GUESSES = json.dumps(
    {"leases": [{"queue": "own", "id": "x", "token": f"1.{n}.{'0' * 32}", "outcome": "release"} for n in range(1000)]}
).encode()
Attack = Callable[["_Attacker", int], Awaitable[None]]


class _Attacker:
    def __init__(self, port: int) -> None:
        self.port = port
        self.form = Form(port, os.environ["TOKEN"])
        self.answers: Counter[str] = Counter()
        self._open: list[asyncio.StreamWriter] = []

    async def send(self, data: bytes, *, read: bool = True) -> None:
        """On a connection of its own, which stays open where nothing is read."""
        try:
            await self._send(data, read=read)
        except OSError:
            self.answers["closed"] += 1

    async def _send(self, data: bytes, *, read: bool) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(ADDRESS, 0))
        writer.write(data)
        if not read:
            self._open.append(writer)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    self._count(await reader.read(16))
                    return
            self.answers["held"] += 1
            return
        self._count(await reader.read(16))
        writer.close()

    def _count(self, head: bytes) -> None:
        self.answers[head.split(b" ")[1].decode() if b" " in head else "closed"] += 1


def _post(path: str, body: bytes) -> Attack:
    return lambda attacker, _: attacker.send(attacker.form.post(path, body))


ATTACKS: dict[str, tuple[float, Attack]] = {
    "large bodies": (1, _post("/v1/jobs:batch", LARGE)),
    "bodies that do not end": (
        20, lambda a, _: a.send(a.form.post("/v1/jobs:batch", b" " * 4_000_000)[:-3_999_000], read=False)
    ),
    "small jobs": (10, _post("/v1/jobs:batch", SMALL)),
    "queue names": (50, lambda a, n: a.send(a.form.post("/v1/jobs", {"queue": f"q{n}.{os.getpid()}"}))),
    "lists of queues": (20, lambda a, _: a.send(a.form.get("/v1/queues?limit=1000"))),
    "pages of large jobs": (2, lambda a, _: a.send(a.form.get("/v1/queues/large/jobs?limit=1000"))),
    "guesses": (2, _post("/v1/leases:finish", GUESSES)),
    "event streams": (20, lambda a, _: a.send(a.form.get("/v1/events"), read=False)),
    "waiting claims": (
        20, lambda a, _: a.send(a.form.post("/v1/claims", {"queues": ["none"], "wait_s": 60}), read=False)
    ),
    "sockets": (50, lambda a, _: a.send(b"", read=False)),
    "bad tokens": (50, lambda a, n: a.send(Form(a.port, f"{n}.b.c").get("/v1/session"))),
    "schedules": (
        20,
        lambda a, n: a.send(
            a.form.post(f"/v1/schedules/s{n}.{os.getpid()}", {"every_s": 60}).replace(b"POST", b"PUT", 1)
        ),
    ),
}  # fmt: skip
"""How often a second, and what."""


async def _attack(kinds: list[str], port: int, seconds: float) -> None:
    attacker, cpu_s = _Attacker(port), time.process_time()
    end = time.monotonic() + seconds

    async def repeat(kind: str) -> None:
        rate, attack = ATTACKS[kind]
        sent, started = 0, time.monotonic()
        tasks: set[asyncio.Task[None]] = set()
        while (now := time.monotonic()) < end:
            if len(tasks) < CONNECTIONS and sent < (now - started) * rate:
                task = asyncio.ensure_future(attack(attacker, sent))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                sent += 1
            await asyncio.sleep(1 / rate / 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    await asyncio.gather(*map(repeat, kinds))
    sys.stdout.write(json.dumps({"answers": attacker.answers, "cpu_s": time.process_time() - cpu_s}))


if __name__ == "__main__":
    sys.stdout.write("started\n")
    sys.stdout.flush()
    asyncio.run(_attack(sys.argv[1].split(","), int(sys.argv[2]), float(sys.argv[3])))
