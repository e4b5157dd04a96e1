"""What a check uses: a store under test, unique names, and short methods for common calls.

Other runs may share the server, so every name is unique and a check assumes nothing about jobs that it did not make.
`advance` moves the store clock. A running clock also moves by itself, so a check of exact instants uses `frozen`.
"""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from holdfast.core.events import Event
from holdfast.core.job import (
    HOUR,
    SECOND,
    TERMINAL,
    AttemptError,
    Backoff,
    Cancel,
    CancelStatus,
    Claimed,
    ClaimRequest,
    Envelope,
    Extend,
    Finish,
    Finished,
    Job,
    JobKey,
    JobState,
    NewJob,
    Outcome,
    Progress,
    Purge,
    PurgeStatus,
    Queued,
    Report,
    Result,
    SetResultTtl,
    TtlStatus,
)
from holdfast.opening import open_store
from holdfast.store import (
    Capabilities,
    EnqueueAnswer,
    ExtendAnswer,
    FinishAnswer,
    Hint,
    ListQuery,
    QueueStats,
    ReplayAnswer,
    ReportAnswer,
    Signal,
    Store,
)
from holdfast.testing.conformance.expect import Broken, Skipped, expect, expect_a, expect_equal, expect_some
from holdfast.testing.conformance.spaces import Spaces

LEASE = 30 * SECOND
DELAY = 10 * SECOND
FLAT = Backoff(base_ms=DELAY, factor=1.0, cap_ms=DELAY, jitter="none")
"""The default backoff of checks. It is not random, and long enough that a check on a busy machine still reads the
record before the delay is over."""
BOOM = AttemptError("Boom", "it broke", "a traceback")
PATIENCE_S = 10.0
"""How long a hint may take to arrive before it counts as lost."""

Transaction = Callable[[], AbstractAsyncContextManager[Any]]
"""Opens a caller's transaction on the server of the store. An exception rolls it back. [ENQ-7]"""


