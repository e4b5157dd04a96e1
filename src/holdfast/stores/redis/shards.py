"""Scripts on shards: which shard a call goes to, and how a batch is split so that no script runs long.

A tenant lives in one shard. A batch that names several goes to each with its own part, side by side; within a shard
it is cut into pieces, one after another, so that order holds and the server is free for others in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.core import failpoint
from holdfast.core.errors import StoreError, StoreMismatch, StoreUnavailable
from holdfast.stores.redis.client import RedisClient
from holdfast.stores.redis.keys import shard_key, shard_of
from holdfast.stores.redis.records import encode
from holdfast.stores.redis.scripts import SCRIPTS

I = TypeVar("I")  # noqa: E741 - an item

FORMAT = 5
BATCH = 500
"""How many items one script takes ..."""
BATCH_BYTES = 1024 * 1024
"""... and about how many bytes."""
CLUSTER_SHARDS = 16
SICK_S = 5.0
"""How long a shard that did not answer is left out where others will do."""
_AWAITED = frozenset({"enqueue", "finish"})
"""What others wait for: a worker for a job, a caller for a result."""


class Shards:
    """The shards of one store, over one client."""

    def __init__(self, client: RedisClient, prefix: str, settings: bytes) -> None:
        self.client = client
        self.prefix = prefix
        self.count = 0
        self._settings = settings
        self._keys: list[str] = []
        self._sick: dict[int, float] = {}

    async def lay_out(self, wanted: int | None, *, frozen: bool) -> None:
        """Find how the store is laid out, or lay it out. Raises StoreMismatch if it is so otherwise."""
        first = shard_key(self.prefix, 0)
        stands = 0 if frozen else -1
        default = wanted or (CLUSTER_SHARDS if self.client.is_cluster else 1)
        format_, count, frozen_at = await self._lay_out(first, default, stands)
        if format_ != FORMAT:
            reason = f"{self.client.shown} has jobs of format {format_}, this version reads {FORMAT}"
            cure = "finish them with the version that made them, or name another prefix with ?prefix=NAME"
            raise StoreMismatch(f"{reason}; {cure}")
        if wanted is not None and count != wanted:
            have = f"{count} shard{'s' * (count > 1)}"
            cure = "leave `shards` out of the URL, or use another `prefix`"
            raise StoreMismatch(f"{self.prefix!r} at {self.client.shown} is laid out in {have}, not {wanted}; {cure}")
        if (frozen_at >= 0) != frozen:
            made = "with" if frozen_at >= 0 else "without"
            raise StoreMismatch(f"{self.prefix!r} at {self.client.shown} was made {made} test_clock=frozen")
        self.settle(count)
        await asyncio.gather(*(self._lay_out(key, count, frozen_at) for key in self._keys[1:]))

    def settle(self, count: int) -> None:
        """Take it as known how many shards there are."""
        self._keys = [shard_key(self.prefix, number) for number in range(count)]
        self.count = count

    async def _lay_out(self, key: str, count: int, frozen_at: int) -> list[int]:
        request = encode((FORMAT, count, frozen_at))
        return await self.client.run(SCRIPTS["layout"], key, (self._settings, request), repeat=True)

    def of(self, tenant: str) -> int:
        """Where a tenant lives."""
        return shard_of(tenant, self.count) if self.count > 1 else 0

    def key(self, shard: int) -> str:
        """The key that stands for a shard."""
        return self._keys[shard]

    async def run(self, name: str, shard: int, request: bytes, *more: bytes, repeat: bool = True) -> Any:
        """Run a script on one shard."""
        args = (self._settings, request, *more)
        awaited = name in _AWAITED
        answer = await self.client.run(SCRIPTS[name], self._keys[shard], args, repeat=repeat, subscribers_first=awaited)
        failpoint.hit("redis.after_script")
        return answer

    async def run_everywhere(self, name: str, request: bytes, *, repeat: bool = True) -> list[Any]:
        """Run a script on each shard, side by side."""
        if self.count == 1:
            return [await self.run(name, 0, request, repeat=repeat)]
        return await _all([self.run(name, shard, request, repeat=repeat) for shard in range(self.count)])

    async def run_where_possible(self, name: str, request: bytes, timeout_s: float) -> dict[int, Any]:
        """The same, with the answers of those that gave one in time. Raises what went wrong if none did.

        A shard that did not is left out for a while, so that one that hangs does not hold up every call. Where none
        has answered yet, the first answer is waited for: it is the machine that is slow, not a shard.
        """
        clock = asyncio.get_running_loop().time
        shards = [n for n in range(self.count) if self._sick.get(n, 0.0) <= clock()] or list(range(self.count))
        asked = {shard: asyncio.ensure_future(self.run(name, shard, request)) for shard in shards}
        try:
            await asyncio.wait(asked.values(), timeout=timeout_s)
            while not any(map(_has_answered, asked.values())):
                if not (left := [task for task in asked.values() if not task.done()]):
                    break
                await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in asked.values():
                task.cancel()
            answers = await asyncio.gather(*asked.values(), return_exceptions=True)
        good: dict[int, Any] = {}
        refused: list[BaseException] = []
        for shard, answer in zip(shards, answers, strict=True):
            if not isinstance(answer, BaseException):
                good[shard] = answer
                continue
            if isinstance(answer, asyncio.CancelledError):
                answer = StoreUnavailable(f"{self.client.shown}: shard {shard} gave no answer in {timeout_s:g} s")  # noqa: PLW2901
            if not isinstance(answer, StoreError):
                raise answer
            self._sick[shard] = clock() + SICK_S
            refused.append(answer)
        if refused and not good:
            raise refused[0]
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
        """Run a script over a batch; the answers in the order of the items."""
        if self.count == 1 or len(items) == 1:
            shard = self.of(tenant_of(items[0])) if items else 0
            return await self._in_pieces(name, shard, items, pack, size_of, repeat=repeat)
        parts: dict[int, list[int]] = {}
        for position, item in enumerate(items):
            parts.setdefault(self.of(tenant_of(item)), []).append(position)
        work = [
            self._in_pieces(name, shard, [items[n] for n in positions], pack, size_of, repeat=repeat)
            for shard, positions in parts.items()
        ]
        answers: list[Any] = [None] * len(items)
        for positions, part in zip(parts.values(), await _all(work), strict=True):
            for position, answer in zip(positions, part, strict=True):
                answers[position] = answer
        return answers

    async def _in_pieces(
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
                # While one runs the next is packed; it leaves when that is answered, so order holds.
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
    if size_of is None or sum(map(size_of, items)) <= BATCH_BYTES:
        return [items[first : first + BATCH] for first in range(0, len(items), BATCH)]
    pieces: list[Sequence[I]] = []
    first = size = 0
    for n, item in enumerate(items):
        size += size_of(item)
        if n > first and (n - first >= BATCH or size > BATCH_BYTES):
            pieces.append(items[first:n])
            first, size = n, size_of(item)
    pieces.append(items[first:])
    return pieces


async def _all(work: Sequence[Any]) -> list[Any]:
    """The answers of all. One failure is everyone's, once all have ended: none goes on unseen."""
    answers = await asyncio.gather(*work, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


def _has_answered(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
