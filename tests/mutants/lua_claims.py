"""Bugs in Lua: which jobs a claim gets, in which turns, and when it looks again."""

from __future__ import annotations

from tests.mutants.planting import REDIS, SHARDS, Bug, mutant

# A lease ------------------------------------------------------------------------------------------------------


@mutant("RETRY-1", "CLAIM-1", stores=REDIS)
def fast_claim_costs_two_attempts(bug: Bug) -> None:
    """The fast path of a lease counts the attempt twice."""
    bug.lua("granting", "STATE_LEASED, attempts + 1, 0, 0, events", "STATE_LEASED, attempts + 2, 0, 0, events")


@mutant("RETRY-1", "RETRY-2", stores=REDIS)
def slow_claim_costs_no_attempt(bug: Bug) -> None:
    """A job that failed once is retried forever."""
    bug.lua("granting", "job.attempts + 1, token, deadline", "job.attempts, token, deadline")


@mutant("CLAIM-1", "LEASE-5", stores=REDIS)
def claim_gives_one_token_to_all(bug: Bug) -> None:
    """The jobs of one claim have the same token."""
    bug.lua("granting", "token + n - 1", "token")


@mutant("CLAIM-1", "TIME-1", stores=REDIS)
def tokens_follow_the_clock_alone(bug: Bug) -> None:
    """Two claims at the same instant, or after the clock was set back, grant the same tokens."""
    bug.lua("granting", "local token = next_numbers(picked)", "local token = micros")


@mutant("LEASE-5", "CLAIM-1", stores=REDIS)
def each_job_counts_its_own_tokens(bug: Bug) -> None:
    """The token is the number of the job's lease, and starts again with a new life of the id."""
    bug.lua(
        "granting",
        "local record = start ..",
        "token = struct.unpack('<I8', raw, AT_TOKEN) + 1\n  local record = start ..",
    )


@mutant("RETRY-5", stores=REDIS)
def fast_claim_keeps_the_token_spent(bug: Bug) -> None:
    """A job that was released and claimed again cannot be completed."""
    bug.lua(
        "granting",
        "local record = start ..",
        "local record = sub(start, 1, 2) .. sub(raw, 3, 4) .. sub(start, 5, 8) ..",
    )


@mutant("RETRY-1", "RETRY-4", stores=REDIS)
def slow_claim_keeps_the_token_spent(bug: Bug) -> None:
    """A job that was retried and claimed again cannot be completed."""
    bug.lua(
        "granting", "job.worker, job.claimed_at, job.spent, job.spent_state = worker, now, 0, 0", "job.worker = worker"
    )


@mutant("DEAD-1", "RETRY-4", stores=REDIS)
def fast_claim_loses_the_history(bug: Bug) -> None:
    """The fast path of a lease is used for jobs with errors and replays, and loses them."""
    bug.lua("granting", "or extra_size > 0", "")


@mutant("LEASE-1", stores=REDIS)
def progress_outlives_its_attempt(bug: Bug) -> None:
    """The next attempt starts with the progress of the last one."""
    bug.lua("granting", "clear_progress(job)", "local _ = job")
    bug.lua("jobs", "now + delay, 0\n    clear_progress(job)", "now + delay, 0")


@mutant("EVENT-1", stores=REDIS)
def claims_are_logged_backwards(bug: Bug) -> None:
    """Leases are granted from the last job to the first."""
    bug.lua("granting", "for n = 1, picked do\n    lease_in_place(", "for n = picked, 1, -1 do\n    lease_in_place(")


@mutant("EVENT-1", stores=REDIS)
def claimed_event_has_the_attempt_before(bug: Bug) -> None:
    """The event of a lease has the attempt number from before the lease."""
    bug.lua("granting", "id, type, attempts + 1, token, worker, events", "id, type, attempts, token, worker, events")


@mutant("CLAIM-1", "TENANT-4", stores=REDIS)
def single_job_stays_in_line(bug: Bug) -> None:
    """A job that is the only one of its tenant in a claim is leased but stays in the index of waiting jobs."""
    bug.lua("granting", "call('ZREM', lane.w, member) == 1", "true")


@mutant("LEASE-3", stores=REDIS)
def single_lease_has_no_deadline(bug: Bug) -> None:
    """A lease that is the only one of its tenant in a claim is not in the index of deadlines."""
    bug.lua("granting", "call('ZADD', lane.l, deadline_text, member)", "")


