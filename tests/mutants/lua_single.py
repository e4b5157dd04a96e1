"""Bugs in Lua: the path of a single job, and direct hand-off."""

from __future__ import annotations

from tests.mutants.planting import REDIS, Bug, mutant

# Enqueue of one ---------------------------------------------------------------------------------------------


@mutant("ENQ-2", "STATE-2", stores=REDIS)
def single_enqueue_overwrites(bug: Bug) -> None:
    """A single enqueue does not check whether its id is taken."""
    bug.lua("single_enqueue", "not has_settings and not call('HGET', shard .. 'j:' .. lane, id)", "not has_settings")


@mutant("TENANT-5", stores=REDIS)
def single_enqueue_ignores_the_quota(bug: Bug) -> None:
    """A single enqueue is accepted over the quota."""
    bug.lua("single_enqueue", "if not has_settings and", "if")


@mutant("ENQ-3", stores=REDIS)
def single_enqueue_forgets_the_key(bug: Bug) -> None:
    """A single enqueue ignores its key."""
    bug.lua("single_enqueue", " and plain", "")


@mutant("ENQ-6", stores=REDIS)
def single_enqueue_loses_a_large_payload(bug: Bug) -> None:
    """A single enqueue loses a payload that is stored apart."""
    bug.lua("single_enqueue", " and large_sizes[1] == 0", "")


@mutant("ENQ-5", "ENQ-4", "CLAIM-2", stores=REDIS)
def single_run_at_in_the_past_comes_first(bug: Bug) -> None:
    """A single enqueue stores an instant in the past as it is."""
    bug.lua("single_enqueue", "max(now, run_at < 0", "max(0, run_at < 0")


@mutant("TIME-1", "ENQ-5", stores=REDIS)
def single_delay_goes_by_another_clock(bug: Bug) -> None:
    """A single enqueue's delay ignores the shift of the clock."""
    bug.lua("single_enqueue", "now + delays[1]", "now - shift + delays[1]")


@mutant("ENQ-4", "ENQ-5", stores=REDIS)
def single_delay_is_forgotten_beside_an_instant(bug: Bug) -> None:
    """In a single enqueue, a delay overrides an instant."""
    bug.lua(
        "single_enqueue",
        "run_at < 0 and now + delays[1] or run_at",
        "delays[1] > 0 and now + delays[1] or run_at",
    )


@mutant("CLAIM-2", stores=REDIS)
def single_priority_upside_down(bug: Bug) -> None:
    """A single enqueue stores the opposite priority."""
    bug.lua("single_enqueue", "(MAX_PRIORITY - priority) * PRIORITY_BAND", "priority * PRIORITY_BAND")


@mutant("CLAIM-2", stores=REDIS)
def single_sequence_in_the_wrong_byte_order(bug: Bug) -> None:
    """Single enqueues have no order in the queue."""
    bug.lua("single_enqueue", "struct.pack('>I7', seq) .. id, {", "struct.pack('<I7', seq) .. id, {")


@mutant("ENQ-8", stores=REDIS)
def single_request_id_is_lost(bug: Bug) -> None:
    """A single enqueue does not store its request id."""
    bug.lua("single_enqueue", "request_is_id[1] and FLAG_REQUEST_IS_ID or 0", "0")


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def single_result_ttl_is_the_usual_one(bug: Bug) -> None:
    """A single enqueue ignores its result_ttl."""
    bug.lua("single_enqueue", "claimed_at, 0, 0,\n      ttls[1]", "claimed_at, 0, 0,\n      3600000")


@mutant("ENQ-4", stores=REDIS)
def single_job_came_when_it_is_due(bug: Bug) -> None:
    """A single delayed enqueue has its due time as the time of the enqueue."""
    bug.lua("single_enqueue", "payload_sizes[1], seq, now", "payload_sizes[1], seq, visible_at")


@mutant("TENANT-4", stores=REDIS)
def single_job_hides_a_sooner_one(bug: Bug) -> None:
    """A tenant enters the turns when the last of its single jobs is due."""
    bug.lua("single_enqueue", "'N:' .. queue, 'LT', visible_at, tenant", "'N:' .. queue, visible_at, tenant")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def single_job_takes_no_turn(bug: Bug) -> None:
    """Workers for all tenants do not find a single job."""
    bug.lua("single_enqueue", "call('ZADD', shard .. 'N:' .. queue, 'LT', visible_at, tenant)", "")


