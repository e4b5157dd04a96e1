"""Keeps leases alive, in a thread that a busy handler cannot starve. [LEASE-4]

The thread has its own event loop and its own connection to the store. It sleeps until something is due: a renewal, a
third of a lease after the claim, or the loss of a lease that could not be renewed. Short jobs cost it nothing: they
enter and leave the set of leased jobs before anything is due.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holdfast.clock import LOOK_S, boot_time
from holdfast.core.errors import LeaseExpired, StoreBusy, StoreError, StoreUnavailable
from holdfast.core.failpoint import hit
from holdfast.core.job import Extend, Extended
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.store import Hint, Signal, Store, WorkerInfo
from holdfast.telemetry.logging import get_logger
from holdfast.worker.joining import is_completed

if TYPE_CHECKING:
    from holdfast.core.lease import Refusal
    from holdfast.worker.active_job import ActiveJob

BATCH = 1_000
BEAT_EVERY_S = 10.0
RECOUNT_S = 1.0
"""How soon the registry gets a worker's changed number of jobs."""
BEAT_TTL_MS = 30_000
VERIFY_EVERY_S = 0.25
SIGN_OFF_S = 1.0
STOP_S = 6.0
"""How long the shutdown may take: the coordinator releases its jobs, each step within a second."""

MAX_CANCELS = 1_000
"""The most cancels to remember, for jobs that are leased to this worker and have not arrived yet."""

_ANY = ("", "", "")
_CANCELED = frozenset({Hint.CANCELED})

_log = get_logger(__name__)


