"""One store of a trace: translates a step into the values of this store, and its answer back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.errors import EventsTrimmed, HoldfastError
from holdfast.core.events import Event
from holdfast.core.job import Claimed, Envelope, Extend, Finish, Job, JobKey, NewJob, Purge, Report
from holdfast.opening import open_store
from holdfast.store import ListQuery, Reader, Store
from holdfast.testing.conformance.expect import expect
from holdfast.testing.traces.steps import TraceStep

INSTANTS = frozenset({
    "at", "now", "next_at", "visible_at", "enqueued_at", "claimed_at", "finished_at", "expires_at", "deadline",
    "started_at", "seen_at", "oldest_ready_at", "first_released_at",
})  # fmt: skip
OWN = frozenset({"seq", "series", "next_at"})
"""Fields that stores choose: the numbers of jobs (lists and claims show their order), and a time that may be early."""
UNKNOWN = 10**12
"""Added to the rank of a lease that was never granted, to make a token that was never granted."""
PAGES = 10_000
"""More pages than any trace has: a store that returns more never ends."""


class Trimmed(Struct, frozen=True):
    """The events that are left when a read finds some trimmed. `lost`: the tenants that lost events; None: all."""

    rest: list[Event]
    lost: frozenset[str] | None


class Side:
    """A store with two handles, and the names of its instants, tokens and offsets in steps."""

    def __init__(self, name: str, url: str, handles: list[Store], start: int) -> None:
        self.name = name
        self.url = url
        self.log: list[Event] = []
        self._handles = handles
        self._start = start
        self._tokens: list[int] = []
        self._ranks: dict[int, int] = {0: 0}
        self._offsets: dict[int, str | None] = {0: None}
        self._positions: dict[str, int] = {}

    @classmethod
    async def open(cls, name: str, url: str) -> Side:
        """Open the store twice, as two processes would."""
        handles = [await open_store(url), await open_store(url)]
        side = cls(name, url, handles, await handles[0].now())
        side._note(await handles[0].last_offset())
        return side

    @property
    def store(self) -> Store:
        """The first handle."""
        return self._handles[0]

    async def close(self) -> None:
        """Close every handle."""
        for handle in self._handles:
            await handle.close()

    async def perform(self, step: TraceStep) -> Any:
        """The answer of this store to a step; an error is an answer too."""
        try:
            return await self._perform(step)
        except HoldfastError as error:
            return error

    async def _perform(self, step: TraceStep) -> Any:
        store = self._handles[step.handle]
        arguments = step.arguments
        match step.verb:
            case "claim":
                return self._granted(await store.claim(*arguments))
            case "list":
                return await self._list(store, *arguments)
            case "events":
                tenant, after, limit = arguments
                return await self._events(store, tenant, None if after is None else self._offsets[after], limit)
            case "advance":
                return await store.shift_clock(*arguments)
            case "pause":
                tenant, queue, paused = arguments
                return await store.pause(tenant, queue, paused=paused)
            case "set_reader":
                tenant, name, position = arguments
                return await store.set_reader(Reader(tenant, name, self._offsets[position] or ""))
            case "prune":
                return await self._prune(store, *arguments)
            case "mark":
                return self._note(await store.last_offset())
            case "reopen":
                await store.close()
                self._handles[step.handle] = await open_store(self.url)
                return None
            case verb:
                return await getattr(store, verb)(*(self._local(argument) for argument in arguments))

    def _local(self, value: Any) -> Any:
        """A part of a step, in the values of this store."""
        if isinstance(value, list):
            return [self._local(item) for item in cast("list[Any]", value)]
        if isinstance(value, NewJob) and value.run_at is not None:
            return replace(value, run_at=self._start + value.run_at)
        if isinstance(value, Purge) and value.finished_at is not None:
            return replace(value, finished_at=self._start + value.finished_at)
        if isinstance(value, Finish | Extend | Report):
            return replace(value, token=self._token(value.token))
        return value

    def _token(self, rank: int) -> int:
        if rank == 0:
            return 0
        return self._tokens[rank - 1] if rank <= len(self._tokens) else UNKNOWN + rank

    def _granted(self, claimed: Claimed) -> Claimed:
        for job in claimed.jobs:
            expect(job.token not in self._ranks, f"token {job.token} was granted before [CLAIM-1]")
            self._tokens.append(job.token)
            self._ranks[job.token] = len(self._tokens)
        return claimed

    async def _list(self, store: Store, query: ListQuery) -> list[Job]:
        jobs: list[Job] = []
        for _ in range(PAGES):
            page = await store.list(query)
            expect(len(page.jobs) <= query.limit, f"a page of {query.limit} jobs has {len(page.jobs)}")
            jobs += page.jobs
            if page.cursor is None:
                return jobs
            query = replace(query, cursor=page.cursor)
        raise AssertionError("a list that does not end")

    async def _events(self, store: Store, tenant: str | None, after: str | None, limit: int) -> list[Event] | Trimmed:
        try:
            found, lost = await self._walk(store, tenant, after, limit)
        except EventsTrimmed as gap:
            return Trimmed((await self._walk(store, tenant, gap.to, limit))[0], None)
        return Trimmed(found, frozenset(lost)) if lost else found

    async def _walk(
        self, store: Store, tenant: str | None, after: str | None, limit: int
    ) -> tuple[list[Event], set[str]]:
        found: list[Event] = []
        lost: set[str] = set()
        for _ in range(PAGES):
            page = await store.events(tenant, after, limit)
            expect(len(page.events) <= limit, f"a page of {limit} events has {len(page.events)}")
            found += page.events
            lost.update(gap.tenant for gap in page.gaps)
            after = page.next
            if not page.more:
                return found, lost
        raise AssertionError("a log that does not end")

    async def _prune(self, store: Store, limit: int) -> tuple[int, list[str]]:
        jobs, blobs = 0, list[str]()
        for _ in range(PAGES):
            pruned = await store.prune(limit)
            expect(pruned.jobs <= limit, f"prune({limit}) forgot {pruned.jobs} jobs")
            jobs += pruned.jobs
            blobs += pruned.blobs
            if not pruned.more:
                return jobs, sorted(blobs)
        raise AssertionError("a prune that does not end")

    # What the trace compares after each step -----------------------------------------------------------------

    async def new_events(self) -> list[Event]:
        """The events since the last call. [EVENT-2]"""
        end = len(self.log)
        fresh, _ = await self._walk(self.store, None, self._offsets[end], 100)
        for event in fresh:
            self.log.append(event)
            self._note(event.offset)
        return fresh

    async def get(self, keys: Sequence[JobKey], handle: int = 0) -> list[Job | None]:
        """These jobs."""
        return await self._handles[handle].get(keys)

    def known(self, position: int) -> bool:
        """Whether the offset at this position of the log is known."""
        return position in self._offsets

    def _note(self, offset: str) -> None:
        self._offsets[len(self.log)] = offset
        self._positions[offset] = len(self.log)
        # The file store leaves out the check value of an event that has been trimmed.
        self._positions[offset.partition(".")[0]] = len(self.log)

    # From this store's values to those of a step -------------------------------------------------------------

    def relative(self, at: int | None) -> int | None:
        """An instant, in milliseconds since the store was opened."""
        return None if not at else at - self._start

    def record(self, job: Job | None) -> Job | None:
        """A record in the values of a step."""
        if job is None:
            return None
        view = job.snapshot()
        view.token = self._ranks.get(job.token, UNKNOWN + job.token)
        view.finished_at = self.relative(job.finished_at)
        view.expires_at = self.relative(job.expires_at)
        view.visible_at = job.visible_at - self._start
        view.deadline = self.relative(job.deadline) or 0
        return view

    def comparable(self, value: Any, name: str = "") -> Any:
        """An answer in the values of a step, as plain values to compare."""
        if value is None or isinstance(value, bool | Envelope):
            return value
        if isinstance(value, str):
            return self._positions.get(value, value) if name == "offset" else value
        if isinstance(value, int):
            return self._number(value, name)
        if isinstance(value, Struct):
            names = (field for field in value.__struct_fields__ if field not in OWN)
            return {
                "": type(value).__name__,
                **{field: self.comparable(getattr(value, field), field) for field in names},
            }
        if isinstance(value, HoldfastError):
            return {"": type(value).__name__, "args": value.args}
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value).items()
            return {key: self.comparable(item, key) for key, item in fields if key not in OWN}
        if isinstance(value, list | tuple):
            return [self.comparable(item, name) for item in cast("Sequence[Any]", value)]
        return value

    def _number(self, value: int, name: str) -> int | None:
        if name in INSTANTS:
            return self.relative(value)
        return self._ranks.get(value, UNKNOWN + value) if name == "token" else value