@mutant("TENANT-1", stores=REDIS)
def single_job_makes_no_tenant(bug: Bug) -> None:
    """A tenant whose first job was enqueued alone is unknown."""
    bug.lua("single_enqueue", "call('ZADD', shard .. 'T', 0, tenant)", "local _ = tenant")


@mutant("TENANT-1", stores=REDIS)
def single_job_makes_no_queue(bug: Bug) -> None:
    """A queue whose first job was enqueued alone is unknown."""
    bug.lua("single_enqueue", "if call('ZADD', shard .. 'Q:' .. tenant, 0, queue) == 1 then", "if true then")


@mutant("CLAIM-3", stores=REDIS)
def single_enqueue_sends_no_hint(bug: Bug) -> None:
    """A single enqueue sends no hint."""
    bug.lua("single_enqueue", "redis.pcall('PUBLISH', prefix .. ':ready', cmsgpack.pack({ lane }))", "local _ = lane")


@mutant("EVENT-2", stores=REDIS)
def single_enqueue_grows_the_log_without_a_hint(bug: Bug) -> None:
    """Readers that follow the log get no hint of a single enqueue."""
    bug.lua("single_enqueue", "redis.pcall('PUBLISH', prefix .. ':events', '')", "")


@mutant("EVENT-2", "EVENT-1", stores=REDIS)
def single_enqueue_leaves_the_end_of_the_log(bug: Bug) -> None:
    """A reader that starts at the end of the log gets earlier single enqueues."""
    bug.lua("single_enqueue", "'last', number, 'log', number,", "'last', number,")


@mutant("EVENT-1", "ENQ-4", stores=REDIS)
def single_event_has_another_time(bug: Bug) -> None:
    """The event of a single enqueue lacks the due time."""
    bug.lua("single_enqueue", "3, 1, priority, attempts, visible_at }, 1", "3, 1, priority, attempts, now }, 1")


# Deliveries -------------------------------------------------------------------------------------------------


@mutant("ENQ-5", stores=REDIS)
def delayed_job_is_delivered(bug: Bug) -> None:
    """A job that is not due is handed off."""
    bug.lua("single_enqueue", "if state == STATE_READY and max(", "if max(")


@mutant("CLAIM-5", stores=REDIS)
def paused_queue_delivers(bug: Bug) -> None:
    """New jobs of a paused queue are handed off."""
    bug.lua("single_enqueue", "not (any_paused and call('SISMEMBER', shard .. 'P', lane) == 1)", "true")


@mutant("CLAIM-2", stores=REDIS)
def delivery_overtakes_the_tenants_own_jobs(bug: Bug) -> None:
    """A new job is handed off although others of its queue wait."""
    bug.lua(
        "single_enqueue", "own_until > now and call('ZCARD', shard .. 'w:' .. lane) == 0 then", "own_until > now then"
    )


@mutant("TENANT-4", stores=REDIS)
def delivery_overtakes_tenants_in_the_turns(bug: Bug) -> None:
    """A new job is handed off although others wait for their turns."""
    bug.lua("single_enqueue", " and call('ZCARD', shard .. 'T:' .. queue) == 0 then", " then")


@mutant("TENANT-4", "CLAIM-2", stores=REDIS)
def delivery_overtakes_tenants_that_enter_the_turns(bug: Bug) -> None:
    """A new job is handed off although others have just become due."""
    bug.lua("single_enqueue", "if not head or tonumber(head) > now then", "if true then")


@mutant("CLAIM-3", stores=REDIS)
def delivery_into_the_void(bug: Bug) -> None:
    """Jobs are handed off to workers that are gone."""
    bug.lua("single_enqueue", " and (redis.pcall('PUBSUB', 'NUMSUB', found[1])[2] or 0) > 0", "")


@mutant("CLAIM-1", stores=REDIS)
def old_registration_is_used(bug: Bug) -> None:
    """An expired registration is used while another one is live."""
    bug.lua("single_enqueue", "if registration[WAITER_UNTIL] > now and", "if")


