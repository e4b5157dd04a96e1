"""The same random transactions on two databases, compared operation by operation."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from holdfast.stores.foundationdb.database import Database, FdbError, FdbTransaction
from tests.unit.testing.fdb.model import Step, a_step, do

SLOTS = 3
"""How many transactions are under way at a time."""

LOG = b"l" + bytes(10) + (1).to_bytes(4, "little")


def a_mixed_step(rng: random.Random) -> Step:
    """A step of a transaction: reads and writes, and what may end it."""
    key, other = (b"k%02d" % rng.randrange(12) for _ in range(2))
    begin, end = min(key, other), max(key, other)
    drawn = rng.random()
    if drawn < 0.7:
        return a_step(rng)
    rare: list[Step] = [
        ("set_versionstamped_key", LOG, key),
        # Under keys of their own: what an atomic operation makes of a version differs.
        ("set_versionstamped_value", b"s" + key[:2], bytes(14)),
        ("get", b"s" + key[:2]),
        ("get_all", (key, other, b"s" + key[:2], b"none")),
        ("get_ranges", ((begin, end), (b"s", b"t"), (b"n", b"o")), rng.choice((0, 1, 2))),
        ("clear", b"s" + key[:2]),
        ("get_range", b"k06", b"t", rng.choice((0, 1, 4)), rng.random() < 0.5),
        ("get_range", b"l", b"m", rng.choice((0, 1, 2)), rng.random() < 0.5),
        ("add_read_conflict_key", key),
        ("add_read_conflict_range", begin, end),
        ("add_write_conflict_key", key),
        ("add_write_conflict_range", begin, end),
        ("next_write_no_write_conflict_range",),
        ("watch", key),
        ("commit",),
        ("commit",),
        ("commit",),
        ("commit",),
        ("commit",),
    ]
    ends: list[Step] = [
        ("reset",),
        ("cancel",),
        ("on_error", 1020),
        ("on_error", 2101),
        ("set", key * 4000, b""),
        ("set", key, bytes(100_001)),
        ("set", b"\xff/x", b""),
        ("clear_range", b"z", b"a"),
        ("set_versionstamped_value", key, b"\x01\x00\x00\x00"),
        ("get", b"\xff"),
        ("get_range", b"", b"\xff\xff", 0, False),
    ]
    return rng.choice(rare if drawn < 0.97 else ends)


class Side:
    """One of the two databases: its transactions, its watches and the versionstamps it gave."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.slots: list[FdbTransaction] = []
        self.stamps: dict[bytes, bytes] = {}
        self.watches: dict[int, Any] = {}

    async def clean(self) -> None:
        transaction = self.database.transaction()
        transaction.clear_range(b"", b"\xff")
        await transaction.commit()
        self.slots = [self.database.transaction() for _ in range(SLOTS)]

    async def do(self, number: int, slot: int, step: Step, *, snapshot: bool) -> Any:
        """Do a step; return what it answered, or the number of its error."""
        transaction = self.slots[slot]
        try:
            match step:
                case ("watch", key):
                    self.watches[number] = transaction.watch(key)
                    # What follows at once may overtake the read of a watch.
                    return self._named(await transaction.get(key))
                case ("on_error", code):
                    return await transaction.on_error(FdbError(code))
                case ("commit",):
                    return await self._commit(transaction)
                case _:
                    return self._named(await do(transaction, step, snapshot=snapshot))
        except FdbError as error:
            return error.code

    async def _commit(self, transaction: FdbTransaction) -> bool:
        stamp = transaction.versionstamp()
        await transaction.commit()
        written = transaction.committed_version() != -1
        if written:
            self.stamps[await stamp] = b"<stamp %d>" % len(self.stamps)
        else:
            assert await _code(stamp) == 2021
        return written

    def _named(self, answer: Any) -> Any:
        """The answer with the versionstamps by their order."""
        if isinstance(answer, list | tuple):
            return [*map(self._named, answer)]
        if isinstance(answer, bytes):
            for stamp, name in self.stamps.items():
                answer = answer.replace(stamp, name)
        return answer


async def _code(waiting: Any) -> int:
    try:
        await waiting
    except FdbError as error:
        return error.code
    return 0


async def compare(simulated: Database, other: Database, seed: int, steps: int = 200) -> None:
    """Do the same on both, and assert that both answer the same."""
    rng = random.Random(seed)
    sides = Side(simulated), Side(other)
    for side in sides:
        await side.clean()
    for number in range(steps):
        slot, step, snapshot = rng.randrange(SLOTS), a_mixed_step(rng), rng.random() < 0.3
        answers = [await side.do(number, slot, step, snapshot=snapshot) for side in sides]
        assert answers[0] == answers[1], (seed, number, slot, step, snapshot)
        if step == ("commit",) or (isinstance(answers[0], int) and rng.random() < 0.7):
            for side in sides:  # It has ended, one way or the other.
                side.slots[slot].reset()
    await _compare_ends(*sides, seed)


async def _compare_ends(simulated: Side, other: Side, seed: int) -> None:
    """Compare what is there, and which watches have ended."""
    assert await _pairs(simulated) == await _pairs(other), seed
    sides = simulated, other
    for side in sides:
        for transaction in side.slots:
            transaction.reset()
    for number, watch in simulated.watches.items():
        if watch.done:  # The other may be a little later, and may end without a change.
            async with asyncio.timeout(30):
                assert await _code(watch) == await _code(other.watches[number]), (seed, number)
    for side in sides:
        for watch in side.watches.values():
            watch.cancel()


async def _pairs(side: Side) -> list[tuple[bytes, bytes]]:
    return side._named(await side.database.transaction().get_range(b"", b"\xff"))
