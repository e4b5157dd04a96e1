"""Giving up a move that cannot be finished, since one of its stores is gone for good."""

from __future__ import annotations

import contextlib

from msgspec import Struct

from holdfast.core.errors import HoldfastError, InvalidOption
from holdfast.ids import new_id
from holdfast.migrate.notes import MoveLog, MoverLease
from holdfast.migrate.plan import MovePlan, opened
from holdfast.opening import existing, shown_url


class Forgotten(Struct, frozen=True):
    """One store that no longer knows of the move: its queues go on as they did before."""

    store: str
    """SRC or DST."""
    queues: list[str]


async def forget(plan: MovePlan) -> list[Forgotten]:
    """End the record of a move in the store that is left, or in both if they know of different ones.

    What the move has copied or taken away stays where it is: if the other store comes back, jobs may be in both.
    Raises InvalidOption if the move can be finished, or if there is none; StoreBusy if a mover is at work.
    """
    async with contextlib.AsyncExitStack() as stack:
        books: list[MoveLog] = []
        for name, url in (("SRC", plan.source), ("DST", plan.target)):
            with contextlib.suppress(HoldfastError):
                books.append(MoveLog(await stack.enter_async_context(opened(existing(url), name)), plan.tenant, name))
        ours: list[MoveLog] = []
        for book in books:
            turn = await MoverLease.take(book.store, plan.tenant, book.name, f"move-{new_id()}", plan.lease_ms)
            stack.push_async_callback(turn.give_back)
            record = await book.read()
            named = record.info and (record.info.target if book.name == "SRC" else record.info.source)
            if record.leaves is (book.name == "SRC") and named == shown_url(_other(plan, book.name)):
                ours.append(book)
        if not ours:
            raise InvalidOption("forget", f"no store that can be reached knows of this move of {plan.tenant!r}")
        if len({book.record.info and book.record.info.id for book in ours}) < len(ours):
            raise InvalidOption("forget", "both stores know of this move; finish it, by the same command without that")
        return [await _let_go(book) for book in ours]


async def _let_go(book: MoveLog) -> Forgotten:
    queues = sorted(book.record.notes)
    for note in book.record.notes.values():
        paused = note.source_paused if book.name == "SRC" else note.source_paused or note.target_paused
        await book.store.pause(book.tenant, note.queue, paused=paused)
    await book.end()
    return Forgotten(book.name, queues)


def _other(plan: MovePlan, name: str) -> str:
    return plan.target if name == "SRC" else plan.source
