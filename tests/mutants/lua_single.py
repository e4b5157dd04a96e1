"""Bugs in Lua: what one job alone comes through, and jobs that are handed over as they come."""

from __future__ import annotations

from tests.mutants.planting import REDIS, Bug, mutant

# Enqueue of one ---------------------------------------------------------------------------------------------


@mutant("ENQ-2", "STATE-2", stores=REDIS)
def single_enqueue_overwrites(bug: Bug) -> None:
    """An enqueue of one does not look whether its id is taken."""
    bug.lua("single_enqueue", "not has_settings and not call('HGET', shard .. 'j:' .. lane, id)", "not has_settings")


@mutant("TENANT-5", stores=REDIS)
def single_enqueue_ignores_the_quota(bug: Bug) -> None:
    """An enqueue of one is taken in over the quota."""
    bug.lua("single_enqueue", "if not has_settings and", "if")


@mutant("ENQ-3", stores=REDIS)
def single_enqueue_forgets_the_key(bug: Bug) -> None:
    """An enqueue of one with a key is taken in as if it had none."""
    bug.lua("single_enqueue", " and plain", "")


@mutant("ENQ-6", stores=REDIS)
def single_enqueue_loses_a_large_payload(bug: Bug) -> None:
    """An enqueue of one leaves out a payload that stands apart."""
    bug.lua("single_enqueue", " and large_sizes[1] == 0", "")


@mutant("ENQ-5", "ENQ-4", "CLAIM-2", stores=REDIS)
def single_run_at_in_the_past_stands_first(bug: Bug) -> None:
    """An instant in the past is kept as it is if the job came alone."""
    bug.lua("single_enqueue", "max(now, run_at < 0", "max(0, run_at < 0")


@mutant("TIME-1", "ENQ-5", stores=REDIS)
def single_delay_goes_by_another_clock(bug: Bug) -> None:
    """The shift of the clock is left out of the delay of a job that came alone."""
    bug.lua("single_enqueue", "now + delays[1]", "now - shift + delays[1]")


@mutant("ENQ-4", "ENQ-5", stores=REDIS)
def single_delay_is_forgotten_beside_an_instant(bug: Bug) -> None:
    """Of a delay and an instant the delay counts if the job came alone."""
    bug.lua(
        "single_enqueue",
        "run_at < 0 and now + delays[1] or run_at",
        "delays[1] > 0 and now + delays[1] or run_at",
    )


@mutant("CLAIM-2", stores=REDIS)
def single_priority_upside_down(bug: Bug) -> None:
    """A job that came alone stands among those of the opposite priority."""
    bug.lua("single_enqueue", "(MAX_PRIORITY - priority) * PRIORITY_BAND", "priority * PRIORITY_BAND")


@mutant("CLAIM-2", stores=REDIS)
def single_sequence_in_the_wrong_byte_order(bug: Bug) -> None:
    """Jobs that came alone stand in line in no order."""
    bug.lua("single_enqueue", "struct.pack('>I7', seq) .. id, {", "struct.pack('<I7', seq) .. id, {")


@mutant("ENQ-8", stores=REDIS)
def single_request_id_is_lost(bug: Bug) -> None:
    """A job that came alone does not keep that its request has its own id."""
    bug.lua("single_enqueue", "request_is_id[1] and FLAG_REQUEST_IS_ID or 0", "0")


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def single_result_ttl_is_the_usual_one(bug: Bug) -> None:
    """A job that came alone keeps its result for an hour, whatever was asked."""
    bug.lua("single_enqueue", "claimed_at, 0, 0,\n      ttls[1]", "claimed_at, 0, 0,\n      3600000")


@mutant("ENQ-4", stores=REDIS)
def single_job_came_when_it_is_due(bug: Bug) -> None:
    """A delayed job that came alone says that it came when it is due."""
    bug.lua("single_enqueue", "payload_sizes[1], seq, now", "payload_sizes[1], seq, visible_at")


