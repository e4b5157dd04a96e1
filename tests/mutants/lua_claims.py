"""Bugs in Lua: which jobs a claim gets, in which turns, and when it looks again."""

from __future__ import annotations

from tests.mutants.planting import REDIS, SHARDS, Bug, mutant

# A lease ------------------------------------------------------------------------------------------------------


@mutant("RETRY-1", "CLAIM-1", stores=REDIS)
def fast_claim_costs_two_attempts(bug: Bug) -> None:
    """The short way of a lease counts the attempt twice."""
    bug.lua("claim", "LEASED, attempts + 1, 0, 0, events", "LEASED, attempts + 2, 0, 0, events")


@mutant("RETRY-1", "RETRY-2", stores=REDIS)
def slow_claim_costs_no_attempt(bug: Bug) -> None:
    """A job that failed once is retried for ever."""
    bug.lua("claim", "job.attempts + 1, token, deadline", "job.attempts, token, deadline")


@mutant("CLAIM-1", "LEASE-5", stores=REDIS)
def claim_gives_one_token_to_all(bug: Bug) -> None:
    """The jobs of one claim have the same token."""
    bug.lua("claim", "token + n - 1", "token")


@mutant("CLAIM-1", "TIME-1", stores=REDIS)
def tokens_follow_the_clock_alone(bug: Bug) -> None:
    """Two claims at the same moment, or after the clock went back, grant the same tokens."""
    bug.lua("claim", "local token = tick(picks)", "local token = micros")


@mutant("LEASE-5", "CLAIM-1", stores=REDIS)
def each_job_counts_its_own_tokens(bug: Bug) -> None:
    """The token is the number of the lease, and starts again when the id does."""
    bug.lua("claim", "raws[n] = start ..", "token = struct.unpack('<I8', raw, 25) + 1\n  raws[n] = start ..")


@mutant("RETRY-5", stores=REDIS)
def fast_claim_keeps_the_token_spent(bug: Bug) -> None:
    """A job that was released and claimed again cannot be completed."""
    bug.lua("claim", "raws[n] = start ..", "raws[n] = sub(start, 1, 2) .. sub(raw, 3, 4) .. sub(start, 5, 8) ..")


@mutant("RETRY-1", "RETRY-4", stores=REDIS)
def slow_claim_keeps_the_token_spent(bug: Bug) -> None:
    """A job that was retried and claimed again cannot be completed."""
    bug.lua(
        "claim", "job.worker, job.claimed_at, job.spent, job.spent_state = worker, now, 0, 0", "job.worker = worker"
    )


@mutant("DEAD-1", "RETRY-4", stores=REDIS)
def fast_claim_loses_the_history(bug: Bug) -> None:
    """The short way of a lease is taken for jobs with errors and replays, which are gone then."""
    bug.lua("claim", "or extra_size > 0", "")


@mutant("LEASE-1", stores=REDIS)
def progress_outlives_its_attempt(bug: Bug) -> None:
    """The next attempt starts with the progress of the last one."""
    bug.lua("claim", "drop_progress(job)", "local _ = job")
    bug.lua("jobs", "now + delay, 0\n    drop_progress(job)", "now + delay, 0")


@mutant("EVENT-1", stores=REDIS)
def claims_are_logged_backwards(bug: Bug) -> None:
    """Leases are granted from the last job to the first."""
    bug.lua("claim", "for n = 1, picks do\n    lease(", "for n = picks, 1, -1 do\n    lease(")


@mutant("EVENT-1", stores=REDIS)
def claimed_event_tells_the_attempt_before(bug: Bug) -> None:
    """The event of a lease has the number of attempts as it was."""
    bug.lua("claim", "id, type, attempts + 1, token, worker, events", "id, type, attempts, token, worker, events")


@mutant("CLAIM-1", "TENANT-4", stores=REDIS)
def lone_job_stays_in_line(bug: Bug) -> None:
    """A job that is the only one of its tenant in a claim is leased and not taken out of the line."""
    bug.lua("claim", "call('ZREM', lane.w, member)", "")


