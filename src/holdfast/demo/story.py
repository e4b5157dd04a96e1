"""One run of the demo: enqueue, cancel, kill a worker, and check every job."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from holdfast import JobFailed, JobState, Queue, Ticket
from holdfast.core.job import TERMINAL
from holdfast.demo import effects, show
from holdfast.demo.audit import DemoAudit, JobName, audit
from holdfast.demo.directory import store_url
from holdfast.demo.fleet import Fleet
from holdfast.demo.plan import EXPORT_ID, POISON_ID, TenantPlan, plans
from holdfast.opening import open_store
from holdfast.store import Store

TICK_S = 0.1
TRICKLE_S = 8.0
"""How long tenants that send one by one take for all of their jobs, at the default size."""
GIVE_UP_S = 120.0
VICTIM = 2
"""The number of the worker that is killed half-way."""


class Story:
    """One run of the demo."""

    def __init__(self, directory: Path, jobs: int, lease_s: float, console: Console) -> None:
        self._directory = directory
        self._url = store_url(directory)
        self._lease_s = lease_s
        self._trickle_s = TRICKLE_S * min(1.0, jobs / 4000)
        self._plans = plans(jobs)
        self._console = console
        self._show = show.Show(self._plans, console)
        self._queues: dict[str, Queue] = {}
        self._acknowledged: list[JobName] = []
        self._counts: dict[str, Counter[JobState]] = {plan.tenant.name: Counter() for plan in self._plans}
        self._killed_by_us = self._killed_by_poison = 0

    async def run(self) -> bool:
        """Run the demo. Returns whether every acknowledged job has ended."""
        show.headline(self._console, self._plans, self._directory, self._lease_s)
        store = await open_store(self._url)
        try:
            found = await self._run(store)
        finally:
            await store.close()
        killed = self._killed_by_us, self._killed_by_poison
        show.report(self._console, self._plans, found, killed)
        show.what_next(self._console, self._directory, self._url)
        return not found.lost

    async def _run(self, store: Store) -> DemoAudit:
        self._queues = {plan.tenant.name: Queue(store=store, tenant=plan.tenant.name) for plan in self._plans}
        # The progress bars end first. The workers still stop after that.
        async with Fleet(self._url, self._directory, self._lease_s, self._on_death) as fleet:
            with self._show:
                await self._until_done(fleet)
        handled = effects.read(self._directory / "effects.log")
        return await audit(list(self._queues.values()), self._acknowledged, handled)

    async def _until_done(self, fleet: Fleet) -> None:
        doing: list[Coroutine[Any, Any, None]] = [self._kill_half_way(fleet)]
        for plan in self._plans:
            doing.append(self._trickle(plan) if plan.tenant.trickles else self._send_at_once(plan))
            doing += [self._cancel_some(plan), self._poison(plan)]
        tasks = [asyncio.create_task(step) for step in doing]
        try:
            async with asyncio.timeout(GIVE_UP_S):
                while not all(task.done() for task in tasks) or self._open_jobs():
                    for task in tasks:
                        if task.done():
                            task.result()
                    fleet.check()
                    await self._count()
                    await asyncio.sleep(TICK_S)
        except TimeoutError:
            self._show.say(f"[red]not done after {GIVE_UP_S:g} s[/]")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    # Producers -------------------------------------------------------------------------------------------------

    async def _send_at_once(self, plan: TenantPlan) -> None:
        tickets = await self._queues[plan.tenant.name].enqueue_many(plan.messages)
        self._acknowledge(tickets)
        self._show.say(f"{plan.tenant.name} enqueued {len(tickets):,} jobs at once")

    async def _trickle(self, plan: TenantPlan) -> None:
        queue = self._queues[plan.tenant.name]
        steps = max(1, round(self._trickle_s / TICK_S))
        for step in range(steps):
            pause = asyncio.create_task(asyncio.sleep(TICK_S))
            self._acknowledge(await asyncio.gather(*(queue.enqueue(one) for one in plan.messages[step::steps])))
            await pause

    async def _poison(self, plan: TenantPlan) -> None:
        """Enqueue the job that kills workers, and wait until it fails."""
        if plan.poison is None:
            return
        await asyncio.sleep(self._trickle_s / 8)
        ticket = await self._queues[plan.tenant.name].enqueue(plan.poison)
        self._acknowledge([ticket])
        self._show.say(f"{plan.tenant.name} enqueued the poison job {POISON_ID!r}: it kills the worker that runs it")
        try:
            await ticket.wait()
        except JobFailed as error:
            self._show.say(
                f"the poison job has no attempts left: dead letter, reason {error.reason}. The other jobs continue"
            )

    async def _cancel_some(self, plan: TenantPlan) -> None:
        """Cancel jobs: some that wait, and one that is running."""
        queue = self._queues[plan.tenant.name]
        tickets = await queue.enqueue_many(plan.to_cancel)
        self._acknowledge(tickets)
        await asyncio.gather(*(ticket.cancel() for ticket in tickets))
        self._show.say(f"{plan.tenant.name} canceled {len(tickets)} jobs before they were due")
        if plan.export is None:
            return
        export = await queue.enqueue(plan.export)
        self._acknowledge([export])

        async def is_running() -> bool:
            return (await export.refresh()).state is JobState.LEASED

        await _until(is_running)
        await export.cancel()
        self._show.say(f"{plan.tenant.name} canceled {EXPORT_ID!r} while it was running")

    def _acknowledge(self, tickets: Iterable[Ticket[Any]]) -> None:
        for ticket in tickets:
            if ticket.error is not None:
                raise ticket.error
            self._acknowledged.append((ticket.tenant, ticket.queue, ticket.id))

    # The killer ------------------------------------------------------------------------------------------------

    async def _kill_half_way(self, fleet: Fleet) -> None:
        half = sum(plan.total for plan in self._plans) // 2

        async def is_time() -> bool:
            ended = sum(states[state] for states in self._counts.values() for state in TERMINAL)
            return ended >= half and await self._held_by(fleet.id_of(VICTIM)) > 0

        await _until(is_time)
        worker_id = await fleet.kill(VICTIM)
        held = await self._held_by(worker_id)
        self._show.say(
            f"half-way: [bold red]SIGKILL[/] to {worker_id}, which held {held} jobs; a new worker replaces it"
        )

    async def _held_by(self, worker_id: str) -> int:
        held = 0
        for queue in self._queues.values():
            for stats in await queue.queues():
                page = await queue.list(queue=stats.queue, state=JobState.LEASED, limit=1000)
                held += sum(record.worker_id == worker_id for record in page)
        return held

    def _on_death(self, worker_id: str, by_us: bool) -> None:  # noqa: FBT001 - a callback
        if by_us:
            self._killed_by_us += 1
        else:
            self._killed_by_poison += 1
            self._show.say(f"the poison job killed {worker_id}; a new worker replaces it")

    # Progress ------------------------------------------------------------------------------------------------

    async def _count(self) -> None:
        for name, queue in self._queues.items():
            counts: Counter[JobState] = Counter()
            for stats in await queue.queues():
                counts.update(stats.counts)
            self._counts[name] = counts
        self._show.update(self._counts)

    def _open_jobs(self) -> int:
        return sum(counts.total() - sum(counts[state] for state in TERMINAL) for counts in self._counts.values())


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 - the condition depends on other processes
        await asyncio.sleep(TICK_S)