@mutant("TENANT-1", "CLAIM-1", stores=REDIS)
def records_of_a_lane_come_in_the_wrong_order(bug: Bug) -> None:
    """In a call over several tenants, a job gets the record of another job."""
    bug.lua("records", "raws[known[n]] = raw", "raws[known[#known - n + 1]] = raw")


# Which jobs ---------------------------------------------------------------------------------------------------


@mutant("ENQ-5", "CLAIM-2", stores=REDIS)
def job_shows_a_moment_early(bug: Bug) -> None:
    """A delayed job can be claimed a millisecond before its time."""
    bug.lua("turns", "if visible_at <= now then", "if visible_at <= now + 1 then")


@mutant("CLAIM-2", stores=REDIS)
def delayed_jobs_hide_ready_ones(bug: Bug) -> None:
    """The first job of a lane that is not due ends the search."""
    bug.lua("turns", "scan.min_score, scan.skip,", "if true then return nil end\n      scan.min_score, scan.skip,")


@mutant("TENANT-4", stores=REDIS)
def walk_ends_with_its_first_range(bug: Bug) -> None:
    """A tenant with more turns in a claim than expected counts as one without jobs."""
    bug.lua("turns", "scan.exhausted = #scan.found < 2 * scan.chunk", "scan.exhausted = true")


@mutant("TENANT-4", stores=REDIS)
def first_queue_is_emptied_first(bug: Bug) -> None:
    """A claim over several queues takes all it can from the first one."""
    bug.lua(
        "picking",
        "if picked < limit and pick_from() then",
        "while picked < limit and pick_from() do end\n    if false then",
    )


@mutant("CLAIM-5", stores=REDIS)
def paused_queue_serves_its_tenant(bug: Bug) -> None:
    """A pause stops workers for all tenants, but not the tenant's own."""
    bug.lua("picking", "return not paused and pick_next(scan)", "return pick_next(scan)")


@mutant("CLAIM-5", stores=REDIS)
def paused_queue_enters_the_turns(bug: Bug) -> None:
    """A pause stops the tenant's own workers, but not those for all tenants."""
    bug.lua("turns", "not present[n] and not (any_paused and is_paused(lane_named(tenant, queue)))", "not present[n]")


@mutant("CLAIM-5", "TENANT-4", stores=REDIS)
def paused_queue_stays_in_the_turns(bug: Bug) -> None:
    """A queue that is paused while its tenant takes turns still takes them."""
    bug.lua("pause", "leave_turns(queue, lane, tonumber(time))", "local _ = time")
    bug.lua(
        "turns",
        "if not is_paused(lane) and next_visible(new_scan(lane, 1)) then",
        "if next_visible(new_scan(lane, 1)) then",
    )


@mutant("TENANT-4", "CLAIM-5", stores=REDIS)
def resumed_queue_is_forgotten_in_the_turns(bug: Bug) -> None:
    """A resumed queue is served only by the tenant's own workers."""
    bug.lua("pause", "call('ZADD', shard .. 'N:' .. queue, 'LT', now, tenant)", "local _ = tenant")


@mutant("CLAIM-3", stores=REDIS)
def resume_sends_no_hint(bug: Bug) -> None:
    """Workers get no hint of a resume."""
    bug.lua("pause", "hints.ready[1] = lane.name", "local _ = lane.name")


@mutant("CLAIM-5", stores=REDIS)
def stats_do_not_show_a_pause(bug: Bug) -> None:
    """A paused queue looks like any other."""
    bug.lua("stats", "is_paused(lane) and 1 or 0, oldest", "0, oldest")


# Turns --------------------------------------------------------------------------------------------------------


@mutant("TENANT-4", stores=REDIS)
def turns_cost_nothing(bug: Bug) -> None:
    """The first tenant is served until it has no more."""
    bug.lua("picking", "turn.time + cost_of(", "turn.time + 0 * cost_of(")


@mutant("TENANT-4", stores=REDIS)
def all_weights_are_one(bug: Bug) -> None:
    """Every tenant gets the same share."""
    bug.lua("lanes", "settings and (settings[1][SETTING_COST] or settings[2][SETTING_COST]) or TURN_COST", "TURN_COST")


