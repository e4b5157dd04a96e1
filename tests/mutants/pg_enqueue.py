"""Bugs in how the PostgreSQL store takes jobs in: ids, delays, batches, keys, quotas, the caller's transaction."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core.job import Job
from tests.mutants.planting import POSTGRES, Bug, Planted, mutant

# Ids and requests ---------------------------------------------------------------------------------------------


@mutant("ENQ-2", stores=POSTGRES)
def two_jobs_of_one_id_in_postgres(bug: Bug) -> None:
    """A batch of new jobs does not check that all its ids are new."""
    bug.function("enqueue", "v_taken < v_count", "v_taken < 0")


@mutant("ENQ-2", stores=POSTGRES)
def table_takes_an_id_twice(bug: Bug) -> None:
    """Nothing in the schema says that an id is unique in its lane."""
    bug.table("PRIMARY KEY (lane, id)", "PRIMARY KEY (lane, id, seq)")


@mutant("ENQ-2", stores=POSTGRES)
def a_batch_that_is_not_fresh_takes_away_ids(bug: Bug) -> None:
    """A batch that finds an existing id removes more than its own rows."""
    bug.function("enqueue", "AND ids.seq = u.seq", "")


@mutant("ENQ-2", "KEEP-1", stores=POSTGRES, seen_by="a_canceled_id_can_be_enqueued_again")
def a_new_life_is_not_found_by_its_id(bug: Bug) -> None:
    """An id still leads to the row of the job that had it before."""
    bug.statement("move_ids", "SET seq = u.seq", "SET seq = ids.seq")


@mutant("ENQ-8", "ENQ-4", stores=POSTGRES, seen_by="a_single_enqueue_does_what_a_batch_does")
def request_id_is_not_kept_in_postgres(bug: Bug) -> None:
    """The same request again is a duplicate of itself."""
    bug.function("enqueue", "u.request,", "'',")


@mutant("ENQ-8", stores=POSTGRES, seen_by="the_same_request_again_is_not_a_duplicate_of_its_own_key")
def request_id_is_not_kept_with_a_key(bug: Bug) -> None:
    """A repeated request on the slow path is not recognized."""

    def new_row(original: Planted, held: Any, place: int) -> Any:
        row = original(held, place)
        return (*row[:11], "", *row[12:])

    bug.around(bug.postgres("unit_of_work"), "_new", new_row)


# Delays -------------------------------------------------------------------------------------------------------


@mutant("ENQ-5", "ENQ-4", stores=POSTGRES, seen_by="each_job_of_a_batch_is_stored_as_it_was_sent")
def delay_is_not_heeded_by_a_fresh_batch(bug: Bug) -> None:
    """A delayed job is visible at once."""
    bug.function("enqueue", "v_now + coalesce(u.delay, p_delays[1])", "v_now")


@mutant("ENQ-5", "ENQ-4", stores=POSTGRES, seen_by="each_job_of_a_batch_is_stored_as_it_was_sent")
def delay_of_the_first_is_that_of_all(bug: Bug) -> None:
    """All jobs of a batch wait as long as its first."""
    bug.function("enqueue", "coalesce(u.delay, p_delays[1])", "p_delays[1]")


@mutant("ENQ-5", "ENQ-4", stores=POSTGRES, seen_by="each_job_of_a_batch_is_stored_as_it_was_sent")
def run_at_is_not_heeded_by_a_fresh_batch(bug: Bug) -> None:
    """A job that is to run at an instant runs now."""
    bug.function("enqueue", "coalesce(u.run_at,", "coalesce(NULL::bigint,")


@mutant("ENQ-5", "CLAIM-2", stores=POSTGRES)
def an_instant_in_the_past_overtakes(bug: Bug) -> None:
    """A job with an instant in the past is ahead of those that wait."""
    bug.function("enqueue", "greatest(v_now, coalesce(u.run_at", "greatest(0, coalesce(u.run_at")


@mutant("STATE-1", "ENQ-5", "ENQ-4", stores=POSTGRES, seen_by="each_job_of_a_batch_is_stored_as_it_was_sent")
def delayed_job_is_written_as_ready(bug: Bug) -> None:
    """A scheduled job shows as ready."""
    bug.function(
        "enqueue", "THEN {state:scheduled} ELSE {state:ready} END", "THEN {state:ready} ELSE {state:ready} END"
    )


@mutant("ENQ-4", "TIME-1", stores=POSTGRES, seen_by="each_job_of_a_batch_is_stored_as_it_was_sent")
def enqueued_when_it_becomes_visible(bug: Bug) -> None:
    """The time of the enqueue is that of the first run."""
    bug.function("enqueue", "u.visible_at, v_now,", "u.visible_at, u.visible_at,")


# Batches ------------------------------------------------------------------------------------------------------


@mutant("ENQ-4", "CLAIM-2", stores=POSTGRES, seen_by="each_job_of_a_batch_is_stored_as_it_was_sent")
def priority_of_the_first_is_that_of_all(bug: Bug) -> None:
    """All jobs of a batch get the priority of its first."""
    bug.function("enqueue", "coalesce(u.rank, p_ranks[1])", "p_ranks[1]")


@mutant("ENQ-4", "RESULT-1", "KEEP-1", stores=POSTGRES, seen_by="each_job_of_a_batch_is_stored_as_it_was_sent")
def ttl_of_the_first_is_that_of_all(bug: Bug) -> None:
    """All results of a batch are kept as long as that of its first."""
    bug.function("enqueue", "coalesce(u.ttl, p_ttls[1])", "p_ttls[1]")


@mutant("ENQ-4", "ENQ-6", stores=POSTGRES, seen_by="each_job_of_a_batch_is_stored_as_it_was_sent")
def options_of_the_first_are_those_of_all(bug: Bug) -> None:
    """All jobs of a batch get the codec, policy and headers of its first."""
    bug.function("enqueue", "coalesce(u.head, p_heads[1])", "p_heads[1]")


@mutant("ENQ-4", "ENQ-6", stores=POSTGRES, seen_by="each_job_of_a_batch_is_stored_as_it_was_sent")
def type_of_the_first_is_that_of_all(bug: Bug) -> None:
    """All jobs of a batch get the type of its first."""
    bug.function("enqueue", "coalesce(u.type, p_types[1])", "p_types[1]")


@mutant("TENANT-1", "ENQ-4", stores=POSTGRES, seen_by="a_call_over_several_tenants_never_mixes_up_their_jobs")
def a_batch_goes_to_the_first_tenant(bug: Bug) -> None:
    """Jobs of several tenants in one batch all get into the lane of the first."""
    bug.function("enqueue", "coalesce(u.lane, p_lanes[1])", "p_lanes[1]")


@mutant("CLAIM-2", "ENQ-4", stores=POSTGRES)
def later_jobs_get_smaller_numbers(bug: Bug) -> None:
    """Of two jobs enqueued at the same instant, the second is first."""
    bug.function("enqueue", "array_agg(nextval('{s}.seqs'))", "array_agg(1000000000 - nextval('{s}.seqs'))")


@mutant("CLAIM-2", stores=POSTGRES)
def a_new_priority_is_not_recorded(bug: Bug) -> None:
    """Jobs of a priority that is new in their lane are not found."""
    bug.statement("add_lane", "lanes.ranks | excluded.ranks", "lanes.ranks")


@mutant("ENQ-6", "CLAIM-2", stores=POSTGRES)
def headers_are_dropped(bug: Bug) -> None:
    """The producer's headers are not stored."""

    def pack_head(original: Planted, envelope: Any) -> bytes:
        return original(replace(envelope, headers=None))

    bug.around(bug.postgres("rows"), "pack_head", pack_head)