@mutant("TENANT-4", stores=REDIS)
def single_job_hides_a_sooner_one(bug: Bug) -> None:
    """A tenant enters the turns when the last job is due that came alone."""
    bug.lua("single_enqueue", "'N:' .. queue, 'LT', visible_at, tenant", "'N:' .. queue, visible_at, tenant")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def single_job_takes_no_turn(bug: Bug) -> None:
    """A job that came alone is not seen by workers for all tenants."""
    bug.lua("single_enqueue", "call('ZADD', shard .. 'N:' .. queue, 'LT', visible_at, tenant)", "")


@mutant("TENANT-1", stores=REDIS)
def single_job_makes_no_tenant(bug: Bug) -> None:
    """A tenant whose first job came alone is unknown."""
    bug.lua("single_enqueue", "call('ZADD', shard .. 'T', 0, tenant)", "local _ = tenant")


@mutant("TENANT-1", stores=REDIS)
def single_job_makes_no_queue(bug: Bug) -> None:
    """A queue whose first job came alone is unknown."""
    bug.lua("single_enqueue", "if call('ZADD', shard .. 'Q:' .. tenant, 0, queue) == 1 then", "if true then")


@mutant("CLAIM-3", stores=REDIS)
def single_enqueue_wakes_nobody(bug: Bug) -> None:
    """A job that came alone is not announced."""
    bug.lua("single_enqueue", "redis.pcall('PUBLISH', prefix .. ':ready', cmsgpack.pack({ lane }))", "local _ = lane")


@mutant("EVENT-2", stores=REDIS)
def single_enqueue_grows_the_log_in_silence(bug: Bug) -> None:
    """Who follows the log is not told of a job that came alone."""
    bug.lua("single_enqueue", "redis.pcall('PUBLISH', prefix .. ':events', '')", "")


@mutant("EVENT-2", "EVENT-1", stores=REDIS)
def single_enqueue_leaves_the_end_of_the_log(bug: Bug) -> None:
    """Who wants to read from now on gets what came alone before."""
    bug.lua("single_enqueue", "'last', number, 'log', number,", "'last', number,")


@mutant("EVENT-1", "ENQ-4", stores=REDIS)
def single_event_tells_another_time(bug: Bug) -> None:
    """The event of a job that came alone does not say when it is due."""
    bug.lua("single_enqueue", "3, 1, priority, attempts, visible_at }, 1", "3, 1, priority, attempts, now }, 1")


# Deliveries -------------------------------------------------------------------------------------------------


@mutant("ENQ-5", stores=REDIS)
def delayed_job_is_delivered(bug: Bug) -> None:
    """A job that is not due is handed to whoever waits."""
    bug.lua("single_enqueue", "if state == STATE_READY and max(", "if max(")


@mutant("CLAIM-5", stores=REDIS)
def paused_queue_delivers(bug: Bug) -> None:
    """A paused queue hands new jobs to whoever waits."""
    bug.lua("single_enqueue", "not (any_paused and call('SISMEMBER', shard .. 'P', lane) == 1)", "true")


@mutant("CLAIM-2", stores=REDIS)
def delivery_overtakes_the_tenants_own_jobs(bug: Bug) -> None:
    """A new job is handed over although others of its queue wait."""
    bug.lua(
        "single_enqueue", "own_until > now and call('ZCARD', shard .. 'w:' .. lane) == 0 then", "own_until > now then"
    )


@mutant("TENANT-4", stores=REDIS)
def delivery_overtakes_who_takes_turns(bug: Bug) -> None:
    """A new job is handed over although others wait for their turns."""
    bug.lua("single_enqueue", " and call('ZCARD', shard .. 'T:' .. queue) == 0 then", " then")


@mutant("TENANT-4", "CLAIM-2", stores=REDIS)
def delivery_overtakes_who_enters_the_turns(bug: Bug) -> None:
    """A new job is handed over although others have just become due."""
    bug.lua("single_enqueue", "if not head or tonumber(head) > now then", "if true then")


@mutant("CLAIM-3", stores=REDIS)
def delivery_into_the_void(bug: Bug) -> None:
    """Jobs are handed to workers that are gone."""
    bug.lua("single_enqueue", " and (redis.pcall('PUBSUB', 'NUMSUB', found[1])[2] or 0) > 0", "")