class Heartbeat:
    """Renews the leases in `leased`, notices cancels, reports the worker as live, and runs `coordinate`.

    Made and stopped in the worker's event loop. Calls `on_lost(active, refusal)` and `on_error(error)` there, and
    `on_reached()` in its own thread, each time the store has answered.
    """

    def __init__(
        self,
        store: Store,
        leased: set[ActiveJob],
        lease_ms: int,
        describe: Callable[[], WorkerInfo],
        on_lost: Callable[[ActiveJob, Refusal], None],
        on_error: Callable[[BaseException], None],
        *,
        on_reached: Callable[[], None],
        coordinate: Callable[[Store], Awaitable[None]] | None = None,
    ) -> None:
        self._home = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._origin = store
        self._leased = leased
        self._lease_ms = lease_ms
        self._lease_s = lease_ms / 1000
        self._describe = describe
        self._on_lost = on_lost
        self._on_error = on_error
        self._on_reached = on_reached
        self._coordinate = coordinate
        self._idle = {"renew": True, "expire": True}
        self._verify: list[Signal] = []
        self._verify_at = 0.0
        self._cancels: dict[tuple[str, str, str], float] = {}
        """When the latest cancels were noticed, by job: the job may have been in flight to this worker."""
        self._alone: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="holdfast heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises the error that keeps it from running."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def watch(self, taken: Sequence[ActiveJob], sent_at: float) -> None:
        """Watch jobs that were added to `leased`, by a claim sent at `sent_at`. Wakes the thread only if it is idle."""
        if self._cancels:
            # A cancel that arrived before its job found no such job in `leased`. [CANCEL-2]
            missed = [Signal(Hint.CANCELED, *active.key) for active in taken if self._was_canceled(active, sent_at)]
            if missed:
                self._loop.call_soon_threadsafe(self._verify_soon, missed)
        # The jobs were added before this line, and the thread checks `leased` once more after it has marked itself
        # idle. In either order, one of the two notices the jobs.
        if self._idle["renew"] or self._idle["expire"]:
            self._loop.call_soon_threadsafe(self._wake)

    async def stop(self) -> None:
        """Remove the worker from the registry and end the thread."""
        self._loop.call_soon_threadsafe(self._stop.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._ended.wait()
        self._thread.join(SIGN_OFF_S)

    # Everything below runs in the thread. ----------------------------------------------------------------------

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - `start` waits for an answer
            self._failure = error
        self._started.set()
        self.call_in_loop(self._ended.set)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._wakeups = {"renew": asyncio.Event(), "expire": asyncio.Event()}
        self._started.set()
        tasks = [asyncio.create_task(self._repeat(part)) for part in (self._expire_forever, self._serve)]
        await self._stop.wait()
        for task in (*tasks, *self._alone):
            task.cancel()
        await asyncio.wait([*tasks, *self._alone])

    async def _repeat(self, part: Callable[[], Awaitable[None]]) -> None:
        pause = Pause()
        while True:
            try:
                await part()
            except Exception as error:  # noqa: BLE001 - the heartbeat outlives failures of the store
                self._report(error)
                await asyncio.sleep(pause.next_s())

    async def _serve(self) -> None:
        store = await self._connect()
        unlisten = store.listen(self._on_cancel, _CANCELED)
        # Jobs may have been canceled before this listened.
        self._verify_soon([Signal(Hint.CANCELED)])
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew_forever(store))
                group.create_task(self._beat_forever(store))
                group.create_task(self._repeat(partial(self._coordinate_forever, store)))
        finally:
            unlisten()
            await self._sign_off(store)

    async def _connect(self) -> Store:
        pause = Pause()
        while True:
            try:
                return await self._origin.sibling()
            except Exception as error:  # noqa: BLE001 - the heartbeat outlives failures of the store
                self._report(error)
            await asyncio.sleep(pause.next_s())

    # Renewals and cancels

    async def _renew_forever(self, store: Store) -> None:
        pause = Pause(self._lease_s / 6)
        while True:
            self._wakeups["renew"].clear()
            due = self._due(boot_time())
            # A renewal can hang: `_expire_forever` watches for the end of the lease meanwhile.
            self._wakeups["expire"].set()
            if not due:
                await self._sleep("renew", self._next_renewal())
                continue
            try:
                alone = [one for one in due if one.joined]
                due = [one for one in due if not one.joined]
                self._renew_alone(store, alone)
                for start in range(0, len(due), BATCH):
                    await self._renew(store, due[start : start + BATCH])
                pause.reset()
            except Exception as error:  # noqa: BLE001 - the heartbeat outlives failures of the store
                self._report(error)
                await asyncio.sleep(pause.next_s())

    def _due(self, now: float) -> list[ActiveJob]:
        leased = self._leased.copy()
        due = [one for one in leased if one.renew_at <= now < one.give_up_at]
        if self._verify and self._verify_at <= now:
            signals, self._verify = self._verify, []
            self._verify_at = now + VERIFY_EVERY_S
            due += [one for one in leased if one.renew_at > now and any(_concerns(s, one) for s in signals)]
        return due

    def _next_renewal(self) -> float | None:
        now = boot_time()
        moments = [one.renew_at if now < one.give_up_at else one.until for one in self._leased.copy()]
        if self._verify:
            moments.append(self._verify_at)
        return min(moments, default=None)

    async def _renew(self, store: Store, due: list[ActiveJob]) -> None:
        hit("worker.mid_renewal")
        sent = boot_time()
        try:
            answers = await store.extend([Extend(one.key, one.token, self._lease_ms) for one in due])
        except StoreBusy as busy:
            if len(due) == 1:
                raise
            # A transaction may lock one of them. The others must not wait for it.
            self._report(busy)
            self._renew_alone(store, due)
            return
        hit("worker.mid_renewal")
        for one, answer in zip(due, answers, strict=True):
            if isinstance(answer, Extended):
                self._renewed(one, answer, sent)
            else:
                self._lost(one, answer)

    def _renewed(self, one: ActiveJob, answer: Extended, sent: float) -> None:
        one.until = sent + self._lease_s
        one.renew_at = sent + self._lease_s / 3
        context = one.context
        if context is not None:
            context.renewed(answer.deadline)

    def _renew_alone(self, store: Store, jobs: list[ActiveJob]) -> None:
        """Renew jobs that an open transaction may lock, each in its own call: the others must not wait for it."""
        for one in jobs:
            one.renew_at = boot_time() + self._lease_s / 3
            task = self._loop.create_task(self._renew_one(store, one))
            self._alone.add(task)
            task.add_done_callback(self._alone.discard)

    async def _renew_one(self, store: Store, one: ActiveJob) -> None:
        try:
            sent = boot_time()
            (answer,) = await store.extend([Extend(one.key, one.token, self._lease_ms)])
            if isinstance(answer, Extended):
                self._renewed(one, answer, sent)
                return
            (job,) = await store.get([one.key])
            if is_completed(job, one.token):
                # Its transaction has committed: the lease no longer matters, whatever the handler still does.
                one.until = one.renew_at = math.inf
            else:
                self._lost(one, answer)
        except Exception as error:  # noqa: BLE001 - its transaction is open; if it stays open too long, the lease expires
            _log.debug("a lease was not renewed", error=str(error))

    def _on_cancel(self, signal: Signal) -> None:
        # Remember the cancel first: a job that is added meanwhile is noticed either here or by `watch`.
        self._cancels.pop(_key_of(signal), None)
        self._cancels[_key_of(signal)] = boot_time()
        if len(self._cancels) > MAX_CANCELS:
            del self._cancels[next(iter(self._cancels))]
        if any(_concerns(signal, one) for one in self._leased.copy()):
            self._verify_soon([signal])

    def _was_canceled(self, one: ActiveJob, sent: float) -> bool:
        """Whether a cancel of this job may have been noticed since `sent`. Called in the worker's thread."""
        return any(self._cancels.get(key, -math.inf) >= sent for key in (one.key, _ANY))

    def _verify_soon(self, signals: list[Signal]) -> None:
        self._verify += signals
        self._wakeups["renew"].set()

    # Lost leases

    async def _expire_forever(self) -> None:
        while True:
            self._wakeups["expire"].clear()
            now = boot_time()
            for one in self._leased.copy():
                if one.until <= now:
                    self._lost(one, LeaseExpired(one.key.queue, one.key.id))
            await self._sleep("expire", min((one.until for one in self._leased.copy()), default=None))

    def _lost(self, one: ActiveJob, refusal: Refusal) -> None:
        self._leased.discard(one)
        # Set here, not in the worker's loop: a handler in a thread must see it even while the loop is blocked.
        context = one.context
        if context is not None:
            context.canceled.set()
        self.call_in_loop(self._on_lost, one, refusal)

    # Schedules and flows

    async def _coordinate_forever(self, store: Store) -> None:
        """Serve schedules and flows. In the worker's loop, a handler that blocks it would let their leases expire."""
        if self._coordinate is None:
            await asyncio.Event().wait()
        else:
            await self._coordinate(store)

    # The registry of workers

    async def _beat_forever(self, store: Store) -> None:
        pause = Pause()
        while True:
            info = self._describe()
            try:
                await store.beat(info, BEAT_TTL_MS)
                answered = True
            except Exception as error:  # noqa: BLE001 - the heartbeat outlives failures of the store
                self._report(error)
                answered = isinstance(error, StoreError) and not isinstance(error, StoreUnavailable)
            if not answered:
                await asyncio.sleep(pause.next_s())
                continue
            pause.reset()
            self._on_reached()
            # Report sooner if the number of jobs has changed, so that `workers` agrees with the metrics.
            end = boot_time() + BEAT_EVERY_S
            while boot_time() < end:
                await asyncio.sleep(RECOUNT_S)
                if len(self._leased) != info.held:
                    break

    async def _sign_off(self, store: Store) -> None:
        try:
            async with asyncio.timeout(SIGN_OFF_S):
                await store.beat(self._describe(), 0)
        except Exception:  # noqa: BLE001 - the registry entry expires by itself
            _log.debug("the worker could not remove itself from the registry")
        finally:
            if store is not self._origin:
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(SIGN_OFF_S):
                        await store.close()

    # Sleeping and waking

    async def _sleep(self, part: str, until: float | None) -> None:
        """Sleep until `until` or until this part is woken. None: mark the part idle and sleep until `watch`."""
        if until is None:
            self._idle[part] = True
            if not self._leased:
                await self._wakeups[part].wait()
            self._idle[part] = False
            return
        try:
            async with asyncio.timeout(min(LOOK_S, max(0.0, until - boot_time()))):
                await self._wakeups[part].wait()
        except TimeoutError:
            pass

    def _wake(self) -> None:
        for wakeup in self._wakeups.values():
            wakeup.set()

    def _report(self, error: Exception) -> None:
        if not isinstance(error, (StoreError, *AWAY)):
            _log.exception("the heartbeat failed")
        self.call_in_loop(self._on_error, error)

    def call_in_loop(self, call: Callable[..., object], *args: object) -> None:
        """Run `call` in the worker's event loop."""
        # The worker's loop is already closed if the worker was killed.
        with contextlib.suppress(RuntimeError):
            self._home.call_soon_threadsafe(call, *args)


def _key_of(signal: Signal) -> tuple[str, str, str]:
    named = signal.tenant and signal.queue and signal.id
    return (signal.tenant, signal.queue, signal.id) if named else _ANY


def _concerns(signal: Signal, one: ActiveJob) -> bool:
    tenant, queue, id_ = one.key
    return signal.id in ("", id_) and signal.queue in ("", queue) and signal.tenant in ("", tenant)