# Keys ---------------------------------------------------------------------------------------------------------


@mutant("ENQ-3", stores=POSTGRES, seen_by="a_key_is_scoped_by_tenant_queue_and_job_type")
def keys_of_all_types_are_one_in_postgres(bug: Bug) -> None:
    """Jobs of two types with the same key are taken for one job."""

    def scope_of(original: Planted, *args: Any) -> Any:
        lane, _, key = original(*args)
        return lane, "", key

    bug.around(bug.postgres("unit_of_work"), "scope_of", scope_of)


@mutant("ENQ-3", stores=POSTGRES, seen_by="a_key_until_started_is_free_once_the_job_runs")
def starting_leaves_the_key(bug: Bug) -> None:
    """A key that is held until the job starts stays with it."""
    bug.function("claim", "k.policy = 'until_started'", "k.policy = ''")


@mutant("ENQ-3", stores=POSTGRES, seen_by="a_key_is_held_until_the_job_ends")
def starting_frees_every_key(bug: Bug) -> None:
    """A key that is held until the job ends is free as soon as it starts."""
    bug.function("claim", "k.policy = 'until_started'", "k.policy LIKE 'until%'")


@mutant("ENQ-3", stores=POSTGRES, seen_by="a_key_until_started_is_free_once_the_job_runs")
def starting_frees_a_key_of_another_job(bug: Bug) -> None:
    """A job that starts releases its key, although another job holds it."""
    bug.function("claim", "AND k.job_id = j.id", "")


