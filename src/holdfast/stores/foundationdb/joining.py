"""The caller's own transaction: an enqueue or an acknowledgement joins it. [ENQ-7]

What is read is of the moment of the caller's transaction, and what is written is committed with it, or not at all. A
transaction that began before a job was enqueued or leased does not see that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct

from holdfast.core.errors import InvalidOption
from holdfast.stores.foundationdb.database import FdbError, FdbTransaction
from holdfast.stores.foundationdb.transactions import Transactions
from holdfast.stores.foundationdb.unit_of_work import Work

OPTION = "connection"
T = TypeVar("T")


class _Joined(Struct, eq=False, weakref=True):
    """How far earlier calls have used the versionstamp of a transaction."""

    first_number: int = 1
    pointers: int = 0


_joined: WeakKeyDictionary[Any, _Joined] = WeakKeyDictionary()


def to_transaction(connection: Any) -> FdbTransaction:
    """The caller's transaction, as this store uses it. Raises InvalidOption."""
    if callable(getattr(connection, "set_versionstamped_key", None)) and hasattr(connection, "on_error"):
        if type(connection).__module__.partition(".")[0] == "fdb":
            from holdfast.stores.foundationdb.client import joined

            return joined(connection)
        return connection
    owner = f"{type(connection).__module__.partition('.')[0]}'s {type(connection).__name__}"
    raise InvalidOption(OPTION, f"{owner} cannot be joined; pass a transaction of FoundationDB, like fdb.Transaction")


async def join(transactions: Transactions, connection: Any, body: Callable[[Work], Awaitable[T]]) -> T:
    """Run `body` in the caller's transaction. The caller commits, and runs everything again after a conflict."""
    transaction = to_transaction(connection)
    state = _joined.setdefault(connection, _Joined())
    try:
        work = await transactions.begin(transaction, joined=True)
        work.first_number, work.pointers = state.first_number, state.pointers
        answer = await body(work)
        await work.flush()
        state.first_number, state.pointers = work.first_number, work.pointers
        return answer
    except FdbError as error:
        if isinstance(error.__cause__, Exception):
            raise error.__cause__ from None  # The binding's own error: the caller's loop knows what to do.
        raise