class Harness:
    """A store under test, and names that no other check uses."""

    def __init__(self, spaces: Spaces, store: Store, url: str, transaction: Transaction | None = None) -> None:
        self.spaces = spaces
        self.store = store
        self.url = url
        self.transaction = transaction
        self._unique = uuid.uuid4().hex[:10]
        self._names = 0
        self._stack = AsyncExitStack()
        self._start = ""
        self.tenant = f"t{self._unique}"
        self.other = f"u{self._unique}"
        self.queue = f"q{self._unique}"

    @property
    def capabilities(self) -> Capabilities:
        """What the store declares."""
        return self.store.capabilities

    @property
    def exact_turns(self) -> bool:
        """Whether turns between tenants must be exact: over the whole store, or within this process."""
        return self.capabilities.exact_turns or self.spaces.exact

    @property
    def exact_quota(self) -> bool:
        """Whether a quota is exact: for every enqueue, or for those that join no transaction."""
        return self.capabilities.exact_quota or self.spaces.exact

    def name(self, stem: str = "n") -> str:
        """A name that is not used yet."""
        self._names += 1
        return f"{stem}{self._unique}{self._names}"

    # The store and its clock ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin without expired leases of other checks, and remember the end of the log."""
        await self.reap_all()
        self._start = await self.store.last_offset()

    async def reap_all(self, store: Store | None = None) -> None:
        """End every expired lease, also those that other checks left over."""
        while (await (store or self.store).reap(1000, 0.0)).jobs:
            pass

    async def close(self) -> None:
        """Close every handle that was opened here."""
        await self._stack.aclose()
        await self.store.close()

    async def reopen(self) -> None:
        """Close the store and open it again, as after a restart of the process."""
        await self.store.close()
        del self.store
        gc.collect()  # Frees what it kept in the process.
        self.store = await open_store(self.url)

    async def handles(self, count: int) -> list[Store]:
        """More handles on the same data: siblings and newly opened stores, alternately."""
        opened: list[Store] = []
        for number in range(count):
            store = await (open_store(self.url) if number % 2 else self.store.sibling())
            self._stack.push_async_callback(store.close)
            opened.append(store)
        return opened

    @asynccontextmanager
    async def frozen(self, **options: str) -> AsyncGenerator[Harness]:
        """A harness on a space of its own, whose clock only `advance` moves."""
        async with opened(self.spaces, self.name("f"), None, test_clock="frozen", **options) as other:
            yield other

    async def now(self) -> int:
        """The store's clock."""
        return await self.store.now()

    async def advance(self, ms: int) -> None:
        """Let time pass."""
        await self.store.shift_clock(ms)

    def begin(self) -> AbstractAsyncContextManager[Any]:
        """Open a caller's transaction. Raises Skipped if the store cannot join it. [ENQ-7]"""
        if not self.capabilities.transactional_enqueue:
            raise Skipped("the store cannot join a caller's transaction")
        if self.transaction is None:
            raise Broken("the store says it can join a transaction: run the suite with transaction=")
        return self.transaction()

    # Enqueue --------------------------------------------------------------------------------------------------

    def key(self, id: str = "job", *, queue: str | None = None, tenant: str | None = None) -> JobKey:
        """The address of a job in the queue of this check."""
        return JobKey(tenant or self.tenant, queue or self.queue, id)

    def new(
        self,
        id: str = "job",
        *,
        queue: str | None = None,
        tenant: str | None = None,
        delay_ms: int = 0,
        run_at: int | None = None,
        replace_failed: bool = False,
        type: str = "conformance",
        payload: bytes = b"{}",
        backoff: Backoff = FLAT,
        **fields: Any,
    ) -> NewJob:
        """An enqueue; `fields` are those of the envelope."""
        envelope = Envelope(type, payload, backoff=backoff, **fields)
        return NewJob(self.key(id, queue=queue, tenant=tenant), envelope, delay_ms, run_at, replace_failed)

    async def enqueue(self, id: str = "job", **fields: Any) -> EnqueueAnswer:
        """Enqueue one job and return its answer."""
        answers = await self.store.enqueue([self.new(id, **fields)])
        expect_equal(len(answers), 1, "answers to an enqueue of one")
        return answers[0]

    async def queued(self, *ids: str, **fields: Any) -> None:
        """Enqueue jobs in one batch, each of which must be new."""
        answers = await self.store.enqueue([self.new(id, **fields) for id in ids])
        for id, answer in zip(ids, answers, strict=True):
            expect_equal(expect_a(answer, Queued, f"enqueue of {id!r}").id, id, "id of a queued job")

    # Claim ----------------------------------------------------------------------------------------------------

    async def claim_page(
        self,
        limit: int = 1,
        *,
        queue: str | Sequence[str] | None = None,
        tenant: str | None = "",
        lease_ms: int = LEASE,
        worker: str = "worker-1",
        random: float = 0.0,
        store: Store | None = None,
    ) -> Claimed:
        """Claim, and return the whole answer. `tenant` None serves all tenants."""
        queues = (queue or self.queue,) if queue is None or isinstance(queue, str) else tuple(queue)
        whose = self.tenant if tenant == "" else tenant
        request = ClaimRequest(whose, queues, limit, lease_ms, worker, random)
        return await (store or self.store).claim(request)

    async def claim(self, limit: int = 1, **options: Any) -> list[Job]:
        """Claim up to `limit` jobs."""
        return (await self.claim_page(limit, **options)).jobs

    async def claim_one(self, id: str | None = None, **options: Any) -> Job:
        """Claim one job, which must exist, and be `id` if that is given."""
        jobs = await self.claim(1, **options)
        expect_equal(len(jobs), 1, "jobs that a claim of one got")
        if id is not None:
            expect_equal(jobs[0].id, id, "the job that a claim got")
        return jobs[0]

    async def claim_none(self, limit: int = 10, **options: Any) -> None:
        """Claim, and expect no job."""
        expect_equal([job.id for job in await self.claim(limit, **options)], [], "jobs that a claim got")

    async def leased(self, id: str = "job", *, lease_ms: int = LEASE, **fields: Any) -> Job:
        """A new job, leased, in a queue of its own unless one is named."""
        fields.setdefault("queue", self.name("q"))
        await self.queued(id, **fields)
        tenant = fields.get("tenant", self.tenant)
        return await self.claim_one(id, queue=fields["queue"], tenant=tenant, lease_ms=lease_ms)

    # Acknowledge ----------------------------------------------------------------------------------------------

    async def finish(self, job: Job, outcome: Outcome, *, token: int | None = None, **fields: Any) -> FinishAnswer:
        """Acknowledge with the job's own token, unless another is named."""
        item = Finish(job.key, job.token if token is None else token, outcome, **fields)
        return (await self.store.finish([item]))[0]

    async def complete(self, job: Job, data: bytes = b"null") -> FinishAnswer:
        """Complete with a result."""
        return await self.finish(job, "complete", result=Result(data))

    async def fail(self, job: Job, error: AttemptError = BOOM) -> FinishAnswer:
        """Fail permanently."""
        return await self.finish(job, "fail", error=error)

    async def retry(self, job: Job, error: AttemptError = BOOM, **fields: Any) -> FinishAnswer:
        """Fail this attempt."""
        return await self.finish(job, "retry", error=error, **fields)

    async def release(self, job: Job, **fields: Any) -> FinishAnswer:
        """Release the job."""
        return await self.finish(job, "release", **fields)

    async def extend(self, job: Job, lease_ms: int = LEASE, *, token: int | None = None) -> ExtendAnswer:
        """Extend a lease."""
        item = Extend(job.key, job.token if token is None else token, lease_ms)
        return (await self.store.extend([item]))[0]

    async def report(self, job: Job, fraction: float = 0.5, *, token: int | None = None) -> ReportAnswer:
        """Report progress."""
        item = Report(job.key, job.token if token is None else token, Progress(fraction, "on the way"))
        return (await self.store.report([item]))[0]

    async def cancel(self, key: JobKey, *, only_waiting: bool = False) -> CancelStatus:
        """Cancel one job."""
        return (await self.store.cancel([Cancel(key, only_waiting)]))[0]

    async def replay(self, key: JobKey) -> ReplayAnswer:
        """Replay one dead letter."""
        return (await self.store.replay([key]))[0]

    async def purge(self, key: JobKey, finished_at: int | None = None) -> PurgeStatus:
        """Purge one job."""
        return (await self.store.purge([Purge(key, finished_at)]))[0]

    async def set_result_ttl(self, key: JobKey, ttl_ms: int) -> TtlStatus:
        """Change how long one job is kept."""
        return (await self.store.set_result_ttl([SetResultTtl(key, ttl_ms)]))[0]

    # Look -----------------------------------------------------------------------------------------------------

    async def find(self, key: JobKey) -> Job | None:
        """The record, if there is one."""
        return (await self.store.get([key]))[0]

    async def get(self, key: JobKey) -> Job:
        """The record, which must exist."""
        return expect_some(await self.find(key), f"the record of {key}")

    async def expect_state(self, key: JobKey, state: JobState, why: str = "") -> None:
        """The job must be in this state."""
        expect_equal((await self.get(key)).state, state, f"state of {key.id!r} {why}".strip())

    async def list_ids(self, *states: JobState, **query: Any) -> list[str]:
        """The ids of one page of the queue, in order."""
        query.setdefault("queue", self.queue)
        wanted = frozenset(states or JobState)
        return [job.id for job in (await self.store.list(ListQuery(self.tenant, states=wanted, **query))).jobs]

    async def stats(self, queue: str | None = None, tenant: str | None = None) -> QueueStats:
        """The counts of one queue."""
        found = await self.store.stats(tenant or self.tenant, [queue or self.queue])
        expect_equal([stats.queue for stats in found], [queue or self.queue], "queues in stats")
        return found[0]

    async def job_in(self, state: JobState, **fields: Any) -> Job:
        """Bring a new job into this state, in a queue of its own. Returns its record."""
        queue = self.name("q")
        if state is JobState.SCHEDULED:
            await self.queued("job", queue=queue, **{"delay_ms": HOUR, **fields})
        elif state is JobState.READY:
            await self.queued("job", queue=queue, **fields)
        elif state is JobState.LEASED:
            await self.leased(queue=queue, **fields)
        elif state is JobState.CANCELED:
            await self.leased(queue=queue, **fields)
            expect_equal(await self.cancel(self.key(queue=queue)), "canceled", "cancel of a running job")
        else:
            job = await self.leased(queue=queue, **fields)
            outcome: Outcome = "retry"
            if state in TERMINAL:
                outcome = "complete" if state is JobState.COMPLETED else "fail"
            error = None if outcome == "complete" else BOOM
            self.accepted(await self.finish(job, outcome, result=Result(b'"done"'), error=error), state)
        job = await self.get(self.key(queue=queue))
        expect_equal(job.state, state, "state that a job was brought into")
        return job

    def accepted(self, answer: FinishAnswer, state: JobState | None = None) -> None:
        """Expect that an acknowledgement was accepted, and led to this state."""
        finished = expect_a(answer, Finished, "answer to an acknowledgement")
        if state is not None:
            expect_equal(finished.state, state, "state after an acknowledgement")

    # Events ---------------------------------------------------------------------------------------------------

    async def events(self, tenant: str | None = "", after: str | None = None, page: int = 500) -> list[Event]:
        """All events of a tenant (None: of all) after an offset, else since the check began."""
        whose = self.tenant if tenant == "" else tenant
        at = self._start if after is None else after
        found: list[Event] = []
        while True:
            answer = await self.store.events(whose, at, page)
            expect(len(answer.events) <= page, f"a page of {page} events has {len(answer.events)}")
            expect(not answer.more or answer.next != at, "a page of events says there are more, and does not move on")
            found += answer.events
            at = answer.next
            if not answer.more:
                return found

    async def history(self, key: JobKey) -> list[Event]:
        """The events of one job since the check began."""
        return [event for event in await self.events(key.tenant) if (event.queue, event.job_id) == key[1:]]

    async def kinds(self, key: JobKey) -> list[str]:
        """The kinds of events of one job, in order."""
        return [event.kind for event in await self.history(key)]

    @asynccontextmanager
    async def no_event(self, why: str, tenant: str | None = "") -> AsyncGenerator[None]:
        """Expect no new events of the tenant inside this block."""
        before = await self.store.last_offset()
        yield
        made = [(event.kind, event.job_id) for event in await self.events(tenant, after=before)]
        expect_equal(made, [], f"events made {why}")

    @contextmanager
    def listening(self, store: Store | None = None) -> Generator[HintRecorder]:
        """Record the hints of a store."""
        hints = HintRecorder()
        stop = (store or self.store).listen(hints.add)
        try:
            yield hints
        finally:
            stop()