@mutant("CLAIM-1", stores=REDIS)
def old_offer_is_used(bug: Bug) -> None:
    """An offer that is over is used, if another's is not."""
    bug.lua("single_enqueue", "if registration[WAITER_UNTIL] > now and", "if")


@mutant("CLAIM-1", stores=REDIS)
def offer_lasts_for_ever(bug: Bug) -> None:
    """An offer has no end."""
    bug.lua("claim", "now + lasts_ms, room", "now + 1000 * lasts_ms, room")


@mutant("RETRY-1", "CLAIM-1", stores=REDIS)
def delivery_costs_no_attempt(bug: Bug) -> None:
    """A delivered job has no attempt counted."""
    bug.lua(
        "single_enqueue", "inbox and STATE_LEASED or state, inbox and 1 or 0,", "inbox and STATE_LEASED or state, 0,"
    )


@mutant("CLAIM-1", "STATE-1", stores=REDIS)
def delivered_job_is_ready(bug: Bug) -> None:
    """A delivered job shows as ready."""
    bug.lua("single_enqueue", "inbox and STATE_LEASED or state, inbox", "state, inbox")


@mutant("CLAIM-1", stores=REDIS)
def deadline_counts_from_the_end_of_the_offer(bug: Bug) -> None:
    """The lease of a delivered job is longer than was asked for."""
    bug.lua(
        "single_enqueue",
        "= now + registration[WAITER_LEASE_MS], now",
        "= registration[WAITER_UNTIL] + registration[WAITER_LEASE_MS], now",
    )


@mutant("CLAIM-1", stores=REDIS)
def delivered_lease_has_another_length(bug: Bug) -> None:
    """The lease of a delivered job is as long as the offer."""
    bug.lua("claim", "number, lease_ms, worker, tenant, queues", "number, lasts_ms, worker, tenant, queues")


@mutant("CLAIM-1", stores=REDIS)
def delivered_lease_has_no_start(bug: Bug) -> None:
    """A delivered job does not say when it was leased."""
    bug.lua("single_enqueue", "= now + registration[WAITER_LEASE_MS], now", "= now + registration[WAITER_LEASE_MS], 0")


@mutant("LEASE-3", stores=REDIS)
def delivered_lease_is_not_in_line(bug: Bug) -> None:
    """The lease of a delivered job never runs out."""
    bug.lua("single_enqueue", "call('ZADD', shard .. 'l:' .. lane, deadline, member)", "")


@mutant("LEASE-3", stores=REDIS)
def delivered_lease_is_not_watched(bug: Bug) -> None:
    """Nobody looks when the lease of a delivered job runs out."""
    bug.lua("single_enqueue", "call('ZADD', shard .. 'L', 'LT', deadline, lane)", "")


@mutant("LEASE-3", stores=REDIS)
def delivered_lease_hides_a_shorter_one(bug: Bug) -> None:
    """A queue is looked at when the lease delivered last runs out."""
    bug.lua("single_enqueue", "'L', 'LT', deadline, lane", "'L', deadline, lane")


@mutant("CLAIM-1", "STATE-1", stores=REDIS)
def delivered_job_stays_in_line(bug: Bug) -> None:
    """A delivered job is handed out once more by a claim."""
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
    """The log takes itself for shorter than it is."""
    bug.lua("single_enqueue", "logged_total + logged", "logged_total + 1")


@mutant("CLAIM-1", "EVENT-1", stores=REDIS)
def delivery_event_tells_the_attempt_before(bug: Bug) -> None:
    """The event of a delivery has the number of attempts as it was."""
    bug.lua(
        "single_enqueue", "log[17] = EVENT_CLAIMED, 1, id, 2, 1, token", "log[17] = EVENT_CLAIMED, 1, id, 2, 0, token"
    )


@mutant("CLAIM-1", "EVENT-1", stores=REDIS)
def delivery_event_has_no_token(bug: Bug) -> None:
    """The event of a delivery does not say under which lease."""
    bug.lua("single_enqueue", "log[17] = EVENT_CLAIMED, 1, id, 2, 1, token", "log[17] = EVENT_CLAIMED, 1, id, 2, 1, 0")


