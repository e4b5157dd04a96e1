"""Bugs in the statements of the file store, and in the code between them."""

from __future__ import annotations

from typing import Any

from holdfast.core.codes import LEASED
from holdfast.core.job import Job
from tests.mutants.planting import Bug, Planted, mutant

FILE = ("file",)


@mutant("LEASE-1", stores=FILE)
def completion_without_the_token_check(bug: Bug) -> None:
    """A process completes a job that another process has leased since."""
    bug.sql("save_completed", "AND token = batch.value ->> 1", "")
    bug.sql("save_completed", "AND events = batch.value ->> 7", "")  # A new lease is also a new event.


@mutant("LEASE-1", stores=FILE)
def completion_without_the_deadline_check(bug: Bug) -> None:
    """A process completes a job past its deadline."""
    bug.sql("save_completed", "AND deadline > ?1", "")


@mutant("CANCEL-1", "LEASE-1", stores=FILE)
def completion_without_the_state_check(bug: Bug) -> None:
    """A process completes a job that another process has canceled or reaped."""
    bug.sql("save_completed", f"AND state = {LEASED}", "")
    bug.sql("save_completed", "AND deadline > ?1", "")


@mutant("CLAIM-1", "LEASE-5", stores=FILE)
def one_token_for_a_whole_claim(bug: Bug) -> None:
    """The jobs of one claim are written with the same token."""
    bug.sql("save_claimed", "?1 + batch.key", "?1")


@mutant("LEASE-5", "CLAIM-1", stores=FILE)
def token_counter_is_not_saved(bug: Bug) -> None:
    """The next transaction starts with the old token."""
    bug.sql("save_counters", "token = ?", "token = token + 0 * ?")


@mutant("ENQ-5", "CLAIM-2", stores=FILE)
def claim_ignores_visible_at(bug: Bug) -> None:
    """A tenant's claim returns jobs that are not due."""
    used_by = (bug.file("claims")._Picker, "_next")
    bug.query("VISIBLE", "AND visible_at <= ?2", "AND ?2 > 0", used_by=used_by)


@mutant("ENQ-2", stores=FILE)
def second_id_replaces_the_first(bug: Bug) -> None:
    """Two enqueues of one id are both queued; the second overwrites the first."""
    bug.sql("add_job", "INSERT INTO", "INSERT OR REPLACE INTO")
    bug.sql("add_job", "ON CONFLICT (lane, id) DO NOTHING", "")


@mutant("ENQ-6", "CLAIM-2", stores=FILE)
def large_payloads_stay_behind(bug: Bug) -> None:
    """The payload that does not fit in the row is not read with a claim."""

    def read_payload(*_: Any) -> None:
        return None

    bug.around(bug.file("transaction").Transaction, "read_payload", read_payload)


@mutant("STATE-1", stores=FILE)
def lane_counts_are_wrong(bug: Bug) -> None:
    """Leases are counted when they are granted, and never when they end."""
    bug.sql("move_lane", "leased = leased + ?", "leased = leased + max(0, ?)")


@mutant("STATE-1", "CANCEL-1", stores=FILE)
def canceled_jobs_are_not_counted(bug: Bug) -> None:
    """The stats never show a canceled job."""
    bug.sql("move_lane", "canceled = canceled + ?", "canceled = canceled + 0 * ?")


@mutant("STATE-1", "TENANT-5", stores=FILE)
def waiting_jobs_are_not_counted_down(bug: Bug) -> None:
    """A job that was claimed still counts as waiting."""
    bug.sql("move_lane", "waiting = waiting + ?", "waiting = waiting + max(0, ?)")


@mutant("RESULT-1", "KEEP-1", "STATE-1", stores=FILE)
def stats_count_forgotten_jobs(bug: Bug) -> None:
    """Jobs past their retention are counted until they are pruned."""
    bug.sql("expired_counts", "expires_at <= ?", "expires_at <= 0 * ?")


@mutant("TENANT-1", "TENANT-2", stores=FILE)
def stats_of_any_tenant(bug: Bug) -> None:
    """Counts are looked up by the name of the queue alone."""
    bug.sql("lane_counts", "WHERE tenant = ? AND queue = ?", "WHERE ?1 != '' AND queue = ?2 ORDER BY lane LIMIT 1")