@mutant("LEASE-3", stores=REDIS)
def lone_lease_has_no_deadline(bug: Bug) -> None:
    """A lease that is the only one of its tenant in a claim is not in the index of deadlines."""
    bug.lua("claim", "call('ZADD', lane.l, deadline_text, member)", "")


@mutant("TENANT-1", "CLAIM-1", stores=REDIS)
def records_of_a_lane_come_in_the_wrong_order(bug: Bug) -> None:
    """In a call over several tenants a job gets the record of another one of its own."""
    bug.lua("jobs", "raws[known[n]] = raw", "raws[known[#known - n + 1]] = raw")


# Which jobs ---------------------------------------------------------------------------------------------------


@mutant("ENQ-5", "CLAIM-2", stores=REDIS)
def job_shows_a_moment_early(bug: Bug) -> None:
    """A delayed job is handed out a millisecond before its time."""
    bug.lua("turns", "if visible_at <= now then", "if visible_at <= now + 1 then")


@mutant("CLAIM-2", stores=REDIS)
def delayed_jobs_hide_ready_ones(bug: Bug) -> None:
    """The first job of a lane that is not due ends the search."""
    bug.lua("turns", "way.low, way.skip,", "if true then return nil end\n      way.low, way.skip,")


@mutant("TENANT-4", stores=REDIS)
def walk_ends_with_its_first_stretch(bug: Bug) -> None:
    """A tenant that has more turns in a claim than was thought is taken for one that has no more jobs."""
    bug.lua("turns", "way.dry = #way.found < 2 * way.chunk", "way.dry = true")


@mutant("TENANT-4", stores=REDIS)
def first_queue_is_emptied_first(bug: Bug) -> None:
    """A claim over several queues takes all it can get from the first."""
    bug.lua("claim", "if picks < limit and take() then", "while picks < limit and take() do end\n    if false then")


@mutant("CLAIM-5", stores=REDIS)
def paused_queue_serves_its_tenant(bug: Bug) -> None:
    """A pause stops workers for all tenants, and not the tenant's own."""
    bug.lua("claim", "return not paused and pick(way)", "return pick(way)")


@mutant("CLAIM-5", stores=REDIS)
def paused_queue_enters_the_turns(bug: Bug) -> None:
    """A pause stops the tenant's own workers, and not those for all."""
    bug.lua("turns", "not present[n] and not (any_paused and is_paused(lane_named(tenant, queue)))", "not present[n]")


@mutant("CLAIM-5", "TENANT-4", stores=REDIS)
def paused_queue_stays_in_the_turns(bug: Bug) -> None:
    """A queue that is paused while its tenant takes turns goes on taking them."""
    bug.lua("pause", "leave_turns(queue, lane, tonumber(time))", "local _ = time")
    bug.lua("turns", "if not is_paused(lane) and peek(walk(lane, 1)) then", "if peek(walk(lane, 1)) then")


@mutant("TENANT-4", "CLAIM-5", stores=REDIS)
def resumed_queue_is_forgotten_in_the_turns(bug: Bug) -> None:
    """A queue that goes on is served by its own workers alone."""
    bug.lua("pause", "call('ZADD', shard .. 'N:' .. queue, 'LT', now, tenant)", "local _ = tenant")


@mutant("CLAIM-3", stores=REDIS)
def resume_wakes_nobody(bug: Bug) -> None:
    """Workers do not learn that a queue goes on."""
    bug.lua("pause", "hints.ready[1] = lane.name", "local _ = lane.name")


@mutant("CLAIM-5", stores=REDIS)
def stats_do_not_tell_of_a_pause(bug: Bug) -> None:
    """A paused queue looks like any other."""
    bug.lua("stats", "is_paused(lane) and 1 or 0, oldest", "0, oldest")


# Turns --------------------------------------------------------------------------------------------------------


@mutant("TENANT-4", stores=REDIS)
def turns_cost_nothing(bug: Bug) -> None:
    """The first tenant is served until it has no more."""
    bug.lua("claim", "turn.time + cost_of(", "turn.time + 0 * cost_of(")


@mutant("TENANT-4", stores=REDIS)
def all_weights_are_one(bug: Bug) -> None:
    """Every tenant gets the same share."""
    bug.lua("lanes", "settings and (settings[1][1] or settings[2][1]) or 10000", "10000")


