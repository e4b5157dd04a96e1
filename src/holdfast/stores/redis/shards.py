"""Runs scripts on shards: finds the shard of a call, and splits batches so that no script runs long.

A tenant is in one shard. A batch for several tenants is divided between their shards, which run side by side. Within a
shard, a batch is cut into pieces that run one after another: order holds, and the server can serve other calls in
between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.core import failpoint
from holdfast.core.errors import StoreError, StoreMismatch, StoreUnavailable
from holdfast.stores.redis.client import RedisClient
from holdfast.stores.redis.keys import shard_key, shard_of
from holdfast.stores.redis.layout import FORMAT, NONE
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.scripts import SCRIPTS

I = TypeVar("I")  # noqa: E741 - an item

MAX_BATCH = 500
"""The most items of one script call."""
MAX_BATCH_BYTES = 1024 * 1024
"""The approximate limit of bytes in one script call."""
CLUSTER_SHARDS = 16
UNREACHABLE_S = 5.0
"""How long a shard that did not answer is left out, if other shards suffice."""
_WAITED_FOR = frozenset({"enqueue", "finish"})
"""Scripts whose notifications wake a waiter: a worker that waits for a job, a caller that waits for a result."""


class Shards:
    """The shards of one store."""

    def __init__(self, client: RedisClient, prefix: str, settings: bytes) -> None:
        self.client = client
        self.prefix = prefix
        self.count = 0
        self._settings = settings
        self._keys: list[str] = []
        self._unreachable_until: dict[int, float] = {}

    async def open(self, wanted: int | None, *, frozen: bool) -> None:
        """Read the layout of the store, or lay out a new one. Raises StoreMismatch if it is not the wanted one."""
        first = shard_key(self.prefix, 0)
        default = wanted or (CLUSTER_SHARDS if self.client.is_cluster else 1)
        format_, count, clock = await self._lay_out(first, default, 0 if frozen else NONE)
        if format_ != FORMAT:
            reason = f"{self.client.shown} has jobs of format {format_}, this version reads {FORMAT}"
            cure = "finish them with the version that made them, or choose another prefix with ?prefix=NAME"
            raise StoreMismatch(f"{reason}; {cure}")
        if wanted is not None and count != wanted:
            have = f"{count} shard{'s' * (count > 1)}"
            cure = "leave `shards` out of the URL, or use another `prefix`"
            raise StoreMismatch(f"{self.prefix!r} at {self.client.shown} is laid out in {have}, not {wanted}; {cure}")
        if (clock != NONE) != frozen:
            made = "with" if clock != NONE else "without"
            raise StoreMismatch(f"{self.prefix!r} at {self.client.shown} was made {made} test_clock=frozen")
        self.set_count(count)
        await asyncio.gather(*(self._lay_out(key, count, clock) for key in self._keys[1:]))

    def set_count(self, count: int) -> None:
        """Set how many shards there are, if that is known."""
        self._keys = [shard_key(self.prefix, number) for number in range(count)]
        self.count = count

    async def _lay_out(self, key: str, count: int, clock: int) -> list[int]:
        request = encode((FORMAT, count, clock))
        return await self.client.run(SCRIPTS["layout"], key, (self._settings, request), repeat=True)

    def of(self, tenant: str) -> int:
        """The shard of a tenant."""
        return shard_of(tenant, self.count) if self.count > 1 else 0

    def key(self, shard: int) -> str:
        """The key of a shard's counters."""
        return self._keys[shard]

    def lane_key(self, letter: str, tenant: str, lane: str) -> str:
        """A key of a lane."""
        return f"{self.key(self.of(tenant))[:-1]}{letter}:{lane}"

    async def run(self, name: str, shard: int, request: bytes, *more: bytes, repeat: bool = True) -> Any:
        """Run a script on one shard."""
        args = (self._settings, request, *more)
        first = name in _WAITED_FOR
        answer = await self.client.run(SCRIPTS[name], self._keys[shard], args, repeat=repeat, subscribers_first=first)
        failpoint.hit("redis.after_script")
        return answer

    async def run_on_all(self, name: str, request: bytes, *, repeat: bool = True) -> list[Any]:
        """Run a script on every shard, side by side."""
        if self.count == 1:
            return [await self.run(name, 0, request, repeat=repeat)]
        return await _all([self.run(name, shard, request, repeat=repeat) for shard in range(self.count)])

    async def run_on_reachable(self, name: str, request: bytes, timeout_s: float) -> dict[int, Any]:
        """Run a script on every shard, and return the answers of those that answer in time. Raises if none does.

        A shard that does not answer is left out for a while, so that it does not delay every call. If no shard has
        answered in time, the first answer is waited for: then this machine is slow, not a shard.
        """
        clock = asyncio.get_running_loop().time
        reachable = [n for n in range(self.count) if self._unreachable_until.get(n, 0.0) <= clock()]
        shards = reachable or list(range(self.count))
        tasks = {shard: asyncio.ensure_future(self.run(name, shard, request)) for shard in shards}
        try:
            await asyncio.wait(tasks.values(), timeout=timeout_s)
            while not any(map(_has_answered, tasks.values())):
                if not (left := [task for task in tasks.values() if not task.done()]):
                    break
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks.values():
                task.cancel()
            answers = await asyncio.gather(*tasks.values(), return_exceptions=True)
        good: dict[int, Any] = {}
        failures: list[BaseException] = []
        for shard, answer in zip(shards, answers, strict=True):
            if not isinstance(answer, BaseException):
                good[shard] = answer
                continue
            if isinstance(answer, asyncio.CancelledError):
                answer = StoreUnavailable(f"{self.client.shown}: shard {shard} gave no answer in {timeout_s:g} s")  # noqa: PLW2901
            if not isinstance(answer, StoreError):
                raise answer
            self._unreachable_until[shard] = clock() + UNREACHABLE_S
            failures.append(answer)
        if failures and not good:
            raise failures[0]
        return good

    async def run_batch(
        self,
        name: str,
        items: Sequence[I],
        tenant_of: Callable[[I], str],
        pack: Callable[[Sequence[I]], tuple[bytes, ...]],
        size_of: Callable[[I], int] | None = None,
        *,
        repeat: bool,
    ) -> list[Any]:
        """Run a script over a batch. The answers come in the order of the items."""
        if self.count == 1 or len(items) == 1:
            shard = self.of(tenant_of(items[0])) if items else 0
            return await self._run_pieces(name, shard, items, pack, size_of, repeat=repeat)
        parts: dict[int, list[int]] = {}
        for position, item in enumerate(items):
            parts.setdefault(self.of(tenant_of(item)), []).append(position)
        work = [
            self._run_pieces(name, shard, [items[n] for n in positions], pack, size_of, repeat=repeat)
            for shard, positions in parts.items()
        ]
        answers: list[Any] = [None] * len(items)
        for positions, part in zip(parts.values(), await _all(work), strict=True):
            for position, answer in zip(positions, part, strict=True):
                answers[position] = answer
        return answers

    async def _run_pieces(
        self,
        name: str,
        shard: int,
        items: Sequence[I],
        pack: Callable[[Sequence[I]], tuple[bytes, ...]],
        size_of: Callable[[I], int] | None,
        *,
        repeat: bool,
    ) -> list[Any]:
        pieces = _pieces(items, size_of)
        if len(pieces) == 1:
            return await self.run(name, shard, *pack(pieces[0]), repeat=repeat)
        answers: list[Any] = []
        running: asyncio.Task[Any] | None = None
        try:
            for piece in pieces:
                # The next piece is packed while one runs, and sent when that is answered: order holds.
                packed = pack(piece)
                if running is not None:
                    answers += await running
                running = asyncio.create_task(self.run(name, shard, *packed, repeat=repeat))
                await asyncio.sleep(0)
            if running is not None:
                answers += await running
        finally:
            if running is not None and not running.done():
                running.cancel()
        return answers


def _pieces(items: Sequence[I], size_of: Callable[[I], int] | None) -> list[Sequence[I]]:
    if size_of is None or sum(map(size_of, items)) <= MAX_BATCH_BYTES:
        return [items[first : first + MAX_BATCH] for first in range(0, len(items), MAX_BATCH)]
    pieces: list[Sequence[I]] = []
    first = size = 0
    for n, item in enumerate(items):
        size += size_of(item)
        if n > first and (n - first >= MAX_BATCH or size > MAX_BATCH_BYTES):
            pieces.append(items[first:n])
            first, size = n, size_of(item)
    pieces.append(items[first:])
    return pieces


async def _all(work: Sequence[Any]) -> list[Any]:
    """The answers of all. A failure is raised when all have ended, so that none runs on unobserved."""
    answers = await asyncio.gather(*work, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def _has_answered(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
