"""Bugs in Lua: what an enqueue answers and where it puts a job; idempotency keys and quotas."""

from __future__ import annotations

from tests.mutants.planting import REDIS, Bug, mutant

# Ids and requests ---------------------------------------------------------------------------------------------


@mutant("ENQ-2", "STATE-2", stores=REDIS)
def fast_enqueue_overwrites(bug: Bug) -> None:
    """The fast path of an enqueue does not check whether an id is taken."""
    bug.lua("enqueue", "if found[n] then", "if false then")


@mutant("ENQ-4", "ENQ-8", "ENQ-3", stores=REDIS)
def fast_enqueue_trusts_every_batch(bug: Bug) -> None:
    """The fast path of an enqueue is used for a batch with an id twice, or with a key."""
    bug.lua("enqueue", "if not plain then", "if false then")


@mutant("ENQ-2", stores=REDIS)
def failed_id_is_always_replaced(bug: Bug) -> None:
    """A failed job is replaced by an enqueue without the option."""
    bug.lua("enqueue", "(existing.state == STATE_FAILED and replace_failed)", "existing.state == STATE_FAILED")


@mutant("ENQ-2", stores=REDIS)
def canceled_id_blocks_a_new_job(bug: Bug) -> None:
    """A canceled job answers as a duplicate for as long as it is kept."""
    bug.lua("enqueue", "existing.state == STATE_CANCELED or", "")


@mutant("ENQ-2", "RESULT-1", stores=REDIS)
def forgotten_id_blocks_until_it_is_pruned(bug: Bug) -> None:
    """A job past its retention is still a duplicate."""
    bug.lua("enqueue", "elseif is_forgotten(existing) then", "elseif false then")


@mutant("ENQ-8", stores=REDIS)
def requests_without_an_id_are_all_the_same(bug: Bug) -> None:
    """Two requests without an id are taken for one that was sent twice."""
    bug.lua("enqueue", "request_id ~= '' and request_id == its_request", "request_id == its_request")


@mutant("ENQ-8", stores=REDIS)
def repeated_request_is_a_duplicate(bug: Bug) -> None:
    """A repeated request is answered as a duplicate."""
    bug.lua("enqueue", "request_id ~= '' and request_id == its_request", "false")


@mutant("KEEP-1", stores=REDIS)
def replaced_job_stays_in_the_indexes(bug: Bug) -> None:
    """A job that was replaced by a new one of its id is still counted."""
    bug.lua("enqueue", "forget(existing)", "local _ = existing")


# Time and order -----------------------------------------------------------------------------------------------


@mutant("ENQ-5", "ENQ-4", stores=REDIS)
def run_at_in_the_past_comes_first(bug: Bug) -> None:
    """An instant in the past is stored as it is, so the job is ahead of those that waited longer."""
    bug.lua("enqueue", "max(now, run_ats[n] < 0", "max(0, run_ats[n] < 0")


@mutant("ENQ-5", "TIME-1", "TENANT-4", stores=REDIS)
def delay_without_the_clock_shift(bug: Bug) -> None:
    """Delays count from another clock than everything else."""
    bug.lua("enqueue", "now + delays[n]", "now - shift + delays[n]")


@mutant("CLAIM-2", stores=REDIS)
def priorities_upside_down(bug: Bug) -> None:
    """The least urgent job comes first."""
    bug.lua("enqueue", "(MAX_PRIORITY - priority) * PRIORITY_BAND", "priority * PRIORITY_BAND")
    bug.lua("jobs", "(MAX_PRIORITY - job.priority) * PRIORITY_BAND", "job.priority * PRIORITY_BAND")


@mutant("CLAIM-2", stores=REDIS)
def coming_back_turns_the_priority_over(bug: Bug) -> None:
    """A retried, released or replayed job gets the opposite priority."""
    bug.lua("jobs", "(MAX_PRIORITY - job.priority) * PRIORITY_BAND", "job.priority * PRIORITY_BAND")