@mutant("CLAIM-1", stores=REDIS)
def registration_lasts_forever(bug: Bug) -> None:
    """A registration has no end."""
    bug.lua("claim", "now + lasts_ms, room", "now + 1000 * lasts_ms, room")


@mutant("RETRY-1", "CLAIM-1", stores=REDIS)
def delivery_costs_no_attempt(bug: Bug) -> None:
    """The attempt of a delivered job is not counted."""
    bug.lua(
        "single_enqueue", "inbox and STATE_LEASED or state, inbox and 1 or 0,", "inbox and STATE_LEASED or state, 0,"
    )


@mutant("CLAIM-1", "STATE-1", stores=REDIS)
def delivered_job_is_ready(bug: Bug) -> None:
    """A delivered job shows as ready."""
    bug.lua("single_enqueue", "inbox and STATE_LEASED or state, inbox", "state, inbox")


@mutant("CLAIM-1", stores=REDIS)
def deadline_counts_from_the_end_of_the_registration(bug: Bug) -> None:
    """The lease of a delivered job is longer than requested."""
    bug.lua(
        "single_enqueue",
        "= now + registration[WAITER_LEASE_MS], now",
        "= registration[WAITER_UNTIL] + registration[WAITER_LEASE_MS], now",
    )


@mutant("CLAIM-1", stores=REDIS)
def delivered_lease_has_another_length(bug: Bug) -> None:
    """The lease of a delivered job is as long as the registration."""
    bug.lua("claim", "number, lease_ms, worker, tenant, queues", "number, lasts_ms, worker, tenant, queues")


@mutant("CLAIM-1", stores=REDIS)
def delivered_lease_has_no_start(bug: Bug) -> None:
    """A delivered job has no time of its lease."""
    bug.lua("single_enqueue", "= now + registration[WAITER_LEASE_MS], now", "= now + registration[WAITER_LEASE_MS], 0")


@mutant("LEASE-3", stores=REDIS)
def delivered_lease_is_not_in_line(bug: Bug) -> None:
    """The lease of a delivered job never expires."""
    bug.lua("single_enqueue", "call('ZADD', shard .. 'l:' .. lane, deadline, member)", "")


@mutant("LEASE-3", stores=REDIS)
def delivered_lease_is_not_watched(bug: Bug) -> None:
    """The deadline of a delivered job's lease is not watched."""
    bug.lua("single_enqueue", "call('ZADD', shard .. 'L', 'LT', deadline, lane)", "")


@mutant("LEASE-3", stores=REDIS)
def delivered_lease_hides_a_shorter_one(bug: Bug) -> None:
    """A queue is checked at the deadline of the lease delivered last."""
    bug.lua("single_enqueue", "'L', 'LT', deadline, lane", "'L', deadline, lane")


@mutant("CLAIM-1", "STATE-1", stores=REDIS)
def delivered_job_stays_in_line(bug: Bug) -> None:
    """A delivered job can be claimed again."""
    bug.lua(
        "single_enqueue",
        "call('ZADD', shard .. 'L', 'LT', deadline, lane)",
        "call('ZADD', shard .. 'L', 'LT', deadline, lane) call('ZADD', shard .. 'w:' .. lane, visible_at, member)",
    )


@mutant("EVENT-1", stores=REDIS)
def delivery_is_logged_as_a_claim_alone(bug: Bug) -> None:
    """A delivered job has no event of its enqueue."""
    bug.lua("single_enqueue", "'k', logged, 'n'", "'k', 1, 'n'")


@mutant("EVENT-2", stores=REDIS)
def delivery_counts_as_one_event(bug: Bug) -> None:
    """The log counts too few events."""
    bug.lua("single_enqueue", "logged_total + logged", "logged_total + 1")


@mutant("CLAIM-1", "EVENT-1", stores=REDIS)
def delivery_event_has_the_attempt_before(bug: Bug) -> None:
    """The event of a delivery has the attempt number from before it."""
    bug.lua(
        "single_enqueue", "log[17] = EVENT_CLAIMED, 1, id, 2, 1, token", "log[17] = EVENT_CLAIMED, 1, id, 2, 0, token"
    )