@mutant("TENANT-4", stores=REDIS)
def weight_of_a_queue_is_ignored(bug: Bug) -> None:
    """The weight of the tenant counts in all its queues."""
    bug.lua("lanes", "(settings[1][SETTING_COST] or settings[2][SETTING_COST])", "settings[2][SETTING_COST]")


@mutant("TENANT-4", stores=REDIS)
def newcomer_gets_the_turns_it_missed(bug: Bug) -> None:
    """A tenant that starts late enters at 0, and gets all the turns that it missed."""
    bug.lua("turns", "max(own, minimum)", "own")


@mutant("TENANT-4", stores=REDIS)
def leaving_clears_the_debt(bug: Bug) -> None:
    """A tenant that leaves and returns enters at the minimum, although its own time was later."""
    bug.lua("turns", "max(own, minimum)", "minimum")


@mutant("TENANT-4", stores=REDIS)
def idle_queue_forgets_how_far_it_was(bug: Bug) -> None:
    """The first tenant at an idle queue enters at 0, ahead of all that return."""
    bug.lua("picking", "if minimum then", "if false then")


@mutant("TENANT-4", stores=REDIS)
def turns_end_with_the_claim(bug: Bug) -> None:
    """The cost of a claim for a tenant is not stored."""
    bug.lua("picking", "elseif turn.took_turn then", "elseif false then")


@mutant("TENANT-4", stores=REDIS)
def second_page_of_tenants_is_left_out(bug: Bug) -> None:
    """A claim reads as many tenants as it wants jobs, even if some have none."""
    bug.lua("picking", "at, following = 1, following + limit", "at, following = 1, 1000000")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def exhausted_lane_never_comes_back(bug: Bug) -> None:
    """A tenant without visible work does not enter again when its delayed jobs are due."""
    bug.lua("turns", "call('ZADD', shard .. 'N:' .. queue, at, tenant)", "local _ = tenant")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def lane_that_came_too_early_never_comes_back(bug: Bug) -> None:
    """A tenant whose due job is gone when it enters is forgotten together with its delayed jobs."""
    bug.lua("turns", "leave_turns(queue, lane, own)", "call('ZREM', shard .. 'T:' .. queue, tenant)")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def later_job_hides_a_sooner_one(bug: Bug) -> None:
    """A tenant enters the turns when its last job is due, not its first."""
    bug.lua("writes", "'N:' .. queue, 'LT', lane.arrived, tenant", "'N:' .. queue, lane.arrived, tenant")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def first_job_of_a_batch_speaks_for_all(bug: Bug) -> None:
    """A tenant enters the turns when the first job of its batch is due, though others are due before."""
    bug.lua("writes", "elseif visible_at < lane.arrived then", "elseif false then")


@mutant("CLAIM-3", stores=REDIS)
def soonest_job_is_that_of_the_highest_priority(bug: Bug) -> None:
    """An urgent job that is due late hides when the others are due."""
    bug.lua(
        "turns",
        "best = min(best or score, score - band * PRIORITY_BAND)",
        "if true then return score - band * PRIORITY_BAND end",
    )


# When to look again -------------------------------------------------------------------------------------------


@mutant("CLAIM-3", stores=REDIS)
def next_look_forgets_deadlines(bug: Bug) -> None:
    """An empty claim does not say when the next lease runs out."""
    bug.lua("claim", "consider(next_deadline())", "consider(nil)")


@mutant("CLAIM-3", stores=REDIS)
def next_look_forgets_the_tenants_jobs(bug: Bug) -> None:
    """An empty claim of one tenant does not say when its next job is due."""
    bug.lua("claim", "consider(earliest_visible(lane_named(tenant, queue)))", "consider(nil)")


@mutant("CLAIM-3", stores=REDIS)
def next_look_forgets_the_turns(bug: Bug) -> None:
    """An empty claim over all tenants does not say when the next job is due."""
    bug.lua(
        "claim", "consider(tonumber(call('ZRANGE', shard .. 'N:' .. queue, 0, 0, 'WITHSCORES')[2]))", "consider(nil)"
    )