@mutant("TENANT-4", stores=REDIS)
def weight_of_a_queue_is_ignored(bug: Bug) -> None:
    """The weight of the tenant counts in all its queues."""
    bug.lua("lanes", "(settings[1][1] or settings[2][1])", "settings[2][1]")


@mutant("TENANT-4", stores=REDIS)
def newcomer_makes_up_for_lost_time(bug: Bug) -> None:
    """A tenant that comes late enters at 0, and gets all the turns that it was not there for."""
    bug.lua("turns", "max(own, least)", "own")


@mutant("TENANT-4", stores=REDIS)
def leaving_clears_the_debt(bug: Bug) -> None:
    """A tenant that leaves and comes back enters at the minimum, although it was further."""
    bug.lua("turns", "max(own, least)", "least")


@mutant("TENANT-4", stores=REDIS)
def idle_queue_forgets_how_far_it_was(bug: Bug) -> None:
    """Who is the first to come to an idle queue enters at 0, and is ahead of all that come back."""
    bug.lua("claim", "if least then", "if false then")


@mutant("TENANT-4", stores=REDIS)
def turns_end_with_the_claim(bug: Bug) -> None:
    """What a claim cost a tenant is not written down."""
    bug.lua("claim", "elseif turn.moved then", "elseif false then")


@mutant("TENANT-4", stores=REDIS)
def second_page_of_tenants_is_left_out(bug: Bug) -> None:
    """A claim looks at as many tenants as it wants jobs, whether or not they have any."""
    bug.lua("claim", "at, following = 1, following + limit", "at, following = 1, 1000000")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def dry_lane_never_comes_back(bug: Bug) -> None:
    """A tenant that runs out of visible work is not let in again when its delayed jobs are due."""
    bug.lua("turns", "call('ZADD', shard .. 'N:' .. queue, at, tenant)", "local _ = tenant")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def lane_that_came_too_early_never_comes_back(bug: Bug) -> None:
    """A tenant whose job was gone by the time it was let in is forgotten with its delayed jobs."""
    bug.lua("turns", "leave_turns(queue, lane, own)", "call('ZREM', shard .. 'T:' .. queue, tenant)")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def later_job_hides_a_sooner_one(bug: Bug) -> None:
    """A tenant enters the turns when its last job is due, not its first."""
    bug.lua("prelude", "'N:' .. queue, 'LT', lane.arrived, tenant", "'N:' .. queue, lane.arrived, tenant")


@mutant("TENANT-4", "CLAIM-3", stores=REDIS)
def first_job_of_a_batch_speaks_for_all(bug: Bug) -> None:
    """A tenant enters the turns when the first job of its batch is due, though others are due before."""
    bug.lua("prelude", "elseif visible_at < lane.arrived then", "elseif false then")


@mutant("CLAIM-3", stores=REDIS)
def soonest_job_is_that_of_the_highest_priority(bug: Bug) -> None:
    """An urgent job that is due late hides when the others are due."""
    bug.lua("turns", "best = min(best or score, score - band * BAND)", "if true then return score - band * BAND end")


# When to look again -------------------------------------------------------------------------------------------


@mutant("CLAIM-3", stores=REDIS)
def next_look_forgets_deadlines(bug: Bug) -> None:
    """An empty claim does not say when the next lease runs out."""
    bug.lua("claim", "look_at(next_deadline())", "look_at(nil)")


@mutant("CLAIM-3", stores=REDIS)
def next_look_forgets_the_tenants_jobs(bug: Bug) -> None:
    """An empty claim of one tenant does not say when its next job is due."""
    bug.lua("claim", "look_at(soonest(lane_named(tenant, queue)))", "look_at(nil)")


@mutant("CLAIM-3", stores=REDIS)
def next_look_forgets_the_turns(bug: Bug) -> None:
    """An empty claim over all tenants does not say when the next job is due."""
    bug.lua("claim", "look_at(tonumber(call('ZRANGE', shard .. 'N:' .. queue, 0, 0, 'WITHSCORES')[2]))", "look_at(nil)")