@mutant("CLAIM-1", "EVENT-1", stores=REDIS)
def delivery_event_has_no_token(bug: Bug) -> None:
    """The event of a delivery has no token."""
    bug.lua("single_enqueue", "log[17] = EVENT_CLAIMED, 1, id, 2, 1, token", "log[17] = EVENT_CLAIMED, 1, id, 2, 1, 0")


@mutant("CLAIM-1", "EVENT-1", stores=REDIS)
def delivery_event_has_no_worker(bug: Bug) -> None:
    """The event of a delivery has no worker."""
    bug.lua("single_enqueue", "log[21] = 4, 2, now, deadline", "log[21] = 3, 2, now, deadline")


@mutant("CLAIM-1", stores=REDIS)
def delivery_has_another_time(bug: Bug) -> None:
    """A delivered job is sent with another time than the store's."""
    bug.lua(
        "single_enqueue",
        "registration[WAITER_NUMBER], now, #lane",
        "registration[WAITER_NUMBER], registration[WAITER_UNTIL], #lane",
    )


@mutant("CLAIM-1", stores=REDIS)
def delivery_is_not_sent(bug: Bug) -> None:
    """A job is leased to a worker, but not sent to it."""
    bug.lua("single_enqueue", "redis.pcall('PUBLISH', inbox, sent)", "local _ = sent")


# How many ---------------------------------------------------------------------------------------------------


@mutant("CLAIM-1", stores=REDIS)
def registration_is_never_used_up(bug: Bug) -> None:
    """A worker registered for one job is sent every new job."""
    bug.lua("single_enqueue", "registration[WAITER_ROOM_LEFT] = registration[WAITER_ROOM_LEFT] - 1", "")


@mutant("CLAIM-1", stores=REDIS)
def registration_is_used_up_one_too_late(bug: Bug) -> None:
    """A worker is sent one job more than it has room for."""
    bug.lua(
        "single_enqueue",
        "registration[WAITER_ROOM_LEFT] > 0 and cmsgpack",
        "registration[WAITER_ROOM_LEFT] >= 0 and cmsgpack",
    )


@mutant("CLAIM-1", stores=REDIS)
def registration_counts_for_each_queue(bug: Bug) -> None:
    """A worker with two queues is sent twice what it has room for."""
    bug.lua("single_enqueue", "in ipairs(registration[WAITER_QUEUES]) do", "in ipairs({ queue }) do")


@mutant("CLAIM-1", stores=REDIS)
def own_registrations_are_counted_elsewhere(bug: Bug) -> None:
    """The registration of a worker of one tenant is counted down in the wrong place."""
    bug.lua("single_enqueue", "(registration[WAITER_TENANT] and own_table or", "(false and own_table or")


@mutant("CLAIM-1", stores=REDIS)
def registration_includes_claimed_jobs(bug: Bug) -> None:
    """A claim that got some jobs registers for as many as it asked for."""
    bug.lua("claim", "min(limit - picked, free - in_flight - picked, max_room)", "min(limit, max_room)")


@mutant("CLAIM-1", stores=REDIS)
def registration_includes_prefetched_jobs(bug: Bug) -> None:
    """A worker is sent jobs beyond its free slots."""
    bug.lua("claim", "free - in_flight - picked, ", "")


@mutant("CLAIM-1", stores=REDIS)
def claimed_jobs_take_up_no_free_room(bug: Bug) -> None:
    """Claimed jobs do not count against the free slots."""
    bug.lua("claim", "free - in_flight - picked,", "free - in_flight,")


@mutant("CLAIM-1", stores=REDIS)
def jobs_in_flight_take_up_no_free_room(bug: Bug) -> None:
    """Jobs in flight do not count against the free slots."""
    bug.lua("claim", "free - in_flight - picked,", "free - picked,")


@mutant("CLAIM-1", stores=REDIS)
def claim_does_not_count_jobs_in_flight(bug: Bug) -> None:
    """A claim returns as many jobs as asked for, in addition to those handed off."""
    bug.lua("claim", "limit = limit - in_flight", "limit = limit + 0 * in_flight")


@mutant("CLAIM-1", stores=REDIS)
def used_up_registration_is_forgotten(bug: Bug) -> None:
    """Jobs in flight under a used-up registration do not count."""
    bug.lua("waiters", "return max(0, room - received)", "return 0")


