"""One run of a worker.

A job's life, in order:

    claiming.py   Claiming.run         claims as many jobs as there is room for, and receives hand-offs
    runner.py     Runner.add, _start   puts each into a free slot
    runner.py     Runner._run_async    calls the handler (or _run_in_thread, _run_in_process)
    runner.py     Runner._end          makes its ending an outcome (outcome.py) and frees the slot
    acks.py       Acknowledger.run     sends outcomes in batches
    answers.py    Answers.answered     reports what the store answered

Each part calls the next one. Only `RunState.changed` works backwards: it wakes the claims when a slot or an
acknowledgement makes room. Claims and acknowledgements run concurrently, so that a store can commit them together.
Everything belongs to one event loop; only the heartbeat has its own thread, and calls into this loop by
`call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.extensions import SingleTenant
from holdfast.maintenance import Maintenance
from holdfast.maintenance.coordinator import Coordinator
from holdfast.maintenance.handlers import system_handlers
from holdfast.store import Store, WorkerInfo
from holdfast.worker.acks import Acknowledger
from holdfast.worker.answers import Answers
from holdfast.worker.claiming import Claiming
from holdfast.worker.clients import WorkerClients
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.joining import Joining
from holdfast.worker.progress import Reporter
from holdfast.worker.runner import Runner
from holdfast.worker.shutdown import DRAIN_S, END_S, end_calls, end_running
from holdfast.worker.state import RunState

if TYPE_CHECKING:
    from holdfast.queue.connection import Address
    from holdfast.worker.callbacks import Callbacks
    from holdfast.worker.handlers import Handler
    from holdfast.worker.health import WorkerHealth
    from holdfast.worker.settings import Settings


class Loop:
    """The parts of one run. Made inside the event loop that it runs in."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        handlers: dict[str, Handler],
        callbacks: Callbacks,
        health: WorkerHealth,
        address: Address | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._callbacks = callbacks
        self._health = health
        self.state = state = RunState()
        on_error = callbacks.store_failed
        self._answers = Answers(state, callbacks, settings.blobs)
        self._acks = Acknowledger(store, self._answers, on_error)
        self._reporter = Reporter(store, self._answers.lost, partial(on_error, "report"))
        self._runner = Runner(
            state, handlers, self._acks.add, self._answers, self._reporter.add,
            concurrency=settings.concurrency, codec=settings.codec, blobs=settings.blobs,
            completer=Joining(store, settings.codec, state.running), unknown_ms=settings.unknown_ms,
            clients=WorkerClients(store, settings.name, settings.codec, settings.blobs, asyncio.get_running_loop()),
            address=address,
        )  # fmt: skip
        self._heartbeat = Heartbeat(
            store, state.leased, settings.lease_ms, self._describe, self._answers.lost, partial(on_error, "extend"),
            on_reached=health.reached, coordinate=None if isinstance(store, SingleTenant) else self._coordinate,
        )  # fmt: skip
        self._claiming = Claiming(store, settings, state, self._heartbeat, self._runner, self._acks, on_error)

    async def run(self) -> None:
        """Run jobs until `stop`, then finish or release every leased job. Raises the error that prevents this."""
        state = self.state
        maintenance = Maintenance(
            self._store,
            tenant=self._settings.tenant,
            blobs=self._settings.blobs,
            on_error=partial(self._callbacks.store_failed, "maintain"),
            coordinate=False,
        )
        self._heartbeat.start()
        parts = (maintenance.run(), self._acks.run(), self._claiming.run(), self._health.turn(state))
        _, acknowledging, claiming, _ = tasks = [asyncio.create_task(part) for part in parts]
        for task in tasks:
            task.add_done_callback(self._on_task_done)
        try:
            await state.wait_until(lambda: state.stopping)
            self._claiming.wake()
            leaving = asyncio.create_task(self._claiming.leave(claiming, DRAIN_S))
            tasks.append(leaving)
            await end_running(state, self._runner, self._settings.grace_s)
            await end_calls(state, self._acks, leaving, acknowledging)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._acks.abandon_checks()
            await self._answers.close()
            self._claiming.close()
            await self._reporter.close()
            await self._runner.close()
            await self._heartbeat.stop()
            self._health.ended()
            await self._callbacks.finish(END_S)
        if state.fatal is not None:
            raise state.fatal

    def stop(self) -> None:
        """Stop claiming, let running jobs finish within the grace, then release those that can be stopped."""
        self.state.stop()

    def stop_now(self) -> None:
        """End at once: cancel running handlers, and try once to release the jobs of those that stop."""
        self.state.stop_now()

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Whether this task runs one of this worker's handlers."""
        return task is not None and any(active.task is task for active in self.state.running)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Stop the worker if a part of the run fails: it must not look alive without working."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.state.fail(error)

    async def _coordinate(self, store: Store) -> None:
        """Serve schedules and flows, in the heartbeat's thread and on its connection to the store."""
        on_error = partial(self._heartbeat.call_in_loop, self._callbacks.store_failed, "maintain")
        tenant = self._settings.tenant
        await Coordinator(store, tenant, system_handlers(tenant), on_error=on_error).run()

    def _describe(self) -> WorkerInfo:
        settings = self._settings
        return WorkerInfo(
            settings.worker_id, settings.tenant, socket.gethostname(), os.getpid(), settings.queues,
            settings.concurrency, len(self.state.leased), types=settings.types,
        )  # fmt: skip