@mutant("CLAIM-2", stores=REDIS)
def sequence_in_the_wrong_byte_order(bug: Bug) -> None:
    """Jobs that became visible at the same instant have no order."""
    for part in ("enqueue", "records", "finish"):
        bug.lua(part, "struct.pack('>I7', seq)", "struct.pack('<I7', seq)")


@mutant("CLAIM-2", "ENQ-4", stores=REDIS)
def one_sequence_number_for_a_batch(bug: Bug) -> None:
    """The jobs of a batch are ordered by their ids."""
    bug.lua("enqueue", "seq + n - 1", "seq")


@mutant("CLAIM-3", stores=REDIS)
def enqueue_sends_no_hint(bug: Bug) -> None:
    """A new job sends no hint."""
    bug.lua("writes", "hints.ready[#hints.ready + 1] = lane.name", "local _ = lane.name")


@mutant("ENQ-6", stores=REDIS)
def large_payload_of_another_job(bug: Bug) -> None:
    """After a duplicate in a batch, the next job gets the duplicate's large payload."""
    bug.lua(
        "enqueue",
        "answers[n] = put_one(n)\n    large_at = large_at + large_sizes[n]",
        "answers[n] = put_one(n)\n    large_at = large_at + (type(answers[n]) == 'number' and large_sizes[n] or 0)",
    )


@mutant("ENQ-6", stores=REDIS)
def large_payload_from_one_byte_on(bug: Bug) -> None:
    """A large payload loses its last byte."""
    bug.lua("enqueue", "large_at + large_sizes[n] - 1))", "large_at + large_sizes[n] - 2))")


# Idempotency keys ---------------------------------------------------------------------------------------------


@mutant("ENQ-3", stores=REDIS)
def keys_of_all_types_are_one(bug: Bug) -> None:
    """Jobs of two types with the same key are taken for one job."""
    bug.lua(
        "enqueue",
        "field = type_sizes[n] .. ':' .. sub(body, 1, type_sizes[n]) .. sub(body, key_at",
        "field = sub(body, key_at",
    )
    bug.lua("keys", "job.type_size .. ':' .. job.type .. sub(key, 10)", "sub(key, 10)")


@mutant("TENANT-3", stores=REDIS)
def type_and_key_are_joined_by_a_colon(bug: Bug) -> None:
    """Type `a` with key `b:c` and type `a:b` with key `c` are the same."""
    bug.lua(
        "enqueue", "type_sizes[n] .. ':' .. sub(body, 1, type_sizes[n]) ..", "sub(body, 1, type_sizes[n]) .. ':' .."
    )
    bug.lua("keys", "job.type_size .. ':' .. job.type ..", "job.type .. ':' ..")


@mutant("ENQ-3", stores=REDIS)
def key_is_free_as_soon_as_the_job_starts(bug: Bug) -> None:
    """A key that is held until the end is dropped by the claim."""
    bug.lua("keys", "(policy == POLICY_UNTIL_TERMINAL and ended)", "policy == POLICY_UNTIL_TERMINAL")


@mutant("ENQ-3", stores=REDIS)
def key_until_started_is_held_until_the_end(bug: Bug) -> None:
    """A key that should be free once the job runs is dropped when it ends."""
    bug.lua("keys", "if policy == POLICY_UNTIL_STARTED or", "if (policy == POLICY_UNTIL_STARTED and ended) or")


@mutant("ENQ-3", stores=REDIS)
def fast_claim_leaves_the_key(bug: Bug) -> None:
    """The fast path of a lease is used for jobs with a key, and does not release it."""
    bug.lua("granting", "if key_size > 0 or", "if")
    bug.lua(
        "granting",
        "static_size + request_size + payload_size\n",
        "static_size + request_size + key_size + payload_size\n",
    )


@mutant("ENQ-3", stores=REDIS)
def fast_completion_leaves_the_key(bug: Bug) -> None:
    """The fast path of a completion is used for jobs with a key, which the next life of the id then holds."""
    bug.lua("finish", "or key_size > 0", "")
    bug.lua(
        "finish", "static_size + request_size + payload_size", "static_size + request_size + key_size + payload_size"
    )


