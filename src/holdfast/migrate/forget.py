"""Gives up a move that cannot be finished, because one of its stores is gone for good."""

from __future__ import annotations

import contextlib

from msgspec import Struct

from holdfast.core.errors import HoldfastError, InvalidOption
from holdfast.ids import new_id
from holdfast.migrate.move_log import MoveLog, MoverLease
from holdfast.migrate.plan import MovePlan, opened
from holdfast.opening import existing, shown_url


class Forgotten(Struct, frozen=True):
    """A store that no longer knows the move. Its queues are resumed as they were before."""

    store: str
    """SRC or DST."""
    queues: list[str]


async def forget(plan: MovePlan) -> list[Forgotten]:
    """Delete the log of a move in the store that is left, or in both if they know different moves.

    Jobs that the move has copied or taken away stay where they are: if the other store comes back, jobs may be in both.
    Raises InvalidOption if the move can be finished, or if there is none; StoreBusy if a mover is running.
    """
    async with contextlib.AsyncExitStack() as stack:
        logs: list[MoveLog] = []
        for name, url in (("SRC", plan.source), ("DST", plan.target)):
            with contextlib.suppress(HoldfastError):
                logs.append(MoveLog(await stack.enter_async_context(opened(existing(url), name)), plan.tenant, name))
        ours: list[MoveLog] = []
        for log in logs:
            lease = await MoverLease.take(log.store, plan.tenant, log.name, f"move-{new_id()}", plan.lease_ms)
            stack.push_async_callback(lease.release)
            record = await log.read()
            named = record.info and (record.info.target if log.name == "SRC" else record.info.source)
            if record.leaves is (log.name == "SRC") and named == shown_url(_other(plan, log.name)):
                ours.append(log)
        if not ours:
            raise InvalidOption("forget", f"no reachable store knows this move of {plan.tenant!r}")
        if len({log.record.info and log.record.info.id for log in ours}) < len(ours):
            raise InvalidOption("forget", "both stores know this move; finish it, by the same command without --forget")
        return [await _end(log) for log in ours]


async def _end(log: MoveLog) -> Forgotten:
    queues = sorted(log.record.paused)
    for one in log.record.paused.values():
        paused = one.source_paused if log.name == "SRC" else one.source_paused or one.target_paused
        await log.store.pause(log.tenant, one.queue, paused=paused)
    await log.end()
    return Forgotten(log.name, queues)


def _other(plan: MovePlan, name: str) -> str:
    return plan.target if name == "SRC" else plan.source