@mutant("EVENT-3", stores=FILE)
def events_of_any_tenant(bug: Bug) -> None:
    """The stream of a tenant is read without its name."""

    def events(original: Planted, db: Any, _: str | None, *rest: Any) -> Any:
        return original(db, None, *rest)

    bug.around(bug.file("reads"), "events", events)


@mutant("EVENT-2", stores=FILE)
def trimming_leaves_no_mark(bug: Bug) -> None:
    """Events are deleted, and nothing says how far."""
    bug.sql("save_cut", "VALUES (?, ?,", "VALUES (?, 0 * ?,")


@mutant("EVENT-2", stores=FILE)
def a_tenant_is_judged_by_the_whole_log(bug: Bug) -> None:
    """A reader from before the oldest event gets a gap, although none of its own tenant's events is gone."""
    bug.sql("cut_of", "SELECT n FROM cuts WHERE tenant = ?", "SELECT trimmed FROM counters WHERE ? != ''")


@mutant("EVENT-2", stores=FILE)
def what_survives_of_a_chunk_gets_another_offset(bug: Bug) -> None:
    """The check value of a chunk that was cut in two is computed again."""

    def chunk_row(original: Planted, first: int, events: Any, mark: int | None = None) -> Any:
        del mark
        return original(first, events)

    bug.around(bug.file("rows"), "chunk_row", chunk_row)


@mutant("EVENT-2", stores=FILE)
def survivors_go_with_their_chunk(bug: Bug) -> None:
    """Other tenants' events in a trimmed chunk are not written again."""

    def write(original: Planted, walk: Any) -> None:
        walk._added.clear()
        original(walk)

    bug.around(bug.file("trimming")._Pass, "_write", write)


@mutant("EVENT-2", "TENANT-5", stores=FILE)
def trimmed_events_stay_in_the_count(bug: Bug) -> None:
    """A tenant's trimmed events still count, so the next call trims as many again."""
    bug.sql("move_lane", "events = events + ?10", "events = events + max(0, ?10)")


@mutant("TENANT-5", stores=FILE)
def keys_are_not_counted(bug: Bug) -> None:
    """Idempotency keys that are held forever are not counted."""
    bug.sql("move_lane", "keys = keys + ?8", "keys = keys + 0 * ?8")


@mutant("EVENT-2", stores=FILE)
def reader_moves_backwards(bug: Bug) -> None:
    """A reader can be moved back to an earlier offset, and blocks trimming again."""
    bug.sql("set_reader", "n = max(n, excluded.n)", "n = excluded.n")


@mutant("CLAIM-3", "TENANT-4", stores=FILE)
def sooner_job_hides_behind_a_later_one(bug: Bug) -> None:
    """A lane keeps its first due time."""
    bug.sql("move_lane", "min(ifnull(next_at, ?6), ?6)", "ifnull(next_at, ?6)")


@mutant("LEASE-3", stores=FILE)
def reaper_goes_by_sequence(bug: Bug) -> None:
    """Leases are ended by enqueue order, not by deadline."""
    bug.sql("expired_leases", "ORDER BY deadline, seq", "ORDER BY seq")


@mutant("ENQ-3", stores=FILE)
def any_job_frees_the_key(bug: Bug) -> None:
    """A job that ends frees its key, although another job holds it."""
    bug.sql("drop_key", "AND job_id = ? AND policy = ?", "AND ? != '' AND ? != ''")


@mutant("ENQ-3", stores=FILE)
def prune_frees_lasting_keys(bug: Bug) -> None:
    """The first prune removes keys that are held forever."""
    bug.sql("drop_expired_keys", "expires_at IS NOT NULL AND expires_at <= ?", "ifnull(expires_at, 0) <= ?")


@mutant("TENANT-5", "TENANT-4", stores=FILE)
def a_new_quota_drops_the_weight(bug: Bug) -> None:
    """Setting one of the two drops the other."""
    bug.sql("set_settings", "weight = ifnull(excluded.weight, weight)", "weight = excluded.weight")


@mutant("ENQ-3", "ENQ-1", stores=FILE)
def a_move_loses_the_key(bug: Bug) -> None:
    """A claimed job that waits again has lost its idempotency key."""

    def pack_extra(original: Planted, job: Job) -> Any:
        if not job.attempts:
            return original(job)
        plain = job.snapshot()
        plain.envelope = type(plain.envelope)(plain.envelope.type, b"", result_ttl_ms=plain.envelope.result_ttl_ms)
        return original(plain)

    bug.around(bug.file("rows"), "pack_extra", pack_extra)
