"""Keeps leases alive, on a path that a busy handler cannot starve. [LEASE-4]

A thread with an event loop and a handle on the store of its own. It sleeps until something is due: a third of a
lease after the claim a renewal, at the end of a lease that could not be renewed the loss of it. Taking and ending
short jobs costs it nothing: they enter and leave a set and are gone before anything is due.
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
from holdfast.core.errors import LeaseExpired, StoreBusy, StoreError
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
CHANGED_EVERY_S = 1.0
"""How soon the registry knows how many jobs a worker holds."""
BEAT_TTL_MS = 30_000
VERIFY_EVERY_S = 0.25
SIGN_OFF_S = 1.0
STOP_S = 6.0
"""How long the end may take: what is led is given back, each step of that within a second."""

HEARD = 1_000
"""The most cancels to remember for jobs that were leased to this worker and have not arrived."""

_ANY = ("", "", "")
_CANCELED = frozenset({Hint.CANCELED})

_log = get_logger(__name__)


class Heartbeat:
    """Renews what is in `held`, notices cancels, beats for the worker, and leads schedules and flows by `lead`.

    Made and stopped in the worker's event loop, where `on_lost(held, refusal)` and `on_error(error)` are called.
    """

    def __init__(
        self,
        store: Store,
        held: set[ActiveJob],
        lease_ms: int,
        describe: Callable[[], WorkerInfo],
        on_lost: Callable[[ActiveJob, Refusal], None],
        on_error: Callable[[BaseException], None],
        lead: Callable[[Store], Awaitable[None]] | None = None,
    ) -> None:
        self._home = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._origin = store
        self._held = held
        self._lease_ms = lease_ms
        self._lease_s = lease_ms / 1000
        self._describe = describe
        self._on_lost = on_lost
        self._on_error = on_error
        self._lead = lead
        self._idle = {"renew": True, "expire": True}
        self._verify: list[Signal] = []
        self._verify_at = 0.0
        self._heard: dict[tuple[str, str, str], float] = {}
        """When which cancels were heard of, the last ones: their jobs may have been on their way here."""
        self._alone: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="holdfast heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises what keeps it from running."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def kick(self, taken: Sequence[ActiveJob], sent: float) -> None:
        """Jobs were added, leased after `sent`. Cheap: mostly nothing happens unless the thread was idle."""
        if self._heard:
            # A cancel that was heard of before its job was taken concerned no job that was held then. [CANCEL-2]
            missed = [Signal(Hint.CANCELED, *one.key) for one in taken if self._was_canceled(one, sent)]
            if missed:
                self._loop.call_soon_threadsafe(self._look_at, missed)
        # The jobs were added before this line, and the thread looks once more after it has marked itself
        # idle: whatever the order, one of the two notices.
        if self._idle["renew"] or self._idle["expire"]:
            self._loop.call_soon_threadsafe(self._wake)

    async def stop(self) -> None:
        """Sign the worker off and end the thread."""
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
        self._bells = {"renew": asyncio.Event(), "expire": asyncio.Event()}
        self._started.set()
        tasks = [asyncio.create_task(self._repeat(duty)) for duty in (self._expire_forever, self._serve)]
        await self._stop.wait()
        for task in (*tasks, *self._alone):
            task.cancel()
        await asyncio.wait([*tasks, *self._alone])

    async def _repeat(self, duty: Callable[[], Awaitable[None]]) -> None:
        pause = Pause()
        while True:
            try:
                await duty()
            except Exception as error:  # noqa: BLE001 - the heart beats on
                self._report(error)
                await asyncio.sleep(pause.next_s())

    async def _serve(self) -> None:
        store = await self._connect()
        unlisten = store.listen(self._hear, _CANCELED)
        # What was canceled before we listened.
        self._look_at([Signal(Hint.CANCELED)])
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew_forever(store))
                group.create_task(self._beat_forever(store))
                group.create_task(self._repeat(partial(self._lead_forever, store)))
        finally:
            unlisten()
            await self._sign_off(store)

    async def _connect(self) -> Store:
        pause = Pause()
        while True:
            try:
                return await self._origin.sibling()
            except Exception as error:  # noqa: BLE001 - the heart beats on
                self._report(error)
            await asyncio.sleep(pause.next_s())

    # Renewals and cancels

    async def _renew_forever(self, store: Store) -> None:
        pause = Pause(self._lease_s / 6)
        while True:
            self._bells["renew"].clear()
            due = self._due(boot_time())
            # A renewal can hang: something must watch for the end of the lease meanwhile.
            self._bells["expire"].set()
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
            except Exception as error:  # noqa: BLE001 - the heart beats on
                self._report(error)
                await asyncio.sleep(pause.next_s())

    def _due(self, now: float) -> list[ActiveJob]:
        held = self._held.copy()
        due = [one for one in held if one.renew_at <= now < one.give_up_at]
        if self._verify and self._verify_at <= now:
            signals, self._verify = self._verify, []
            self._verify_at = now + VERIFY_EVERY_S
            due += [one for one in held if one.renew_at > now and any(_concerns(s, one) for s in signals)]
        return due

    def _next_renewal(self) -> float | None:
        now = boot_time()
        moments = [one.renew_at if now < one.give_up_at else one.until for one in self._held.copy()]
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
            # Another transaction may lock one of them: it must not hold up the others.
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

    def _renew_alone(self, store: Store, held: list[ActiveJob]) -> None:
        """Renew what an open transaction may hold, of its handler or of others: the rest must not wait for it."""
        for one in held:
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
                # Its transaction has committed. Whatever the handler still does, the lease does not matter any more.
                one.until = one.renew_at = math.inf
            else:
                self._lost(one, answer)
        except Exception as error:  # noqa: BLE001 - its transaction is open; if that is for too long, the lease runs out
            _log.debug("a lease was not renewed", error=str(error))

    def _hear(self, signal: Signal) -> None:
        # First this: a job that is added meanwhile is noticed here or by `kick`.
        self._heard.pop(_whose(signal), None)
        self._heard[_whose(signal)] = boot_time()
        if len(self._heard) > HEARD:
            del self._heard[next(iter(self._heard))]
        if any(_concerns(signal, one) for one in self._held.copy()):
            self._look_at([signal])

    def _was_canceled(self, one: ActiveJob, sent: float) -> bool:
        """Whether a cancel of this job may have been heard of since `sent`. From the worker's thread."""
        return any(self._heard.get(key, -math.inf) >= sent for key in (one.key, _ANY))

    def _look_at(self, signals: list[Signal]) -> None:
        self._verify += signals
        self._bells["renew"].set()

    # The end of belief

    async def _expire_forever(self) -> None:
        while True:
            self._bells["expire"].clear()
            now = boot_time()
            for one in self._held.copy():
                if one.until <= now:
                    self._lost(one, LeaseExpired(one.key.queue, one.key.id))
            await self._sleep("expire", min((one.until for one in self._held.copy()), default=None))

    def _lost(self, held: ActiveJob, refusal: Refusal) -> None:
        self._held.discard(held)
        # Here and not in the worker's loop: a thread must learn of it even while that loop is blocked.
        context = held.context
        if context is not None:
            context.canceled.set()
        self.call_in_loop(self._on_lost, held, refusal)

    # Schedules and flows

    async def _lead_forever(self, store: Store) -> None:
        """Here a handler cannot block it, as in the worker's own loop: their leases would run out one by one."""
        if self._lead is None:
            await asyncio.Event().wait()
        else:
            await self._lead(store)

    # The registry of workers

    async def _beat_forever(self, store: Store) -> None:
        while True:
            info = self._describe()
            try:
                await store.beat(info, BEAT_TTL_MS)
            except Exception as error:  # noqa: BLE001 - the heart beats on
                self._report(error)
            # Sooner where the number of jobs has changed, so that `workers` agrees with the metrics.
            end = boot_time() + BEAT_EVERY_S
            while boot_time() < end:
                await asyncio.sleep(CHANGED_EVERY_S)
                if len(self._held) != info.held:
                    break

    async def _sign_off(self, store: Store) -> None:
        try:
            async with asyncio.timeout(SIGN_OFF_S):
                await store.beat(self._describe(), 0)
        except Exception:  # noqa: BLE001 - the registry forgets us by itself
            _log.debug("could not sign off")
        finally:
            if store is not self._origin:
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(SIGN_OFF_S):
                        await store.close()

    # Sleeping and waking

    async def _sleep(self, duty: str, until: float | None) -> None:
        """Sleep until the bell of this duty or the moment; with neither in sight, until the next `kick`."""
        if until is None:
            self._idle[duty] = True
            if not self._held:
                await self._bells[duty].wait()
            self._idle[duty] = False
            return
        try:
            async with asyncio.timeout(min(LOOK_S, max(0.0, until - boot_time()))):
                await self._bells[duty].wait()
        except TimeoutError:
            pass

    def _wake(self) -> None:
        for bell in self._bells.values():
            bell.set()

    def _report(self, error: Exception) -> None:
        if not isinstance(error, (StoreError, *AWAY)):
            _log.exception("the heartbeat failed")
        self.call_in_loop(self._on_error, error)

    def call_in_loop(self, call: Callable[..., object], *args: object) -> None:
        """Call something in the worker's event loop."""
        # The worker's loop can be closed while it was killed in the middle.
        with contextlib.suppress(RuntimeError):
            self._home.call_soon_threadsafe(call, *args)


def _whose(signal: Signal) -> tuple[str, str, str]:
    named = signal.tenant and signal.queue and signal.id
    return (signal.tenant, signal.queue, signal.id) if named else _ANY


def _concerns(signal: Signal, held: ActiveJob) -> bool:
    tenant, queue, id_ = held.key
    return signal.id in ("", id_) and signal.queue in ("", queue) and signal.tenant in ("", tenant)
