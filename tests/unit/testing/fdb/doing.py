"""Short words for the tests of the simulated database."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from holdfast.stores.foundationdb.database import NOT_COMMITTED, FdbError
from holdfast.testing.fdb import Faults, SimulatedDatabase, SimulatedTransaction


def database(seed: int = 1, faults: Faults | None = None, **pairs: str) -> SimulatedDatabase:
    """A frozen database with these pairs in it."""
    made = SimulatedDatabase(seed=seed, faults=faults or Faults(), frozen=True)
    transaction = made.transaction()
    for key, value in pairs.items():
        transaction.set(key.encode(), value.encode())
    if pairs:
        finish(transaction.commit())
    return made


def finish(step: Awaitable[Any]) -> Any:
    """Run a step that doesn't wait for anything but turns of the event loop."""
    steps = step.__await__()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


async def code_of(step: Awaitable[Any]) -> int:
    """The number of the error that a step raises."""
    with pytest.raises(FdbError) as caught:
        await step
    return caught.value.code


async def commit(database: SimulatedDatabase, **pairs: str) -> None:
    """Set pairs in a transaction of their own."""
    transaction = database.transaction()
    for key, value in pairs.items():
        transaction.set(key.encode(), value.encode())
    await transaction.commit()


async def conflicts(transaction: SimulatedTransaction) -> bool:
    """Commit, and say whether that was a conflict."""
    try:
        await transaction.commit()
    except FdbError as error:
        if error.code != NOT_COMMITTED:
            raise
        return True
    return False


def number(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)