@mutant("CLAIM-3", "LEASE-3", stores=REDIS)
def next_look_goes_by_an_old_deadline(bug: Bug) -> None:
    """The deadline of a lease that has ended is told as the next one."""
    bug.lua("jobs", "if not head[1] or set_right(", "if true or set_right(")


@mutant("CLAIM-3", stores=REDIS)
def next_look_is_the_last_one(bug: Bug) -> None:
    """Of a due time and a deadline the later is told."""
    bug.lua("claim", "(not next_at or moment < next_at)", "(not next_at or moment > next_at)")


# Several shards -----------------------------------------------------------------------------------------------


@mutant("TENANT-4", "CLAIM-4", stores=SHARDS)
def shard_in_mid_turn_is_passed_over(bug: Bug) -> None:
    """A shard whose tenants are all in the turns already is taken for one without work."""
    bug.lua("look", "if present > 0 then", "if false then")


@mutant("TENANT-4", "CLAIM-5", stores=SHARDS)
def shard_with_new_work_is_passed_over(bug: Bug) -> None:
    """A shard whose tenants are to be let into the turns is taken for one without work."""
    bug.lua("look", "if moment and moment <= now then", "if moment and moment < 0 then")


@mutant("CLAIM-3", stores=SHARDS)
def shard_does_not_say_when_to_look(bug: Bug) -> None:
    """A shard without work does not say when it will have some."""
    bug.lua("look", "next_at = moment", "next_at = next_at")


@mutant("LEASE-3", stores=SHARDS)
def shard_with_an_expired_lease_is_passed_over(bug: Bug) -> None:
    """A claim over all tenants ends leases only where it finds work."""
    bug.lua("look", "look_at(tonumber(call('ZRANGE', shard .. 'L', 0, 0, 'WITHSCORES')[2]))", "look_at(nil)")


@mutant("CLAIM-2", "ENQ-5", stores=REDIS)
def all_that_was_read_counts_as_due(bug: Bug) -> None:
    """A stretch of waiting jobs is taken to be due if its first one is."""
    bug.lua("turns", "last_one - band * BAND <= now and size or 0", "first - band * BAND <= now and size or 0")


@mutant("CLAIM-2", stores=REDIS)
def priorities_are_not_told_apart_in_what_was_read(bug: Bug) -> None:
    """A stretch that goes over two priorities is taken to be due if its last one looks so."""
    bug.lua("turns", "return floor(last_one / BAND) == band and last_one - band * BAND <= now and size or 0",
            "return last_one - floor(last_one / BAND) * BAND <= now and size or 0")  # fmt: skip


# Lanes that give one job each ---------------------------------------------------------------------------------


@mutant("CLAIM-2", "ENQ-5", "ENQ-4", stores=REDIS)
def job_that_is_not_due_is_lost_on_the_way(bug: Bug) -> None:
    """A job that was taken out to be looked at is not put back."""
    bug.lua("claim", "call('ZADD', way.lane.w, first[2], first[1])", "local _ = first")


@mutant("ENQ-5", "CLAIM-2", "TENANT-4", stores=REDIS)
def job_that_is_not_due_is_taken_out(bug: Bug) -> None:
    """Where a lane gives one job, its first is taken, due or not."""
    bug.lua("claim", "if score and score % BAND > now then", "if false then")


@mutant("CLAIM-2", "TENANT-4", stores=REDIS)
def delayed_job_hides_others_where_a_lane_gives_one(bug: Bug) -> None:
    """A job of high priority that is not due hides the others of its tenant."""
    bug.lua("claim", "local member = first or peek(way)", "local member = first == false and peek(way) or first")


@mutant("TENANT-4", stores=REDIS)
def coming_in_vain_clears_the_debt(bug: Bug) -> None:
    """A tenant that was let in and had nothing visible leaves without the time it came with."""
    bug.lua("turns", "leave_turns(queue, lane, own)", "leave_turns(queue, lane, 0)")


@mutant("TENANT-4", stores=REDIS)
def coming_in_vain_to_ones_turn_clears_the_debt(bug: Bug) -> None:
    """A tenant whose turn came and who had nothing visible leaves without the time it came with."""
    bug.lua("claim", "not turn.moved and entered[turn.tenant] or turn.time", "turn.moved and turn.time or 0")