@mutant("ENQ-3", stores=POSTGRES, seen_by="jobs_that_complete_together_free_only_their_own_keys")
def completing_frees_a_key_of_another_job(bug: Bug) -> None:
    """A job that completes releases its key, although another job holds it."""
    bug.function("complete", "AND k.job_id = d.id", "")


@mutant("ENQ-3", "KEEP-1", stores=POSTGRES, seen_by="jobs_that_complete_together_free_only_their_own_keys")
def completing_frees_lasting_keys(bug: Bug) -> None:
    """Keys that are held for a time or forever end with the job."""
    bug.function("complete", "k.policy IN ('until_terminal', 'until_started')", "true")


@mutant("ENQ-3", stores=POSTGRES, seen_by="a_key_until_started_is_free_once_the_job_runs")
def any_end_frees_a_key_of_another_job(bug: Bug) -> None:
    """A job that fails or is canceled frees its key, although another job holds it."""
    bug.statement("drop_keys", "AND k.job_id = u.job_id", "")


@mutant("ENQ-3", stores=POSTGRES, seen_by="a_key_with_a_time_to_live_expires_while_its_job_waits")
def a_key_stays_with_its_first_holder(bug: Bug) -> None:
    """A new job does not take the key of the job that it replaces."""
    bug.statement("bind_keys", "job_id = excluded.job_id", "job_id = keys.job_id")


@mutant("ENQ-3", stores=POSTGRES, seen_by="of_concurrent_enqueues_with_one_key_exactly_one_is_queued")
def keys_are_bound_without_a_lock(bug: Bug) -> None:
    """Two concurrent enqueues with one key are both queued."""
    bug.statement("try_lock_keys", "SELECT {s}.try_lock_keys($1::text[])", "SELECT $1::text[] IS NOT NULL")


@mutant("ENQ-3", stores=POSTGRES, seen_by="of_concurrent_replays_with_one_key_exactly_one_succeeds")
def keys_are_waited_for_without_a_lock(bug: Bug) -> None:
    """Two concurrent replays with one key both succeed."""
    bug.statement("lock_keys", "pg_advisory_xact_lock(hashtextextended(k, 3))", "k")


@mutant("ENQ-3", "KEEP-1", stores=POSTGRES, seen_by="a_key_without_an_end_outlives_the_job")
def prune_frees_keys_for_ever_in_postgres(bug: Bug) -> None:
    """The first prune removes keys that are held forever."""
    bug.statement("drop_expired_keys", "expires_at IS NOT NULL AND expires_at <=", "coalesce(expires_at, 0) <=")


@mutant("ENQ-3", stores=POSTGRES, seen_by="a_replay_is_refused_while_another_job_holds_its_key")
def a_replay_does_not_look_at_its_key(bug: Bug) -> None:
    """A dead letter can be replayed while another job holds its key."""

    def replay(original: Planted, unit: Any, keys: Any, quotas: Any, _: Any, by: str) -> Any:
        return original(unit, keys, quotas, {}, by)

    bug.around(bug.postgres("changes"), "replay", replay)