@mutant("CLAIM-1", "EVENT-1", stores=REDIS)
def delivery_event_has_no_worker(bug: Bug) -> None:
    """The event of a delivery does not say to whom."""
    bug.lua("single_enqueue", "log[21] = 4, 2, now, deadline", "log[21] = 3, 2, now, deadline")


@mutant("CLAIM-1", stores=REDIS)
def delivery_tells_another_time(bug: Bug) -> None:
    """With a delivered job comes another time than the store's."""
    bug.lua(
        "single_enqueue",
        "registration[WAITER_NUMBER], now, #lane",
        "registration[WAITER_NUMBER], registration[WAITER_UNTIL], #lane",
    )


@mutant("CLAIM-1", stores=REDIS)
def delivery_is_not_sent(bug: Bug) -> None:
    """A job is leased to a worker, which is not told."""
    bug.lua("single_enqueue", "redis.pcall('PUBLISH', inbox, sent)", "local _ = sent")


# How many ---------------------------------------------------------------------------------------------------


@mutant("CLAIM-1", stores=REDIS)
def offer_is_never_used_up(bug: Bug) -> None:
    """A worker that offered to take one job is sent all that come."""
    bug.lua("single_enqueue", "registration[WAITER_ROOM_LEFT] = registration[WAITER_ROOM_LEFT] - 1", "")


@mutant("CLAIM-1", stores=REDIS)
def offer_is_used_up_one_too_late(bug: Bug) -> None:
    """A worker is sent one job more than it has room for."""
    bug.lua(
        "single_enqueue",
        "registration[WAITER_ROOM_LEFT] > 0 and cmsgpack",
        "registration[WAITER_ROOM_LEFT] >= 0 and cmsgpack",
    )


@mutant("CLAIM-1", stores=REDIS)
def offer_counts_for_each_queue(bug: Bug) -> None:
    """A worker with two queues is sent twice what it has room for."""
    bug.lua("single_enqueue", "in ipairs(registration[WAITER_QUEUES]) do", "in ipairs({ queue }) do")


@mutant("CLAIM-1", stores=REDIS)
def own_offers_are_counted_elsewhere(bug: Bug) -> None:
    """The offer of a worker of one tenant is counted down where nobody looks."""
    bug.lua("single_enqueue", "(registration[WAITER_TENANT] and own_table or", "(false and own_table or")


@mutant("CLAIM-1", stores=REDIS)
def offer_counts_what_was_claimed(bug: Bug) -> None:
    """A claim that got some jobs offers to take all that it wished for."""
    bug.lua("claim", "min(limit - picked, free - in_flight - picked, max_room)", "min(limit, max_room)")


@mutant("CLAIM-1", stores=REDIS)
def offer_counts_what_would_be_claimed_ahead(bug: Bug) -> None:
    """A worker is sent jobs that it cannot start."""
    bug.lua("claim", "free - in_flight - picked, ", "")


@mutant("CLAIM-1", stores=REDIS)
def claimed_jobs_take_up_no_free_room(bug: Bug) -> None:
    """What a claim got does not count among what could start at once."""
    bug.lua("claim", "free - in_flight - picked,", "free - in_flight,")


@mutant("CLAIM-1", stores=REDIS)
def jobs_on_their_way_take_up_no_free_room(bug: Bug) -> None:
    """What has not come yet does not count among what could start at once."""
    bug.lua("claim", "free - in_flight - picked,", "free - picked,")


@mutant("CLAIM-1", stores=REDIS)
def claim_does_not_count_what_is_on_its_way(bug: Bug) -> None:
    """A worker gets what it wished for on top of what was handed to it."""
    bug.lua("claim", "limit = limit - in_flight", "limit = limit + 0 * in_flight")


@mutant("CLAIM-1", stores=REDIS)
def offer_that_is_used_up_is_forgotten(bug: Bug) -> None:
    """What is on its way under an offer that is used up does not count."""
    bug.lua("waiters", "return max(0, room - received)", "return 0")


@mutant("CLAIM-1", stores=REDIS)
def offer_that_is_used_up_counts_twice(bug: Bug) -> None:
    """What came under an offer that is used up is taken to be on its way."""
    bug.lua("waiters", "return max(0, room - received)", "return room")


