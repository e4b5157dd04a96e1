"""Lists of jobs, from the indexes of a lane: in order of claims, deadlines and ends, or by time. [TENANT-2]

A page is read a part at a time, each in a transaction of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from heapq import merge

from holdfast.core.codes import STATE_CODES
from holdfast.core.errors import InvalidOption
from holdfast.core.job import TERMINAL, WAITING, Job, JobKey, JobState
from holdfast.core.listing import GROWTH, ListQuery, cursor_text
from holdfast.store import Page
from holdfast.stores.foundationdb.awaiting import together
from holdfast.stores.foundationdb.keyspace import Bounds, pack, span, unpack
from holdfast.stores.foundationdb.reads import shown
from holdfast.stores.foundationdb.transactions import Transactions
from holdfast.stores.foundationdb.unit_of_work import Work

READ_LIMIT = 500
"""The most jobs that one transaction reads."""

Found = tuple[tuple[int, ...], str]
"""The place of a job in its list, and its id."""
_PARTS = (WAITING, frozenset({JobState.LEASED}), TERMINAL)
"""The three parts of a list in order, each with an order of its own."""
_NUMBERS = (3, 2, 2)
"""How many numbers a place has, by part."""


async def list_jobs(transactions: Transactions, query: ListQuery) -> Page:
    """A page of one queue's jobs."""
    jobs: list[Job] = []
    cursor = query.cursor
    scanned = now = 0
    walk = _newest(transactions, query) if query.newest else _in_order(transactions, query)
    async for now, part in walk:
        for place, job in part:
            scanned += 1
            if job is not None and query.matches(job, now):
                if len(jobs) == query.limit:
                    return Page(jobs, cursor, now)
                jobs.append(job)
                cursor = place
            elif scanned >= query.scan:
                return Page(jobs, place, now)
    return Page(jobs, None, now)


Part = tuple[int, list[tuple[str, Job | None]]]


async def _in_order(transactions: Transactions, query: ListQuery) -> AsyncIterator[Part]:
    """The jobs of a lane after the cursor, in parts, each job with its own cursor."""
    start, after = _parse_cursor(query.cursor)
    now = 0
    for number, states in enumerate(_PARTS):
        if number < start or not query.states & states:
            continue
        place = after if number == start else ()
        count, more = query.limit + 1, True
        while more:
            count = min(count, READ_LIMIT)
            wanted = query.states & states
            (now, found, jobs), count = await transactions.read_some(
                lambda work, count: _read(work, query, number, wanted, place, count),  # noqa: B023 - awaited at once
                count,
            )
            more = len(found) == count
            yield now, [(f"{number}.{'.'.join(map(str, at))}", job) for (at, _), job in zip(found, jobs, strict=True)]
            if found:
                place = found[-1][0]
            count *= GROWTH
    if not now:
        yield await transactions.read(_now), []


async def _now(work: Work) -> int:
    return work.now


async def _read(
    work: Work, query: ListQuery, number: int, states: frozenset[JobState], place: tuple[int, ...], count: int
) -> tuple[int, list[Found], list[Job | None]]:
    reads: list[tuple[bytes, Bounds]] = []
    for prefix in _prefixes(work, query, number, states):
        begin, end = span(prefix)
        reads.append((prefix, (prefix + pack(*place) + b"\xff" if place else begin, end)))
    found = list(merge(*await together(*(_scan(work, *read, count) for read in reads))))[:count]
    return work.now, found, await shown(work, [JobKey(query.tenant, query.queue, id_) for _, id_ in found])


def _prefixes(work: Work, query: ListQuery, number: int, states: frozenset[JobState]) -> Sequence[bytes]:
    keys, lane = work.keys, (query.tenant, query.queue)
    if number == 0:
        return (keys.waiting(*lane),)
    if number == 1:
        return (keys.leased(*lane),)
    return [keys.ended(*lane, STATE_CODES[state]) for state in sorted(states)]


async def _scan(work: Work, prefix: bytes, bounds: Bounds, count: int, *, reverse: bool = False) -> list[Found]:
    rows = await work.tr.get_range(*bounds, limit=count, reverse=reverse, snapshot=True)
    parts = (unpack(key, len(prefix)) for key, _ in rows)
    return [(tuple(numbers), id_) for *numbers, id_ in parts]


async def _newest(transactions: Transactions, query: ListQuery) -> AsyncIterator[Part]:
    """The jobs of a lane by time, the latest first, in parts, each job with its own cursor."""
    place = query.before()
    count, more = query.limit + 1, True
    while more:
        count = min(count, READ_LIMIT)
        (now, found, jobs), count = await transactions.read_some(
            lambda work, count: _read_back(work, query, place, count),  # noqa: B023 - awaited at once
            count,
        )
        more = len(found) == count
        yield now, [(cursor_text((at[0], at[1])), job) for (at, _), job in zip(found, jobs, strict=True)]
        if found:
            place = (found[-1][0][0], found[-1][0][1])
        count *= GROWTH


async def _read_back(
    work: Work, query: ListQuery, place: tuple[int, int], count: int
) -> tuple[int, list[Found], list[Job | None]]:
    prefixes: list[bytes] = []
    for number, states in enumerate(_PARTS):
        wanted = query.states & states
        if wanted:
            found = _prefixes(work, query, number, wanted)
            prefixes += [prefix + pack(rank) for prefix in found for rank in range(10)] if number == 0 else found
    reads = [(prefix, (prefix + pack(max(0, query.since or 0)), prefix + pack(*place))) for prefix in prefixes]
    parts = await together(*(_scan(work, *read, count, reverse=True) for read in reads))
    found = list(merge(*parts, reverse=True))[:count]
    return work.now, found, await shown(work, [JobKey(query.tenant, query.queue, id_) for _, id_ in found])


def _parse_cursor(cursor: str | None) -> tuple[int, tuple[int, ...]]:
    if cursor is None:
        return 0, ()
    numbers = cursor.split(".")
    if all(one.isascii() and one.isdigit() and len(one) <= 19 for one in numbers):  # noqa: PLR2004 - below 2^64
        number, *place = map(int, numbers)
        if number < len(_PARTS) and len(place) == _NUMBERS[number]:
            return number, tuple(place)
    raise InvalidOption("cursor", f"{cursor!r} did not come from a list")