@mutant("ENQ-3", "DEAD-1", stores=POSTGRES, seen_by="a_replay_takes_its_key_again")
def a_replay_does_not_take_its_key(bug: Bug) -> None:
    """A replayed job runs again without holding its key."""

    def replay(original: Planted, unit: Any, *args: Any) -> Any:
        answer = original(unit, *args)
        unit.bound.clear()
        return answer

    bug.around(bug.postgres("changes"), "_replay_one", replay)


@mutant("ENQ-3", "ENQ-1", stores=POSTGRES, seen_by="a_replay_takes_its_key_again")
def a_move_loses_the_key_in_postgres(bug: Bug) -> None:
    """A claimed job that waits again has lost the policy of its key."""

    def pack_extra(original: Planted, job: Job) -> Any:
        key = job.envelope.idempotency
        if not job.attempts or key is None:
            return original(job)
        plain = job.snapshot()
        plain.envelope = replace(plain.envelope, idempotency=replace(key, policy="forever"))
        return original(plain)

    bug.around(bug.postgres("rows"), "pack_extra", pack_extra)


# Quotas -------------------------------------------------------------------------------------------------------


@mutant("TENANT-5", stores=POSTGRES, seen_by="an_enqueue_over_the_quota_is_refused_and_changes_nothing")
def fresh_batches_get_around_the_quota(bug: Bug) -> None:
    """Jobs with new ids are accepted over the quota."""
    bug.function("enqueue", "AND max_waiting IS NOT NULL", "AND false")


@mutant("TENANT-5", stores=POSTGRES, seen_by="an_enqueue_over_the_quota_is_refused_and_changes_nothing")
def running_jobs_fill_the_quota(bug: Bug) -> None:
    """Leased jobs are counted among those that wait."""
    bug.statement("lane_waiting", "j.state < 4", "j.state <= 4")


@mutant("TENANT-5", stores=POSTGRES, seen_by="an_enqueue_over_the_quota_is_refused_and_changes_nothing")
def delayed_jobs_take_no_room(bug: Bug) -> None:
    """Only what is ready counts against a quota."""
    bug.statement("lane_waiting", "j.state < 4", "j.state = 2")


@mutant("TENANT-5", stores=POSTGRES, seen_by="jobs_of_other_queues_do_not_count_against_a_queues_quota")
def other_queues_fill_the_quota(bug: Bug) -> None:
    """The quota of a queue is used up by the tenant's other queues."""
    bug.statement("lane_waiting", "l.queue = $2::text", "$2::text <> ''")


@mutant("TENANT-5", stores=POSTGRES, seen_by="jobs_of_other_queues_do_not_count_against_a_queues_quota")
def other_tenants_fill_the_quota(bug: Bug) -> None:
    """The quota of a queue is used up by other tenants."""
    bug.statement("lane_waiting", "l.tenant = $1::text", "$1::text <> ''")


@mutant("TENANT-5", stores=POSTGRES, seen_by="a_quota_of_the_tenant_bounds_all_its_queues_together")
def quota_of_a_tenant_counts_nothing(bug: Bug) -> None:
    """The quota of a tenant as a whole is never full."""
    bug.statement("tenant_waiting", "l.tenant = $1::text", "l.tenant = $1::text || ' '")


@mutant("TENANT-5", stores=POSTGRES, seen_by="a_batch_is_accepted_up_to_the_quota")
def a_batch_is_not_counted_as_it_goes(bug: Bug) -> None:
    """A batch may exceed the quota by all its items."""

    def took(*_: Any) -> None:
        return None

    bug.around(bug.postgres("quotas").Quotas, "took", took)


@mutant("TENANT-5", stores=POSTGRES, seen_by="concurrent_enqueues_do_not_exceed_a_quota")
def quotas_are_counted_without_a_lock(bug: Bug) -> None:
    """Concurrent enqueues all find the same room."""
    bug.statement("lock_tenant", "pg_advisory_xact_lock(", "abs(")


