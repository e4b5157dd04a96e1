"""The worst bodies of each size: the longest turn of the service's event loop, and the memory it takes.

The service runs in a process of its own (`python -m bench.worst STORE`) whose loop is watched from inside. A turn is
measured by the processor time of the loop's thread, so that other programs of the machine do not count; the time on
the clock is shown beside it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import load
from bench.load import Connection, Form
from holdfast.service.listening import listen
from holdfast.service.server import running
from holdfast.service.settings import ServiceSettings, TokenSettings
from holdfast.service.signing import new_secret, sign

KIB, MIB = 1024, 1024 * 1024
SIZES = {"256 KiB": 256 * KIB, "1 MiB": MIB, "4 MiB": 4 * MIB}
PIECE = 256 * KIB
KEY = "HOLDFAST_JWT_HS256_KEY"
LEASE = b'"lease":0'
"""Where id and token of a lease go."""

Shape = Callable[[int], tuple[str, bytes]]


def measure(console: Console, directory: str) -> dict[str, Any]:
    key = new_secret()
    token = sign(TokenSettings(hs256_key=key), tenant="bench", scopes=("produce", "work"), lifetime_s=86400)
    command = [sys.executable, "-m", "bench.worst", "memory:worst", f"file:{directory}/blobs"]
    server = subprocess.Popen(
        command, env={**os.environ, KEY: key}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        form = Form(int(read_line(server)), token)
        found = {
            f"{name}, {size}": load.run(_send(form, server, shape, SIZES[size]))
            for name, shape in SHAPES.items()
            for size in SIZES
        }
    finally:
        server.communicate()
    table = Table(title="The worst bodies", title_justify="left")
    for column in ("", "status", "longest turn, ms", "by the clock, ms", "MiB more", "answered after, ms"):
        table.add_column(column, justify="right" if column else "left")
    for name, one in found.items():
        figures = (f"{one[key]:.1f}" for key in ("turn ms", "clock ms", "MiB", "ms"))
        table.add_row(name, str(one["status"]), *figures)
    console.print(table)
    return found


async def _send(form: Form, server: subprocess.Popen[str], shape: Shape, size: int) -> dict[str, Any]:
    path, body = shape(size)
    connection = await Connection.open(form.port)
    if LEASE in body:
        await connection.ask(form.post("/v1/jobs", {"queue": "q"}))
        (job,) = (await connection.ask(form.post("/v1/claims", {"queues": ["q"]}))).json()["jobs"]
        body = body.replace(LEASE, b'"id":"%s","token":"%s"' % (job["id"].encode(), job["token"].encode()))
    request = form.post(path, body)
    server.stdin.write("begin\n")
    read_line(server)
    began = time.perf_counter()
    answer = await connection.ask(request)
    took_ms = (time.perf_counter() - began) * 1000
    connection.close()
    server.stdin.write("end\n")
    return {"status": answer.status, "bytes": len(body), "ms": took_ms, **json.loads(read_line(server))}


def read_line(server: subprocess.Popen[str]) -> str:
    line = server.stdout.readline()
    if not line:
        raise RuntimeError("the service has ended")
    return line


# Bodies ------------------------------------------------------------------------------------------------------------


def _jobs(part: Callable[[int], bytes]) -> Shape:
    """A batch of jobs whose payloads are as large as they may be."""

    def body(size: int) -> tuple[str, bytes]:
        most = PIECE - 16
        payloads = [part(min(most, size - 64 - at)) for at in range(0, size - 64 - KIB, most + 16)]
        return "/v1/jobs:batch", b'{"jobs":[%s]}' % b",".join(b'{"payload":%s}' % one for one in payloads)

    return body


def _result(part: Callable[[int], bytes], codec: bytes = b"json") -> Shape:
    """The result of a lease: of one that does not exist it would be refused unread."""

    def body(size: int) -> tuple[str, bytes]:
        lease = b'{"queue":"q",%s,"outcome":"complete","codec":"%s","result":%s}'
        return "/v1/leases:finish", b'{"leases":[%s]}' % (lease % (LEASE, codec, part(size - 256)))

    return body


def _list(leaf: bytes, depth: int = 1) -> Callable[[int], bytes]:
    return lambda size: b"[" * depth + leaf * ((size - 2 * depth - 8) // len(leaf)) + b"0" + b"]" * depth


def _packed(size: int) -> bytes:
    count = size * 3 // 4 - 16
    return b'"%s"' % base64.b64encode(b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count)


def _keys(size: int) -> bytes:
    return b"{%s}" % b",".join(b'"%06x":0' % number for number in range(size // 11 - 2))


def _batch(inner: Callable[[int], bytes]) -> Shape:
    return lambda size: ("/v1/jobs:batch", b'{"jobs":%s}' % inner(size - 16))


SHAPES: dict[str, Shape] = {
    "99 lists and leaves": _jobs(_list(b"1,", 99)),
    "empty lists": _jobs(_list(b"[],")),
    "strings": _jobs(_list(b'"",')),
    "objects": _jobs(_list(b'{"":0},')),
    "exponents": _jobs(_list(b"1e0,")),
    "escapes": _jobs(lambda size: b'"%s"' % (b"\\\\" * (size // 2 - 2))),
    "keys": _jobs(_keys),
    "result, 99 lists and leaves": _result(_list(b"1,", 99)),
    "result, empty lists": _result(_list(b"[],")),
    "result, keys": _result(_keys),
    "result, escapes": _result(lambda size: b'"%s"' % (b"\\\\" * (size // 2 - 2))),
    "result, msgpack": _result(_packed, b"msgpack"),
    "items without end": _batch(_list(b"[],")),
    "a thousand small jobs": _batch(
        lambda size: b"[%s]" % b",".join([b'{"payload":"%s"}' % (b"x" * (size // 1000 - 20))] * 999)
    ),
    "steps of a flow": lambda size: (
        "/v1/flows",
        b'{"name":"a","steps":%s}' % _list(b'{"name":""},')(min(size, MIB) - 64),
    ),
}


# The service -------------------------------------------------------------------------------------------------------


async def _serve(store: str, blobs: str, pause_s: str = "0") -> None:
    """With a pause the loop is looked at now and then, and its delay is measured; without one, each turn."""
    tokens = TokenSettings(hs256_key=os.environ[KEY])
    sock = listen("127.0.0.1", 0, 30)
    watch = _Watch()
    async with running(
        ServiceSettings(store=store, tokens=tokens, access_log=False, upkeep=False, blobs=blobs or None), sock
    ):
        watching = asyncio.create_task(watch.run(float(pause_s)))
        sys.stdout.write(f"{sock.getsockname()[1]}\n")
        sys.stdout.flush()
        while line := await asyncio.to_thread(sys.stdin.readline):
            if line.strip() == "begin":
                watch.begin()
            sys.stdout.write(json.dumps(watch.end()) + "\n")
            sys.stdout.flush()
        watching.cancel()


class _Watch:
    """Measures each turn of the event loop it runs in."""

    def begin(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # The most memory, from here on.
        self._before = _status("VmRSS")
        self._cpu_s = self._clock_s = 0.0

    def end(self) -> dict[str, float]:
        more = (_status("VmHWM") - self._before) / KIB
        return {"turn ms": self._cpu_s * 1000, "clock ms": self._clock_s * 1000, "MiB": more}

    async def run(self, pause_s: float) -> None:
        self.begin()
        while True:
            cpu, clock = time.thread_time(), time.perf_counter()
            await asyncio.sleep(pause_s)
            self._cpu_s = max(self._cpu_s, time.thread_time() - cpu)
            self._clock_s = max(self._clock_s, time.perf_counter() - clock - pause_s)


def _status(name: str) -> int:
    """KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(*sys.argv[1:]))
