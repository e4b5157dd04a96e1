"""Random transactions, against a model that does one after the other."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.foundationdb.database import MAYBE_APPLIED, FdbError
from holdfast.testing.fdb import SOME, SimulatedDatabase
from tests.unit.testing.fdb.doing import finish
from tests.unit.testing.fdb.model import READS, Model, Step, a_step, do

STAMP = bytes(10) + (0).to_bytes(4, "little")
STEPS = st.lists(st.randoms(use_true_random=False).map(a_step), max_size=40)


@given(STEPS, STEPS)
def test_one_transaction_after_the_other_is_the_model(first: list[Step], second: list[Step]):
    db, model = SimulatedDatabase(frozen=True), Model()
    for steps in (first, second):
        transaction = db.transaction()
        for number, step in enumerate(steps):
            assert finish(do(transaction, step, snapshot=number % 2 == 1)) == model.do(step), step
        finish(transaction.commit())
        assert dict(db.pairs()) == model.pairs


class Attempt:
    """What one attempt of a transaction did and saw."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.version = 0
        self.steps: list[tuple[Step, bool, Any]] = []


async def attempt(db: SimulatedDatabase, rng: random.Random, name: bytes) -> tuple[Attempt, bool | None]:
    """One attempt, and whether it was applied: None if that is unknown."""
    done = Attempt(name)
    transaction = db.transaction()
    try:
        done.version = await transaction.get_read_version()
        for _ in range(rng.randrange(1, 9)):
            step, snapshot = a_step(rng), rng.random() < 0.3
            done.steps.append((step, snapshot, await do(transaction, step, snapshot=snapshot)))
        transaction.set_versionstamped_value(b"done/" + name, STAMP)
        await transaction.commit()
    except FdbError as error:
        return done, None if error.code in MAYBE_APPLIED else False
    return done, True


@pytest.mark.parametrize("seed", range(60))
async def test_concurrent_transactions_are_as_if_one_after_the_other(seed: int):
    db = SimulatedDatabase(seed=seed, faults=SOME, frozen=True)
    attempts: list[tuple[Attempt, bool | None]] = []

    async def work(worker: int) -> None:
        rng = random.Random(seed * 100 + worker)
        for turn in range(12):
            attempts.append(await attempt(db, rng, b"%d.%d" % (worker, turn)))
            if rng.random() < 0.1:
                db.advance(rng.random())

    await asyncio.gather(*(work(worker) for worker in range(6)))
    marks = dict(db.pairs(b"done/", b"done0"))
    for done, applied in attempts:
        assert applied is None or applied is (b"done/" + done.name in marks)
    check(sorted((marks[b"done/" + done.name], done) for done, _ in attempts if b"done/" + done.name in marks), db)


def check(committed: list[tuple[bytes, Attempt]], db: SimulatedDatabase) -> None:
    """Repeat what was committed in the order of the commits: each must have seen what the model shows."""
    assert len(committed) > 20
    model = Model()
    moments: list[tuple[int, dict[bytes, bytes]]] = [(0, {})]
    for stamp, done in committed:
        at_read = Model(next(pairs for version, pairs in reversed(moments) if version <= done.version))
        for step, snapshot, seen in done.steps:
            if step[0] in READS:
                assert seen == at_read.do(step), (done.name, step)
                assert snapshot or seen == model.do(step), (done.name, step)
            else:
                at_read.do(step)
                model.do(step)
        moments.append((int.from_bytes(stamp[:8], "big"), dict(model.pairs)))
    assert dict(db.pairs(b"k", b"l")) == model.pairs


def test_the_check_finds_a_lost_update():
    db, committed = SimulatedDatabase(frozen=True), []
    for number in range(21):
        done = Attempt(b"%d" % number)
        done.version = 100_000_000
        # All of them read before one of them wrote.
        done.steps = [(("get", b"k"), False, None), (("set", b"k", b"%d" % number), False, None)]
        committed.append(((100_000_001 + number).to_bytes(8, "big") + bytes(2), done))
    with pytest.raises(AssertionError):
        check(committed, db)
