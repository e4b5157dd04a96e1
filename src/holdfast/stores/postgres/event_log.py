"""The log as the store shows it: pages, ranges and readers. [EVENT-2]"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from holdfast.extensions import LogRange
from holdfast.store import EventPage, Hint, LogPage, Reader, Signal
from holdfast.stores.postgres import log, log_reads
from holdfast.stores.postgres.transactions import Transactions, retry_stale

HELD_PAUSES_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04)
"""The pauses between reads of the log while an open transaction delays further events."""
HELD_S = 0.25
"""When listeners read the log again after an open transaction has delayed the rest."""


class EventLog:
    """Reads of the log, for one store handle."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Stop the timer, if one runs."""
        if self._timer is not None:
            self._timer.cancel()

    async def events(self, tenant: str | None, after: str | None, limit: int) -> EventPage:
        """A page of events after an offset."""
        transactions = self._transactions
        read = partial(log_reads.events, transactions.client, transactions.cache, tenant, after, limit)
        page, held = await retry_stale(read)
        for pause_s in HELD_PAUSES_S:
            if not held or page.more:
                break
            # Most transactions end soon: a caller that has just changed something finds it in the log.
            await asyncio.sleep(pause_s)
            page, held = await retry_stale(read)
        if held and not page.more and self._timer is None:
            # No notification follows when that transaction ends.
            self._timer = asyncio.get_running_loop().call_later(HELD_S, self._read_again)
        return page

    def _read_again(self) -> None:
        self._timer = None
        if self._transactions.is_open:
            self._transactions.listener.deliver(Signal(Hint.EVENTS))

    async def last_offset(self) -> str:
        """Where the log ends."""
        ends = await self._ends()
        for pause_s in HELD_PAUSES_S:
            if not ends.held:
                break
            await asyncio.sleep(pause_s)
            ends = await self._ends()
        return str(ends.end)

    async def _ends(self) -> log_reads.Ends:
        transactions = self._transactions
        return await retry_stale(lambda: log_reads.ends(transactions.client, transactions.cache))

    async def bounds(self, after: str | None, most: int | None, end: str | None) -> tuple[str, str]:
        """The offsets to read between."""
        last = end or await self.last_offset()
        transactions = self._transactions
        return await retry_stale(lambda: log_reads.bounds(transactions.client, transactions.cache, after, most, last))

    async def written(self) -> str:
        """Where the log ends, including events that an open transaction delays."""
        transactions = self._transactions
        return str(await retry_stale(lambda: log_reads.written(transactions.client, transactions.cache)))

    async def split(self, after: str, end: str, size: int) -> Sequence[LogRange]:
        """The log between two offsets, in ranges of about `size` events."""
        transactions = self._transactions
        return await retry_stale(lambda: log_reads.split(transactions.client, transactions.cache, after, end, size))

    async def read(self, log_range: LogRange, limit: int) -> LogPage:
        """The first events of a range."""
        transactions = self._transactions
        return await retry_stale(lambda: log_reads.read(transactions.client, transactions.cache, log_range, limit))

    async def set_reader(self, reader: Reader) -> None:
        """Register a reader, or move it forward."""
        transactions = self._transactions
        position = await retry_stale(lambda: log_reads.readable(transactions.client, transactions.cache, reader.offset))
        await transactions.client.rows("set_reader", reader.tenant or "", reader.name, *position, repeat=True)

    async def drop_reader(self, tenant: str | None, name: str) -> bool:
        """Remove a reader. Answers whether there was one."""
        return bool(await self._transactions.client.rows("drop_reader", tenant or "", name))

    async def readers(self, tenant: str | None) -> list[Reader]:
        """The registered readers."""
        found = await self._transactions.client.rows("readers", tenant or "", repeat=True)
        return [Reader(tenant, row["name"], str(log.Position(*list(row.values())[1:]))) for row in found]
