"""One run of a worker: claims as far as it has room, runs, acknowledges, and leaves nothing behind.

Claims and acknowledgements go on beside each other, so that a store can commit them together. Everything here
belongs to one event loop; only the heartbeat has a thread of its own, and hands over by `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections import deque
from typing import TYPE_CHECKING

from holdfast.claims import Claimer, pause_s
from holdfast.core.errors import JobCanceled, StoreError
from holdfast.core.failpoint import hit
from holdfast.core.job import ClaimRequest, Finished, JobState
from holdfast.maintenance import Maintenance
from holdfast.maintenance.backoff import AWAY, Pause
from holdfast.store import WorkerInfo
from holdfast.telemetry import metrics
from holdfast.telemetry.logging import get_logger
from holdfast.worker import outcome
from holdfast.worker.acks import Acknowledger
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.held import Held
from holdfast.worker.progress import Reporter
from holdfast.worker.runner import Runner

if TYPE_CHECKING:
    from holdfast.core.job import Claimed, Finish, Job
    from holdfast.core.lease import Refusal
    from holdfast.store import FinishAnswer, Store
    from holdfast.worker.callbacks import Callbacks, EventName
    from holdfast.worker.handlers import Handler
    from holdfast.worker.settings import Settings

ACK_BACKLOG = 10_000
"""No more is claimed while so many outcomes wait for a store that does not take them."""
PREFETCH_S = 0.25
"""Claimed ahead is at most what runs in that time: a job is not to wait here while another worker is free."""
END_S = 2.0
"""How long a handler that was told to end may take for it."""
HURRY_S = 1.0

_EVENT_OF: dict[JobState, EventName] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.RETRYING: "retrying",
}

_log = get_logger(__name__)


class Loop:
    """The state of one run. `stop()` ends it gently, `hurry()` at once."""

    def __init__(self, store: Store, settings: Settings, handlers: dict[str, Handler], callbacks: Callbacks) -> None:
        self._store = store
        self._settings = settings
        self._callbacks = callbacks
        self._loop = asyncio.get_running_loop()
        self._held: set[Held] = set()
        self._ahead: deque[Held] = deque()
        self._queues = settings.queues
        self._stopping = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._all_free = asyncio.Event()
        self._room_bell: asyncio.Future[None] | None = None
        self._ended = 0
        self._prefetch = 0 if settings.prefetch is None else settings.prefetch
        self._fatal: BaseException | None = None
        self._claimer = Claimer(store)
        self._acks = Acknowledger(store, self._settled, self._error)
        self._reporter = Reporter(store, self._lost, self._error)
        self._runner = Runner(
            handlers, settings.concurrency, settings.codec, settings.blobs,
            self._acks.add, self._freed, self._reporter.add,
        )  # fmt: skip
        self._heartbeat = Heartbeat(
            store, self._held, settings.lease_ms, self._describe,
            lambda held, refusal: self._hand_over(self._lost, held, refusal),
            lambda error: self._hand_over(self._error, error),
        )  # fmt: skip