@mutant("ENQ-3", stores=REDIS)
def ended_job_holds_its_key(bug: Bug) -> None:
    """A job holds its key as long as it is kept."""
    bug.lua("jobs", "release_key(job, true)", "local _ = job")
    bug.lua("enqueue", "holder and holder.state <= STATE_LEASED and answer_of(holder)", "holder and answer_of(holder)")


@mutant("ENQ-3", stores=REDIS)
def any_end_frees_the_key(bug: Bug) -> None:
    """A job that ends releases its key, although another job holds it."""
    bug.lua("keys", "if binding and binding.id == job.id then", "if binding then")


@mutant("ENQ-3", "KEEP-1", stores=REDIS)
def key_for_ever_goes_with_the_job(bug: Bug) -> None:
    """A key that should outlive its job is free when the job is forgotten."""
    bug.lua(
        "enqueue",
        "holder and answer_of(holder) or { DUPLICATE, binding.id, NONE }",
        "holder and answer_of(holder) or nil",
    )


@mutant("ENQ-3", "KEEP-1", stores=REDIS)
def prune_frees_keys_for_ever(bug: Bug) -> None:
    """Keys that are held forever are taken for expired ones."""
    bug.lua("keys", "policy == POLICY_TTL and ends_at)", "ends_at)")


@mutant("ENQ-3", "KEEP-1", stores=REDIS)
def prune_frees_keys_before_their_time(bug: Bug) -> None:
    """The first prune removes keys that are held for a time."""
    bug.lua("prune", "shard .. 'y', '-inf', now,", "shard .. 'y', '-inf', '+inf',")


@mutant("ENQ-3", stores=REDIS)
def key_for_a_time_never_ends(bug: Bug) -> None:
    """The time of a key is stored but never checked."""
    bug.lua("enqueue", "binding.policy == POLICY_TTL and binding.ends_at <= now", "false")


@mutant("ENQ-3", stores=REDIS)
def key_for_a_time_lasts_a_moment_too_long(bug: Bug) -> None:
    """A key is still held at the exact end of its time."""
    bug.lua("enqueue", "binding.ends_at <= now", "binding.ends_at < now")


@mutant("ENQ-3", stores=REDIS)
def fresh_job_is_a_duplicate_of_the_one_it_replaces(bug: Bug) -> None:
    """A canceled id with a key held forever cannot be enqueued again with that key."""
    bug.lua("enqueue", "binding.id == id and not is_forgotten(existing)", "false")


@mutant("ENQ-3", "DEAD-1", stores=REDIS)
def replay_runs_without_its_key(bug: Bug) -> None:
    """A replayed job does not take its key again."""
    bug.lua("replay", "bind(lane, field, POLICY_UNTIL_TERMINAL, 0, job.id)", "local _ = field")


@mutant("ENQ-3", "DEAD-1", stores=REDIS)
def replay_takes_the_key_from_its_holder(bug: Bug) -> None:
    """A replay does not check whether another job holds its key."""
    bug.lua("replay", "policy == POLICY_UNTIL_TERMINAL and key_holder(job, field)", "nil")


# Quotas -------------------------------------------------------------------------------------------------------


@mutant("TENANT-5", stores=REDIS)
def fast_enqueue_ignores_the_quota(bug: Bug) -> None:
    """The fast path of an enqueue is used although the queue has a quota."""
    bug.lua("enqueue", "and has_quota(lanes_of[n])", "and false")


@mutant("TENANT-5", stores=REDIS)
def fast_enqueue_ignores_the_tenants_quota(bug: Bug) -> None:
    """The fast path of an enqueue checks only the queue's quota."""
    bug.lua(
        "lanes",
        "(settings[1][SETTING_MAX_WAITING] or settings[2][SETTING_MAX_WAITING])",
        "settings[1][SETTING_MAX_WAITING]",
    )


@mutant("TENANT-5", stores=REDIS)
def fast_enqueue_asks_for_the_first_quota_only(bug: Bug) -> None:
    """Of a batch over several queues, only the first queue is checked."""
    bug.lua("enqueue", "lanes_of[n] ~= lanes_of[n - 1] and", "n == 1 and")