@mutant("CLAIM-3", "LEASE-3", stores=REDIS)
def next_look_goes_by_an_old_deadline(bug: Bug) -> None:
    """The deadline of an ended lease is returned as the next one."""
    bug.lua("leases", "if not head[1] or correct_bound(", "if true or correct_bound(")


@mutant("CLAIM-3", stores=REDIS)
def next_look_is_the_last_one(bug: Bug) -> None:
    """Of a due time and a deadline, the later one is returned."""
    bug.lua("claim", "(not next_at or moment < next_at)", "(not next_at or moment > next_at)")


# Several shards -----------------------------------------------------------------------------------------------


@mutant("TENANT-4", "CLAIM-4", stores=SHARDS)
def shard_in_mid_turn_is_passed_over(bug: Bug) -> None:
    """A shard whose tenants all have turns already counts as one without work."""
    bug.lua("probe", "if present > 0 then", "if false then")


@mutant("TENANT-4", "CLAIM-5", stores=SHARDS)
def shard_with_new_work_is_passed_over(bug: Bug) -> None:
    """A shard whose tenants are about to enter the turns counts as one without work."""
    bug.lua("probe", "if moment and moment <= now then", "if moment and moment < 0 then")


@mutant("CLAIM-3", stores=SHARDS)
def shard_does_not_say_when_to_look(bug: Bug) -> None:
    """A shard without work does not return when it will have some."""
    bug.lua("probe", "next_at = moment", "next_at = next_at")


@mutant("LEASE-3", stores=SHARDS)
def shard_with_an_expired_lease_is_passed_over(bug: Bug) -> None:
    """A claim over all tenants ends leases only where it finds work."""
    bug.lua("probe", "consider(tonumber(call('ZRANGE', shard .. 'L', 0, 0, 'WITHSCORES')[2]))", "consider(nil)")


@mutant("CLAIM-2", "ENQ-5", stores=REDIS)
def all_that_was_read_counts_as_due(bug: Bug) -> None:
    """A range of waiting jobs counts as due if its first one is."""
    bug.lua(
        "turns",
        "last_one - band * PRIORITY_BAND <= now and size or 0",
        "first - band * PRIORITY_BAND <= now and size or 0",
    )


@mutant("CLAIM-2", stores=REDIS)
def priorities_are_mixed_up_in_what_was_read(bug: Bug) -> None:
    """A range over two priorities counts as due if its last job seems so."""
    bug.lua(
        "turns",
        "floor(last_one / PRIORITY_BAND) == band and last_one - band * PRIORITY_BAND <= now",
        "last_one - floor(last_one / PRIORITY_BAND) * PRIORITY_BAND <= now",
    )


# Lanes that give one job each ---------------------------------------------------------------------------------


@mutant("CLAIM-2", "ENQ-5", "ENQ-4", stores=REDIS)
def job_that_is_not_due_is_lost_on_the_way(bug: Bug) -> None:
    """A job that was taken out for a check is not put back."""
    bug.lua("picking", "call('ZADD', scan.lane.w, first[2], first[1])", "local _ = first")


@mutant("ENQ-5", "CLAIM-2", "TENANT-4", stores=REDIS)
def job_that_is_not_due_is_taken_out(bug: Bug) -> None:
    """If a lane gives one job, its first one is taken, due or not."""
    bug.lua("picking", "if score and score % PRIORITY_BAND > now then", "if false then")


@mutant("CLAIM-2", "TENANT-4", stores=REDIS)
def delayed_job_hides_others_where_a_lane_gives_one(bug: Bug) -> None:
    """A job of high priority that is not due hides the others of its tenant."""
    bug.lua(
        "picking",
        "local member = first or next_visible(scan)",
        "local member = first == false and next_visible(scan) or first",
    )


@mutant("TENANT-4", stores=REDIS)
def entering_without_work_clears_the_debt(bug: Bug) -> None:
    """A tenant that entered without visible jobs leaves without its virtual time."""
    bug.lua("turns", "leave_turns(queue, lane, own)", "leave_turns(queue, lane, 0)")


@mutant("TENANT-4", stores=REDIS)
def a_turn_without_work_clears_the_debt(bug: Bug) -> None:
    """A tenant without visible jobs at its turn leaves without its virtual time."""
    bug.lua("picking", "not turn.took_turn and entered[turn.tenant] or turn.time", "turn.took_turn and turn.time or 0")