@mutant("TENANT-5", stores=POSTGRES, seen_by="a_replay_is_refused_by_a_quota")
def a_replay_gets_around_the_quota_in_postgres(bug: Bug) -> None:
    """A full queue accepts replayed jobs."""

    def replay(original: Planted, unit: Any, keys: Any, _: Any, *rest: Any) -> Any:
        return original(unit, keys, bug.postgres("quotas").Quotas({}, {}), *rest)

    bug.around(bug.postgres("changes"), "replay", replay)


@mutant("TENANT-5", "TENANT-4", stores=POSTGRES, seen_by="settings_left_out_stay_unchanged")
def a_new_quota_drops_the_weight_in_postgres(bug: Bug) -> None:
    """Setting one of the two drops the other."""
    bug.statement("set_settings", "coalesce(excluded.weight, settings.weight)", "excluded.weight")


@mutant("TENANT-5", stores=POSTGRES, seen_by="a_quota_can_be_raised_lowered_and_read")
def a_new_weight_drops_the_quota_in_postgres(bug: Bug) -> None:
    """Setting one of the two drops the other."""
    bug.statement("set_settings", "coalesce(excluded.max_waiting, settings.max_waiting)", "excluded.max_waiting")


# The caller's transaction -------------------------------------------------------------------------------------


@mutant("ENQ-7", stores=POSTGRES)
def an_enqueue_stays_outside_of_the_transaction(bug: Bug) -> None:
    """The caller's transaction is rolled back, and the job is there."""

    def outside(original: Planted, store: Any, items: Any, *_: Any, **__: Any) -> Any:
        return original(store, items, None)

    bug.around(bug.postgres("enqueueing").Enqueueing, "_enqueue", outside)


@mutant("ENQ-7", stores=POSTGRES)
def a_completion_stays_outside_of_the_transaction(bug: Bug) -> None:
    """The caller's transaction is rolled back, and the job has completed."""

    def outside(original: Planted, store: Any, items: Any, *_: Any, **__: Any) -> Any:
        return original(store, items, None)

    bug.around(bug.postgres("finishing").Finishing, "_complete", outside)


@mutant("ENQ-7", stores=POSTGRES, seen_by="other_outcomes_join_the_callers_transaction_too")
def another_outcome_stays_outside_of_the_transaction(bug: Bug) -> None:
    """The caller's transaction is rolled back, and the job has failed."""

    def outside(original: Planted, store: Any, items: Any, *_: Any, **__: Any) -> Any:
        return original(store, items, None)

    bug.around(bug.postgres("finishing").Finishing, "_finish", outside)


@mutant("ENQ-7", stores=POSTGRES)
def a_lane_is_made_in_the_callers_transaction(bug: Bug) -> None:
    """Jobs enqueued by others meanwhile are lost with the rollback."""
    joined: list[Any] = []

    async def enqueue(original: Planted, store: Any, items: Any, session: Any, *rest: Any) -> Any:
        joined.append(session)
        try:
            return await original(store, items, session, *rest)
        finally:
            joined.pop()

    async def make_lanes(original: Planted, client: Any, *rest: Any) -> Any:
        return await original(_Within(joined[-1]) if joined and joined[-1] else client, *rest)

    bug.around(bug.postgres("enqueueing").Enqueueing, "_enqueue", enqueue)
    bug.around(bug.postgres("enqueue"), "make_lanes", make_lanes)


class _Within:
    """Looks like a client, and runs everything in one session."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def rows(self, name: str, *args: Any, **_: Any) -> Any:
        return await self._session.rows(name, *args)

    async def value(self, name: str, *args: Any, **_: Any) -> Any:
        return await self._session.value(name, *args)


@mutant("ENQ-7", "CLAIM-3", stores=POSTGRES, seen_by="a_worker_is_notified_of_a_job_when_its_transaction_commits")
def a_commit_sends_no_hint(bug: Bug) -> None:
    """A commit of the caller's transaction sends no hint."""

    async def publish(original: Planted, store: Any, effects: Any, joined: Any, *rest: Any) -> None:
        if joined is None:
            await original(store, effects, joined, *rest)

    bug.around(bug.postgres("transactions").Transactions, "publish", publish)
