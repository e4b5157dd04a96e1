"""Bugs in the keys of the FoundationDB store: what is written where, and what is read by snapshot."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core.job import Job
from tests.mutants.planting import FDB, Bug, Planted, mutant


@mutant("CLAIM-2", stores=FDB)
def future_jobs_hide_ready_ones(bug: Bug) -> None:
    """A claim stops at the first job that is not due, instead of going on with the next priority."""

    async def read(original: Planted, lane: Any, count: int) -> None:
        await original(lane, count)
        lane.is_read = lane.is_read or lane.next_due is not None

    bug.around(bug.fdb("lanes").LaneJobs, "_read", read)


@mutant("CLAIM-5", stores=FDB)
def claims_ignore_a_pause(bug: Bug) -> None:
    """A claim takes every lane for one that is not paused."""

    def init(original: Planted, lane: Any, *args: Any, **_: Any) -> None:
        original(lane, *args, paused=False)

    bug.around(bug.fdb("lanes").LaneJobs, "__init__", init)


@mutant("TENANT-4", stores=FDB)
def later_jobs_get_no_pointer(bug: Bug) -> None:
    """A lane that has only jobs that come due later is not found when they do."""
    bug.around(bug.fdb("lanes"), "set_later", lambda *_: None)


@mutant("TENANT-4", stores=FDB)
def a_turn_costs_nothing(bug: Bug) -> None:
    """The tenant whose turn it was is next again."""
    bug.around(bug.fdb("settings"), "cost", lambda *_: 0)


@mutant("TENANT-5", stores=FDB)
def a_batch_counts_once_for_a_quota(bug: Bug) -> None:
    """The jobs of one call are judged by the number that waited before it."""
    bug.around(bug.fdb("changes")._QuotaCounts, "count", lambda *_: None)


@mutant("LEASE-3", "LEASE-2", stores=FDB)
def an_extended_lease_keeps_its_place(bug: Bug) -> None:
    """The reaper ends a lease at its first deadline."""

    def write(original: Planted, work: Any, record: Any) -> None:
        indexes = dict(record.indexes)
        original(work, record)
        if record.job is not None and record.job.deadline and len(indexes) == len(record.indexes) > 1:
            for key in record.indexes.keys() - indexes:
                work.tr.clear(key)
            for key, value in indexes.items():
                work.tr.set(key, value)
            record.indexes = indexes

    bug.around(bug.fdb("unit_of_work").Work, "_write", write)


@mutant("KEEP-1", stores=FDB)
def ended_jobs_are_not_marked(bug: Bug) -> None:
    """What has ended is never looked for when its retention is over."""
    bug.around(bug.fdb("keyspace").Keyspace, "retention_bucket", lambda original, keys, *_: keys.meta_of("lost"))


@mutant("ENQ-1", stores=FDB)
def only_the_first_piece_of_a_payload_is_read(bug: Bug) -> None:
    """A large payload comes back cut."""

    async def fill(original: Planted, work: Any, job: Job) -> None:
        await original(work, job)
        piece: int = bug.fdb("records").PIECE
        job.envelope = replace(job.envelope, payload=job.envelope.payload[:piece])

    bug.around(bug.fdb("unit_of_work").Work, "_fill", fill)


@mutant("EVENT-2", stores=FDB)
def a_rewritten_entry_numbers_its_events_anew(bug: Bug) -> None:
    """Events that are kept get other offsets when those before them in their entry are trimmed."""

    def pack(original: Planted, entry: Any) -> bytes:
        packed: bytes = original(replace(entry, places=list(range(1, entry.count + 1))))
        return packed

    bug.around(bug.fdb("entries"), "pack_entry", pack)


@mutant("EVENT-2", stores=FDB)
def trimming_forgets_the_readers(bug: Bug) -> None:
    """Events are trimmed that a registered reader has yet to read."""

    async def slowest(*_: Any) -> bytes:
        return b"\xff" * 12

    bug.around(bug.fdb("trimming")._Pass, "_slowest_reader", slowest)


@mutant("EVENT-2", stores=FDB)
def a_trimmed_tenant_gets_no_gap(bug: Bug) -> None:
    """It is not recorded up to where a tenant's events are gone."""

    async def finish(original: Planted, trimming: Any) -> int:
        trimming._cuts = {}
        gone: int = await original(trimming)
        return gone

    bug.around(bug.fdb("trimming")._Pass, "_finish", finish)


@mutant("LEASE-5", "CLAIM-1", stores=FDB)
def tokens_do_not_grow(bug: Bug) -> None:
    """The leases of one claim have the same token."""

    async def take(original: Planted, *args: Any) -> list[int]:
        found: list[int] = list(await original(*args))
        return found[:1] * len(found)

    bug.around(bug.fdb("numbers").LeaseTokens, "take", take)


@mutant("LEASE-5", "CLAIM-1", stores=FDB)
def two_handles_take_one_block(bug: Bug) -> None:
    """Blocks begin right behind the last token of a job, wherever the counter is."""

    def block(original: Planted, _counter: int, _version: int, count: int, above: int) -> range:
        found: range = original(0, 0, count, above)
        return found

    bug.around(bug.fdb("numbers"), "block", block)


@mutant("LEASE-5", stores=FDB)
def a_handle_goes_on_with_its_block(bug: Bug) -> None:
    """Its tokens may be smaller than those that other handles gave the same job."""

    async def take(original: Planted, tokens: Any, count: int, _above: int) -> range:
        found: range = await original(tokens, count, 0)
        return found

    bug.around(bug.fdb("numbers").LeaseTokens, "take", take)


@mutant("LEASE-5", stores=FDB)
def the_tokens_of_forgotten_jobs_are_forgotten(bug: Bug) -> None:
    """A new life of an id may get a smaller token than the life before it."""

    def forget(original: Planted, work: Any, job: Job) -> None:
        token, job.token = job.token, 0
        original(work, job)
        job.token = token

    bug.around(bug.fdb("unit_of_work").Work, "forget", forget)


@mutant("CLAIM-3", "CANCEL-2", "RESULT-2", stores=FDB)
def hints_are_read_but_not_passed_on(bug: Bug) -> None:
    """A change wakes the handle, and it tells no listener of it."""
    bug.around(bug.fdb("notifications"), "_signals_of", lambda *_: [])


@mutant("ENQ-7", stores=FDB)
def a_joined_call_commits_by_itself(bug: Bug) -> None:
    """An enqueue that joins the caller's transaction is made in one of its own."""

    async def join(original: Planted, transactions: Any, connection: Any, body: Any) -> Any:
        return await transactions.change(body)

    bug.around(bug.fdb("joining"), "join", join)


@mutant("ENQ-3", stores=FDB)
def keys_are_never_released(bug: Bug) -> None:
    """A key that is held until its job ends is held for ever."""

    async def release(*_: Any) -> None:
        return None

    bug.around(bug.fdb("unit_of_work").Work, "release_keys", release)