class HintRecorder:
    """The hints received, and a way to wait for one."""

    def __init__(self) -> None:
        self.signals: list[Signal] = []
        self._added = asyncio.Event()

    def add(self, signal: Signal) -> None:
        """Note a hint."""
        self.signals.append(signal)
        self._added.set()

    async def expect(self, hint: Hint, key: JobKey, why: str, *, exactly: bool = False) -> None:
        """Wait for a hint that covers this job. An empty field covers any; with `exactly`, the queue must be named."""
        wanted = (key.tenant, key.queue, key.id)

        def covers(signal: Signal) -> bool:
            named = (signal.tenant, signal.queue, signal.id)
            return (
                signal.hint is hint
                and all(not part or part == want for part, want in zip(named, wanted, strict=True))
                and bool(signal.queue or not exactly)
            )

        try:
            async with asyncio.timeout(PATIENCE_S):
                while not any(covers(signal) for signal in self.signals):
                    self._added.clear()
                    await self._added.wait()
        except TimeoutError:
            raise Broken(f"no hint {hint.value!r} came {why}; got: {self.signals}") from None

    async def forget(self) -> None:
        """Forget the hints so far, and those in flight from earlier calls in this loop."""
        for _ in range(3):
            await asyncio.sleep(0)
        self.signals.clear()


@asynccontextmanager
async def opened(
    spaces: Spaces, place: str = "main", transaction: Transaction | None = None, **options: str
) -> AsyncGenerator[Harness]:
    """A harness on a space of this run, with its store open."""
    url = spaces.url(place, **({"test_clock": "1"} | options))
    harness = Harness(spaces, await open_store(url), url, transaction)
    try:
        await harness.start()
        yield harness
    finally:
        await harness.close()