@mutant("CLAIM-1", stores=REDIS)
def offer_that_is_used_in_part_is_forgotten(bug: Bug) -> None:
    """What is on its way under an offer of which some is left does not count."""
    bug.lua("waiters", "max(0, used - received)", "0")


@mutant("CLAIM-1", stores=REDIS)
def offer_that_is_used_in_part_counts_twice(bug: Bug) -> None:
    """What came under an offer of which some is left is taken to be on its way."""
    bug.lua("waiters", "max(0, used - received)", "used")


@mutant("CLAIM-1", stores=REDIS)
def claim_leaves_the_last_offer(bug: Bug) -> None:
    """A worker that has no room left is still sent what it offered to take before."""
    bug.lua("waiters", "write_registration(channel, tables, false)", "local _ = channel")


@mutant("CLAIM-1", stores=REDIS)
def offer_takes_those_of_others_away(bug: Bug) -> None:
    """A worker that begins to wait has the offers of others forgotten."""
    bug.lua("waiters", "if cmsgpack.unpack(some[n + 1])[WAITER_UNTIL] <= now then", "if true then")


# Completion of one ------------------------------------------------------------------------------------------


@mutant("LEASE-1", "TENANT-2", stores=REDIS)
def single_completion_ignores_the_token(bug: Bug) -> None:
    """Whoever knows the address of a running job can complete it alone."""
    bug.lua("single_finish", "token == tokens[1] and ", "")


@mutant("LEASE-1", "EVENT-1", stores=REDIS)
def single_completion_is_carried_out_again(bug: Bug) -> None:
    """A completion that comes alone and again makes a second event."""
    bug.lua(
        "single_finish",
        "if state == STATE_LEASED and token == tokens[1] and spent == 0 and now < deadline",
        "if raw and token == tokens[1]",
    )


@mutant("CANCEL-1", "LEASE-1", stores=REDIS)
def single_completion_ignores_the_state(bug: Bug) -> None:
    """A handler that did not hear of the cancel completes its job all the same."""
    bug.lua("single_finish", "if state == STATE_LEASED and", "if raw and state ~= 5 and")
    bug.lua("single_finish", " and now < deadline", "")


@mutant("LEASE-1", stores=REDIS)
def single_completion_ignores_the_deadline(bug: Bug) -> None:
    """A completion that comes alone and too late is accepted."""
    bug.lua("single_finish", " and now < deadline", "")


@mutant("LEASE-1", stores=REDIS)
def single_completion_at_the_deadline(bug: Bug) -> None:
    """At the very deadline a completion that comes alone is accepted."""
    bug.lua("single_finish", "now < deadline", "now <= deadline")


@mutant("ENQ-3", stores=REDIS)
def single_completion_leaves_the_key(bug: Bug) -> None:
    """A job with a key that is completed alone holds it."""
    bug.lua("single_finish", " and key_size == 0", "")
    bug.lua(
        "single_finish",
        "static_size + request_size + payload_size",
        "static_size + request_size + key_size + payload_size",
    )


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def single_completion_forgets_that_it_has_a_blob(bug: Bug) -> None:
    """A result that is in a blob is not deleted with its job."""
    bug.lua("single_finish", " and not in_blob[1]", "")


@mutant("RETRY-4", stores=REDIS)
def single_completion_forgets_the_errors(bug: Bug) -> None:
    """A completion that comes alone drops the history."""
    bug.lua(
        "single_finish",
        "priority, extra_size, visible_at, token, 0, claimed_at, now",
        "priority, 0, visible_at, token, 0, claimed_at, now",
    )
    bug.lua("single_finish", "stop + worker_size + extra_size) .. result", "stop + worker_size) .. result")


@mutant("LEASE-1", stores=REDIS)
def single_completion_is_not_spent(bug: Bug) -> None:
    """A completion that comes alone and again is told that it came too late."""
    bug.lua(
        "single_finish",
        "STATE_COMPLETED, attempts, OUTCOME_COMPLETE, STATE_COMPLETED, events",
        "5, attempts, 0, 0, events",
    )


@mutant("RESULT-1", stores=REDIS)
def single_completion_keeps_the_deadline(bug: Bug) -> None:
    """A job that was completed alone still shows a deadline."""
    bug.lua("single_finish", "token, 0, claimed_at, now", "token, deadline, claimed_at, now")