@mutant("CLAIM-1", stores=REDIS)
def used_up_registration_counts_twice(bug: Bug) -> None:
    """Arrived jobs of a used-up registration count as in flight."""
    bug.lua("waiters", "return max(0, room - received)", "return room")


@mutant("CLAIM-1", stores=REDIS)
def partly_used_registration_is_forgotten(bug: Bug) -> None:
    """Jobs in flight under a partly used registration do not count."""
    bug.lua("waiters", "max(0, used - received)", "0")


@mutant("CLAIM-1", stores=REDIS)
def partly_used_registration_counts_twice(bug: Bug) -> None:
    """Arrived jobs of a partly used registration count as in flight."""
    bug.lua("waiters", "max(0, used - received)", "used")


@mutant("CLAIM-1", stores=REDIS)
def claim_leaves_the_last_registration(bug: Bug) -> None:
    """A worker without room is still sent jobs under its earlier registration."""
    bug.lua("waiters", "write_registration(channel, tables, false)", "local _ = channel")


@mutant("CLAIM-1", stores=REDIS)
def registration_removes_those_of_others(bug: Bug) -> None:
    """A new registration removes those of other workers."""
    bug.lua("waiters", "if cmsgpack.unpack(some[n + 1])[WAITER_UNTIL] <= now then", "if true then")


# Completion of one ------------------------------------------------------------------------------------------


@mutant("LEASE-1", "TENANT-2", stores=REDIS)
def single_completion_ignores_the_token(bug: Bug) -> None:
    """A single completion needs only the address of a running job."""
    bug.lua("single_finish", "token == tokens[1] and ", "")


@mutant("LEASE-1", "EVENT-1", stores=REDIS)
def single_completion_is_carried_out_again(bug: Bug) -> None:
    """A repeated single completion makes a second event."""
    bug.lua(
        "single_finish",
        "if state == STATE_LEASED and token == tokens[1] and spent == 0 and now < deadline",
        "if raw and token == tokens[1]",
    )


@mutant("CANCEL-1", "LEASE-1", stores=REDIS)
def single_completion_ignores_the_state(bug: Bug) -> None:
    """A handler that missed the cancel can still complete its job."""
    bug.lua("single_finish", "if state == STATE_LEASED and", "if raw and state ~= 5 and")
    bug.lua("single_finish", " and now < deadline", "")


@mutant("LEASE-1", stores=REDIS)
def single_completion_ignores_the_deadline(bug: Bug) -> None:
    """A late single completion is accepted."""
    bug.lua("single_finish", " and now < deadline", "")


@mutant("LEASE-1", stores=REDIS)
def single_completion_at_the_deadline(bug: Bug) -> None:
    """A single completion is accepted at the exact deadline."""
    bug.lua("single_finish", "now < deadline", "now <= deadline")


@mutant("ENQ-3", stores=REDIS)
def single_completion_leaves_the_key(bug: Bug) -> None:
    """A single completion does not release the key."""
    bug.lua("single_finish", " and key_size == 0", "")
    bug.lua(
        "single_finish",
        "static_size + request_size + payload_size",
        "static_size + request_size + key_size + payload_size",
    )


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def single_completion_forgets_that_it_has_a_blob(bug: Bug) -> None:
    """A blob of a single completion is not deleted with its job."""
    bug.lua("single_finish", " and not in_blob[1]", "")


@mutant("RETRY-4", stores=REDIS)
def single_completion_forgets_the_errors(bug: Bug) -> None:
    """A single completion drops the errors."""
    bug.lua(
        "single_finish",
        "priority, extra_size, visible_at, token, 0, claimed_at, now",
        "priority, 0, visible_at, token, 0, claimed_at, now",
    )
    bug.lua("single_finish", "stop + worker_size + extra_size) .. result", "stop + worker_size) .. result")


@mutant("LEASE-1", stores=REDIS)
def single_completion_is_not_spent(bug: Bug) -> None:
    """A repeated single completion gets LeaseExpired."""
    bug.lua(
        "single_finish",
        "STATE_COMPLETED, attempts, OUTCOME_COMPLETE, STATE_COMPLETED, events",
        "5, attempts, 0, 0, events",
    )


