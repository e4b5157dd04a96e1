"""For peers that keep no results: a handler sends the moment it began to the benchmark, past the queue.

Datagrams to the port BENCH_STAMPS of this machine. The moment is taken before anything is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Self

PLACE = ("127.0.0.1", int(os.environ.get("BENCH_STAMPS", "0")))
_link = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def send() -> None:
    _link.sendto(str(time.monotonic()).encode(), PLACE)


class Stamps(asyncio.DatagramProtocol):
    """The side that asked: `async with Stamps() as stamps`, then `await stamps.next()`."""

    async def __aenter__(self) -> Self:
        self._arrived: asyncio.Queue[float] = asyncio.Queue()
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=PLACE)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 - the protocol's
        self._arrived.put_nowait(float(data))

    async def next(self) -> float:
        return await asyncio.wait_for(self._arrived.get(), 30)