@mutant("TENANT-5", stores=REDIS)
def queue_holds_one_too_many(bug: Bug) -> None:
    """The quota of a queue is off by one."""
    bug.lua("lanes", "waiting_in_lane(lane) >= quota", "waiting_in_lane(lane) > quota")


@mutant("TENANT-5", stores=REDIS)
def tenant_holds_one_too_many(bug: Bug) -> None:
    """The quota of a tenant is off by one."""
    bug.lua("lanes", "if waiting >= quota then", "if waiting > quota then")


@mutant("TENANT-5", stores=REDIS)
def quota_counts_running_jobs(bug: Bug) -> None:
    """Running jobs count against the quota of waiting jobs."""
    bug.lua(
        "lanes", "lane.waiting = call('ZCARD', lane.w)", "lane.waiting = call('ZCARD', lane.w) + call('ZCARD', lane.l)"
    )


@mutant("TENANT-5", stores=REDIS)
def quota_of_a_queue_counts_the_whole_tenant(bug: Bug) -> None:
    """Jobs of the tenant's other queues count against a queue's quota."""
    bug.lua(
        "lanes",
        "lane.waiting = call('ZCARD', lane.w)",
        "lane.waiting = 0\n"
        "    for _, queue in ipairs(call('ZRANGE', shard .. 'Q:' .. names_of(lane), 0, -1)) do\n"
        "      lane.waiting = lane.waiting + call('ZCARD', lane_named(names_of(lane), queue).w)\n"
        "    end",
    )


@mutant("TENANT-5", stores=REDIS)
def tenants_count_forgets_a_claim(bug: Bug) -> None:
    """A job that is claimed alone still counts as waiting."""
    bug.lua("picking", "count_waiting(scan.lane, -1)", "count_waiting(scan.lane, 0)")


@mutant("TENANT-5", stores=REDIS)
def tenants_count_forgets_a_claim_over_many_tenants(bug: Bug) -> None:
    """A job that is the only one of its queue in a claim of many still counts as waiting."""
    bug.lua("granting", "count_waiting(lane, -1)", "count_waiting(lane, 0)")


@mutant("TENANT-5", stores=REDIS)
def tenants_count_only_grows(bug: Bug) -> None:
    """Jobs that are claimed in a batch, or canceled, still count as waiting."""
    bug.lua("writes", "batch.command == 'ZADD' and changed or -changed", "batch.command == 'ZADD' and changed or 0")


@mutant("TENANT-5", stores=REDIS)
def tenants_count_begins_at_nothing(bug: Bug) -> None:
    """Jobs that wait when the quota is set are not counted."""
    bug.lua("lanes", "sum = sum + call('ZCARD', lane_named(tenant, queue).w)", "sum = 0 * #queue")


@mutant("TENANT-5", stores=REDIS)
def batch_does_not_count_itself(bug: Bug) -> None:
    """All jobs of a batch fit if the first does."""
    bug.lua("enqueue", "count_added(lane)", "")


@mutant("TENANT-5", stores=REDIS)
def batch_over_new_queues_gets_around_the_tenants_quota(bug: Bug) -> None:
    """The jobs of a batch are not counted against the tenant's quota."""
    bug.lua("lanes", "tenants_waiting[tenant] and tenants_waiting[tenant] + 1", "tenants_waiting[tenant]")


@mutant("TENANT-5", stores=REDIS)
def replay_ignores_the_quota(bug: Bug) -> None:
    """A full queue accepts replayed jobs."""
    bug.lua("replay", "or over_quota(lane)", "or nil")


@mutant("TENANT-5", stores=REDIS)
def set_of_replays_does_not_count_itself(bug: Bug) -> None:
    """All jobs of a set of replays fit if the first does."""
    bug.lua("replay", "count_added(lane)", "")


@mutant("TENANT-5", stores=REDIS)
def new_setting_drops_the_others(bug: Bug) -> None:
    """Setting a quota drops the weight."""
    bug.lua("settings", "request[3 + n] or kept[n]", "request[3 + n]")