@mutant("RESULT-1", stores=REDIS)
def single_completion_keeps_the_deadline(bug: Bug) -> None:
    """After a single completion the job still has a deadline."""
    bug.lua("single_finish", "token, 0, claimed_at, now", "token, deadline, claimed_at, now")


@mutant("RESULT-1", "STATE-1", stores=REDIS)
def single_completion_still_counts_as_leased(bug: Bug) -> None:
    """After a single completion the job is still in the index of leases."""
    bug.lua("single_finish", "call('ZREM', shard .. 'l:' .. lane, member)", "")


@mutant("STATE-1", "RESULT-1", stores=REDIS)
def single_completion_is_not_listed(bug: Bug) -> None:
    """After a single completion the job is in no list."""
    bug.lua("single_finish", "call('ZADD', shard .. 'C:' .. lane, now, member)", "")


@mutant("KEEP-1", stores=REDIS)
def single_completion_is_never_pruned(bug: Bug) -> None:
    """After a single completion the job is kept forever."""
    bug.lua("single_finish", "call('ZADD', shard .. 'e:' .. lane, now + ttl, member)", "")


@mutant("KEEP-1", stores=REDIS)
def single_retention_is_not_watched(bug: Bug) -> None:
    """The retention of a single completion is not watched."""
    bug.lua("single_finish", "call('ZADD', shard .. 'E', 'LT', now + ttl, lane)", "")


@mutant("KEEP-1", stores=REDIS)
def single_retention_hides_a_shorter_one(bug: Bug) -> None:
    """A queue is checked at the end of the last completion's retention."""
    bug.lua("single_finish", "'E', 'LT', now + ttl", "'E', now + ttl")


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def single_retention_counts_from_the_claim(bug: Bug) -> None:
    """The running time of a job shortens the time that its result is kept."""
    bug.lua("single_finish", "claimed_at, now, now + ttl, ttl", "claimed_at, now, claimed_at + ttl, ttl")


@mutant("EVENT-1", stores=REDIS)
def single_completion_event_has_no_token(bug: Bug) -> None:
    """The event of a single completion has no token."""
    bug.lua("single_finish", "attempts, token, 3, events", "attempts, 0, 3, events")


@mutant("EVENT-1", stores=REDIS)
def single_completion_event_has_no_worker(bug: Bug) -> None:
    """The event of a single completion has no worker."""
    bug.lua("single_finish", "{ lane, type, worker }", "{ lane, type, '' }")


@mutant("RESULT-2", stores=REDIS)
def single_completion_sends_no_hint(bug: Bug) -> None:
    """Waiters get no hint of a single completion."""
    bug.lua(
        "single_finish",
        "redis.pcall('PUBLISH', prefix .. ':done', in_full or cmsgpack.pack({ lane, id }))",
        "local _ = in_full",
    )


@mutant("RESULT-2", stores=REDIS)
def single_completion_hints_the_old_record(bug: Bug) -> None:
    """The hint of a single completion has the record from before it."""
    bug.lua("single_finish", "#record) .. lane .. id .. record", "#raw) .. lane .. id .. raw")


@mutant("RESULT-2", "RESULT-1", stores=REDIS)
def single_completion_hints_a_forgotten_record(bug: Bug) -> None:
    """The hint of a single completion has the record of a job that is not kept."""
    bug.lua("single_finish", "ttl > 0 and #record < MAX_RECORDS_BYTES", "#record < MAX_RECORDS_BYTES")


@mutant("EVENT-2", stores=REDIS)
def single_completion_grows_the_log_without_a_hint(bug: Bug) -> None:
    """Readers that follow the log get no hint of a single completion."""
    bug.lua("single_finish", "redis.pcall('PUBLISH', prefix .. ':events', '')", "")


@mutant("EVENT-2", "EVENT-1", stores=REDIS)
def single_completion_leaves_the_end_of_the_log(bug: Bug) -> None:
    """A reader that starts at the end of the log gets an earlier single completion."""
    bug.lua("single_finish", "'last', number, 'log', number,", "'last', number,")


@mutant("EVENT-2", stores=REDIS)
def single_completion_is_not_counted_in_the_log(bug: Bug) -> None:
    """The log counts too few events."""
    bug.lua("single_finish", "logged_total + 1", "logged_total + 0")