@mutant("RESULT-1", "STATE-1", stores=REDIS)
def single_completion_still_counts_as_leased(bug: Bug) -> None:
    """A job that was completed alone stands among the leased ones."""
    bug.lua("single_finish", "call('ZREM', shard .. 'l:' .. lane, member)", "")


@mutant("STATE-1", "RESULT-1", stores=REDIS)
def single_completion_is_not_listed(bug: Bug) -> None:
    """A job that was completed alone is in no list."""
    bug.lua("single_finish", "call('ZADD', shard .. 'C:' .. lane, now, member)", "")


@mutant("KEEP-1", stores=REDIS)
def single_completion_is_never_pruned(bug: Bug) -> None:
    """A job that was completed alone is kept for ever."""
    bug.lua("single_finish", "call('ZADD', shard .. 'e:' .. lane, now + ttl, member)", "")


@mutant("KEEP-1", stores=REDIS)
def single_retention_is_not_watched(bug: Bug) -> None:
    """Nobody looks when the retention of a job is over that was completed alone."""
    bug.lua("single_finish", "call('ZADD', shard .. 'E', 'LT', now + ttl, lane)", "")


@mutant("KEEP-1", stores=REDIS)
def single_retention_hides_a_shorter_one(bug: Bug) -> None:
    """A queue is looked at when the job ends that was completed last."""
    bug.lua("single_finish", "'E', 'LT', now + ttl", "'E', now + ttl")


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def single_retention_counts_from_the_claim(bug: Bug) -> None:
    """The time that a job ran is taken off the time that its result is kept."""
    bug.lua("single_finish", "claimed_at, now, now + ttl, ttl", "claimed_at, now, claimed_at + ttl, ttl")


@mutant("EVENT-1", stores=REDIS)
def single_completion_event_has_no_token(bug: Bug) -> None:
    """The event of a completion that came alone does not say under which lease."""
    bug.lua("single_finish", "attempts, token, 3, events", "attempts, 0, 3, events")


@mutant("EVENT-1", stores=REDIS)
def single_completion_event_has_no_worker(bug: Bug) -> None:
    """The event of a completion that came alone does not say whose it was."""
    bug.lua("single_finish", "{ lane, type, worker }", "{ lane, type, '' }")


@mutant("RESULT-2", stores=REDIS)
def single_completion_wakes_nobody(bug: Bug) -> None:
    """Who waits is not told of a completion that came alone."""
    bug.lua(
        "single_finish",
        "redis.pcall('PUBLISH', prefix .. ':done', in_full or cmsgpack.pack({ lane, id }))",
        "local _ = in_full",
    )


@mutant("RESULT-2", stores=REDIS)
def single_completion_tells_what_was_before(bug: Bug) -> None:
    """Who waits is sent the record as it was before the completion."""
    bug.lua("single_finish", "#record) .. lane .. id .. record", "#raw) .. lane .. id .. raw")


@mutant("RESULT-2", "RESULT-1", stores=REDIS)
def single_completion_tells_what_is_forgotten(bug: Bug) -> None:
    """Who waits is sent the record of a job that is gone."""
    bug.lua("single_finish", "ttl > 0 and #record < MAX_RECORDS_BYTES", "#record < MAX_RECORDS_BYTES")


@mutant("EVENT-2", stores=REDIS)
def single_completion_grows_the_log_in_silence(bug: Bug) -> None:
    """Who follows the log is not told of a completion that came alone."""
    bug.lua("single_finish", "redis.pcall('PUBLISH', prefix .. ':events', '')", "")


@mutant("EVENT-2", "EVENT-1", stores=REDIS)
def single_completion_leaves_the_end_of_the_log(bug: Bug) -> None:
    """Who wants to read from now on gets the completion that came alone before."""
    bug.lua("single_finish", "'last', number, 'log', number,", "'last', number,")


@mutant("EVENT-2", stores=REDIS)
def single_completion_is_not_counted_in_the_log(bug: Bug) -> None:
    """The log takes itself for shorter than it is."""
    bug.lua("single_finish", "logged_total + 1", "logged_total + 0")
