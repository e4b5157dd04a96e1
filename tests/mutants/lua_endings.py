"""Bugs in Lua: who may acknowledge, what an outcome does, and leases that run out."""

from __future__ import annotations

from tests.mutants.planting import REDIS, Bug, mutant

# Who may acknowledge ------------------------------------------------------------------------------------------


@mutant("LEASE-1", "TIME-1", stores=REDIS)
def late_result_is_accepted(bug: Bug) -> None:
    """An acknowledgement past the deadline is accepted until the lease is reaped."""
    bug.lua("leases", "job.state ~= STATE_LEASED or now >= job.deadline", "job.state ~= STATE_LEASED")


@mutant("LEASE-1", stores=REDIS)
def deadline_itself_is_not_too_late(bug: Bug) -> None:
    """An acknowledgement is accepted at the exact deadline."""
    bug.lua("leases", "now >= job.deadline", "now > job.deadline")


@mutant("LEASE-1", "TIME-1", stores=REDIS)
def fast_completion_ignores_the_deadline(bug: Bug) -> None:
    """The fast path of a completion accepts a late result."""
    bug.lua("finish", "or now >= deadline", "")


@mutant("LEASE-1", "TENANT-2", stores=REDIS)
def fast_completion_ignores_the_token(bug: Bug) -> None:
    """A completion needs only the address of a running job."""
    bug.lua("finish", "or token ~= tokens[n]", "")


@mutant("CANCEL-1", "LEASE-1", stores=REDIS)
def fast_completion_ignores_the_state(bug: Bug) -> None:
    """A handler that missed the cancel can still complete its job."""
    bug.lua("finish", "if state ~= STATE_LEASED or", "if")
    bug.lua("finish", "or now >= deadline", "")


@mutant("LEASE-1", "EVENT-1", stores=REDIS)
def fast_completion_ignores_that_it_was_done(bug: Bug) -> None:
    """A repeated completion is applied again, with a second event."""
    bug.lua("finish", "if state ~= STATE_LEASED or", "if")
    bug.lua("finish", "or spent ~= 0 or now >= deadline", "")


@mutant("ENQ-4", "LEASE-1", stores=REDIS)
def fast_completion_trusts_every_batch(bug: Bug) -> None:
    """The fast path of a completion is used for a batch that has a job twice."""
    bug.lua("finish", "plain and raw and", "raw and")


@mutant("LEASE-1", stores=REDIS, seen_by="a_call_under_an_ended_lease_enqueues_nothing")
def late_leader_starts_jobs_in_redis(bug: Bug) -> None:
    """An enqueue or a replay under a lease does not check whether the lease is over."""
    bug.lua(
        "leases",
        "parent_lease and judge_lease(find(lane_of(parent_lease[1]), parent_lease[2]), parent_lease[3])",
        "nil",
    )


@mutant("LEASE-1", stores=REDIS, seen_by="a_call_under_an_ended_lease_enqueues_nothing")
def late_leader_starts_one_job_in_redis(bug: Bug) -> None:
    """The path of a single job does not check whether the lease of the enqueue is over."""
    bug.lua("single_enqueue", "and not parent_lease and not steps ", "")


@mutant("KEEP-1", stores=REDIS, seen_by="a_call_for_an_earlier_life_of_an_id_does_not_change_the_next")
def earlier_life_means_any_life_in_redis(bug: Bug) -> None:
    """A cancel or a purge of an earlier life of an id applies to the next one."""
    bug.lua("records", "seq == NONE or seq == job.seq", "true")


@mutant("RETRY-5", stores=REDIS, seen_by="a_release_can_return_all_earlier_attempts")
def release_forgives_nothing_in_redis(bug: Bug) -> None:
    """A release that should give back all attempts gives back only its own."""
    bug.lua("finish", "forgive and 0 or job.attempts - 1", "job.attempts - 1")


@mutant("LEASE-1", stores=REDIS)
def any_older_token_will_do(bug: Bug) -> None:
    """A token is accepted if it is not greater than the one granted last."""
    bug.lua("leases", "token ~= job.token or token <= 0", "token > job.token or token <= 0")


@mutant("LEASE-1", stores=REDIS)
def token_zero_fits_a_job_never_leased(bug: Bug) -> None:
    """A job that was never leased accepts the token 0."""
    bug.lua("leases", "token ~= job.token or token <= 0", "token ~= job.token")


@mutant("CANCEL-1", "LEASE-1", stores=REDIS)
def canceled_job_says_its_lease_expired(bug: Bug) -> None:
    """The holder of a canceled job's lease gets LeaseExpired instead of JobCanceled."""
    bug.lua("leases", "elseif job.state == STATE_CANCELED then", "elseif false then")


@mutant("LEASE-1", stores=REDIS)
def second_acknowledgement_is_refused(bug: Bug) -> None:
    """A repeated acknowledgement gets LeaseLost."""
    bug.lua("leases", "job.spent ~= 0 and job.spent == outcome", "false")


@mutant("LEASE-1", stores=REDIS)
def second_acknowledgement_gets_the_present_state(bug: Bug) -> None:
    """A repeated acknowledgement gets the present state, not the first answer."""
    bug.lua("leases", "return job.spent_state", "return job.state")


@mutant("LEASE-1", stores=REDIS)
def spent_token_fits_every_outcome(bug: Bug) -> None:
    """A job acknowledged with one outcome accepts another one, and gives the first answer."""
    bug.lua("leases", "job.spent ~= 0 and job.spent == outcome", "job.spent ~= 0 and outcome")


@mutant("LEASE-1", "RETRY-5", stores=REDIS)
def spent_token_answers_expired(bug: Bug) -> None:
    """A token that another outcome has used gets LeaseExpired."""
    bug.lua("leases", "elseif job.spent ~= 0 then", "elseif false then")


@mutant("LEASE-1", stores=REDIS)
def progress_needs_no_token(bug: Bug) -> None:
    """Progress is recorded without a check of the token."""
    bug.lua("report", "judge_lease(job, item[3])", "not job and REFUSED_NOT_FOUND or nil")


@mutant("LEASE-1", "CANCEL-3", stores=REDIS)
def forgotten_job_still_answers(bug: Bug) -> None:
    """Scripts still see a job past its retention until it is pruned."""
    bug.lua("records", "return job and not is_forgotten(job) and job or nil", "return job or nil")


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def retention_lasts_a_moment_too_long(bug: Bug) -> None:
    """A job still exists at the exact end of its retention."""
    bug.lua("records", "job.expires_at <= now", "job.expires_at < now")


# What an outcome does -----------------------------------------------------------------------------------------


@mutant("RETRY-1", stores=REDIS)
def attempt_is_counted_again_on_retry(bug: Bug) -> None:
    """A failed attempt counts when it is leased and again when it fails."""
    bug.lua("finish", "requeue(job, STATE_RETRYING,", "job.attempts = job.attempts + 1\n  requeue(job, STATE_RETRYING,")


@mutant("RETRY-1", stores=REDIS)
def one_attempt_too_many(bug: Bug) -> None:
    """`max_attempts` is taken for the number of retries."""
    bug.lua("finish", "job.attempts >= job.max_attempts", "job.attempts > job.max_attempts")


@mutant("RETRY-1", stores=REDIS)
def last_timeout_is_not_reported(bug: Bug) -> None:
    """A job whose last attempt timed out has the reason max_attempts."""
    bug.lua("finish", "timed_out and REASON_TIMEOUT or REASON_MAX_ATTEMPTS", "REASON_MAX_ATTEMPTS")


@mutant("RETRY-3", stores=REDIS)
def delay_of_zero_means_none_was_given(bug: Bug) -> None:
    """A retry at once waits by the policy."""
    bug.lua("finish", "delay >= 0 and delay or", "delay > 0 and delay or")


@mutant("RETRY-3", stores=REDIS)
def backoff_is_one_step_ahead(bug: Bug) -> None:
    """The first retry waits as long as the second should."""
    bug.lua("jobs", "policy[BACKOFF_FACTOR] ^ (job.attempts - 1)", "policy[BACKOFF_FACTOR] ^ job.attempts")


@mutant("RETRY-3", stores=REDIS)
def backoff_has_no_cap(bug: Bug) -> None:
    """The wait grows without bound."""
    bug.lua("jobs", "min(policy[BACKOFF_CAP_MS], policy[BACKOFF_BASE_MS]", "max(0, policy[BACKOFF_BASE_MS]")


@mutant("RETRY-3", stores=REDIS)
def equal_jitter_is_all_jitter(bug: Bug) -> None:
    """Jitter `equal` has no fixed half."""
    bug.lua("jobs", "full / 2 + full / 2 * random", "full * random")


@mutant("RETRY-3", stores=REDIS)
def reaped_jobs_come_back_together(bug: Bug) -> None:
    """All leases that are ended by one call wait by the same random number."""
    bug.lua("leases", "(random + (n - 1) * 0.6180339887498949) % 1", "random")


@mutant("RETRY-4", stores=REDIS)
def permanent_error_leaves_no_trace(bug: Bug) -> None:
    """The error that ended a job is not in its history."""
    bug.lua("finish", "add_error(job, error)\n  end_failed(", "end_failed(")


@mutant("RETRY-4", stores=REDIS)
def all_errors_are_kept(bug: Bug) -> None:
    """The history of a job grows with every attempt."""
    bug.lua("jobs", "while #errors > ERRORS_KEPT do", "while false do")


@mutant("RETRY-4", stores=REDIS)
def first_errors_are_kept(bug: Bug) -> None:
    """The history keeps the oldest errors and drops the newest."""
    bug.lua("jobs", "table.remove(errors, 1)", "table.remove(errors)")


@mutant("RETRY-4", stores=REDIS)
def completion_forgets_the_errors(bug: Bug) -> None:
    """The short way of a completion drops the history of the attempts before."""
    bug.lua(
        "finish",
        "start .. sub(raw, AT_REASON, AT_DEADLINE - 1)",
        "start .. sub(raw, 9, 12) .. struct.pack('<I4', 0) .. sub(raw, 17, 32)",
    )
    bug.lua("finish", "stop + worker_size + extra_size) .. result", "stop + worker_size) .. result")


@mutant("RETRY-5", stores=REDIS)
def release_costs_the_attempt(bug: Bug) -> None:
    """A released job has lost an attempt."""
    bug.lua("finish", "job.attempts = forgive and 0 or job.attempts - 1", "")


@mutant("RETRY-5", "LEASE-1", stores=REDIS)
def release_does_not_spend_the_token(bug: Bug) -> None:
    """A repeated release gets LeaseExpired."""
    bug.lua("finish", "job.spent, job.spent_state = outcome, job.state", (
        "if outcome < 4 then\n    job.spent, job.spent_state = outcome, job.state\n  end"
    ))  # fmt: skip


@mutant("EVENT-1", stores=REDIS)
def released_event_has_the_attempt_after(bug: Bug) -> None:
    """The event of a release has the attempt number from after the release."""
    log = "  log_job_event(job, EVENT_RELEASED, job.visible_at, reason)\n"
    bug.lua("finish", log, "  job.attempts = forgive and 0 or job.attempts - 1\n" + log)
    bug.lua("finish", log + "  job.attempts = forgive and 0 or job.attempts - 1", log)


@mutant("RETRY-6", stores=REDIS)
def reason_of_a_release_begins_anew_each_time(bug: Bug) -> None:
    """A job that no worker knows does not show since when."""
    bug.lua("finish", "reason == known_for and since or now", "now")


@mutant("RETRY-6", stores=REDIS)
def reason_of_a_release_outlives_what_comes_then(bug: Bug) -> None:
    """A job that has run since then still counts as unknown to all workers."""
    bug.lua("jobs", "if release_reason(job) then", "if false then")


@mutant("RETRY-6", stores=REDIS)
def reason_of_a_release_outlives_a_replay(bug: Bug) -> None:
    """A replayed job counts as unknown to all workers."""
    bug.lua("replay", "extra[EXTRA_RELEASED_FOR], extra[EXTRA_FIRST_RELEASED_AT] = nil, nil", "")


@mutant("RETRY-5", stores=REDIS)
def delayed_release_shows_at_once(bug: Bug) -> None:
    """The delay of a release is ignored."""
    bug.lua("finish", "release(job, max(0, delay), forgive, reason)", "release(job, 0, forgive, reason)")


@mutant("ENQ-4", stores=REDIS)
def refused_completion_leaves_its_result_to_the_next(bug: Bug) -> None:
    """After a refused item in a batch, the next job gets the refused item's result."""
    bug.lua("finish", "at = at + result_sizes[n]", "at = at + (answer >= 0 and result_sizes[n] or 0)")


@mutant("EVENT-1", stores=REDIS)
def completed_event_is_missing(bug: Bug) -> None:
    """The fast path of a completion makes no event."""
    counted = "usage_changes[lane.name] = usage_changes[lane.name] or { 0, 0, 0, 0 }"
    bug.lua("finish", "log_event(EVENT_COMPLETED,", f"{counted}\n  local _ = select('#',")


@mutant("EVENT-1", stores=REDIS)
def failed_event_is_doubled(bug: Bug) -> None:
    """A job that fails for good makes two events."""
    call = "log_job_event(job, EVENT_FAILED,"
    bug.lua("jobs", call, f"log_job_event(job, EVENT_FAILED, reason, '', '', '')\n  {call}")


@mutant("EVENT-1", stores=REDIS)
def events_have_no_token(bug: Bug) -> None:
    """Events have no token."""
    bug.lua("jobs", "job.attempts, job.token, job.worker, job.events", "job.attempts, 0, job.worker, job.events")


@mutant("RESULT-2", stores=REDIS)
def completion_sends_no_hint(bug: Bug) -> None:
    """The fast path of a completion does not notify waiters."""
    bug.lua("finish", "local done = hints.done", "local done = {}")


@mutant("RESULT-2", stores=REDIS)
def end_without_a_result_sends_no_hint(bug: Bug) -> None:
    """Waiters are not notified when a job fails or is canceled."""
    bug.lua("jobs", "hints.done[#hints.done + 1] = job.id", "local _ = hints")
    bug.lua("jobs", "hints.done[#hints.done + 1] = job.lane.name", "local _ = hints")


@mutant("LEASE-3", "STATE-1", "RESULT-1", stores=REDIS)
def completed_job_still_counts_as_leased(bug: Bug) -> None:
    """The fast path of a completion leaves the job among the leased ones."""
    bug.lua("finish", "gone[at], gone.n = member, at", "gone.n = 0")


@mutant("STATE-2", "LEASE-3", "RESULT-1", stores=REDIS)
def reaper_overwrites_a_completed_job(bug: Bug) -> None:
    """A completed job is retried when its lease would have run out."""
    bug.lua("finish", "gone[at], gone.n = member, at", "gone.n = 0")
    bug.lua("leases", "if job and job.state == STATE_LEASED then", "if job then")


@mutant("KEEP-1", "STATE-1", stores=REDIS)
def retentions_of_a_mixed_batch_overwrite_each_other(bug: Bug) -> None:
    """The fast path of a completion overwrites the retention of a failure."""
    bug.lua("finish", "  at = kept.n\n", "")


@mutant("CANCEL-1", "STATE-1", stores=REDIS)
def job_stays_in_its_earlier_index(bug: Bug) -> None:
    """A job stays in the index of its earlier state: canceled jobs can be claimed."""
    bug.lua("jobs", "set_indexed(job, job.state, false)\n  job.state = state", "job.state = state")


# Cancel and replay --------------------------------------------------------------------------------------------


@mutant("STATE-2", "CANCEL-3", stores=REDIS)
def cancel_overwrites_a_completed_job(bug: Bug) -> None:
    """A late cancel removes the result."""
    bug.lua("cancel", "job.state > STATE_LEASED or", "job.state == STATE_CANCELED or")


@mutant("CANCEL-2", stores=REDIS)
def cancel_of_waiting_jobs_ends_running_ones(bug: Bug) -> None:
    """A cancel with `only_waiting` ends running jobs."""
    bug.lua("cancel", "(job.state == STATE_LEASED and item[3])", "false")


@mutant("CANCEL-2", stores=REDIS)
def cancel_sends_no_hint_to_the_handler(bug: Bug) -> None:
    """Canceling a running job sends no hint."""
    bug.lua("cancel", "hints.canceled[#hints.canceled + 1]", "local _")


@mutant("EVENT-1", "CANCEL-1", stores=REDIS)
def cancel_leaves_no_event(bug: Bug) -> None:
    """A cancel makes no event."""
    bug.lua("cancel", "log_job_event(job, EVENT_CANCELED, item[5])", "")


@mutant("STATE-3", "DEAD-1", stores=REDIS)
def canceled_jobs_can_be_replayed(bug: Bug) -> None:
    """A replay accepts every job that ended without a result."""
    bug.lua("replay", "job.state ~= STATE_FAILED", "job.state < STATE_FAILED")


@mutant("DEAD-1", "STATE-3", stores=REDIS)
def replayed_job_has_no_attempts_left(bug: Bug) -> None:
    """A replay does not reset the attempts."""
    bug.lua("replay", "job.reason = 0, now, 0, 0, 0", "job.reason = job.attempts, now, 0, 0, 0")


@mutant("KEEP-1", "STATE-3", stores=REDIS)
def replayed_job_is_forgotten_as_if_it_had_failed(bug: Bug) -> None:
    """The retention of the failure continues while the replayed job waits."""
    bug.lua("replay", "job.reason = 0, now, 0, 0, 0", "job.reason = 0, now, 0, job.expires_at, 0")


@mutant("DEAD-1", stores=REDIS)
def replay_clears_the_history(bug: Bug) -> None:
    """A replayed job has lost its errors and how often it was replayed."""
    bug.lua("replay", "local extra = extra_of(job)", "local extra = { 0, false, '', {} }")


# Leases that run out ------------------------------------------------------------------------------------------


@mutant("RETRY-2", stores=REDIS)
def expired_lease_is_always_followed_by_another(bug: Bug) -> None:
    """A job that kills its worker never becomes a dead letter."""
    bug.lua("leases", "if job.attempts >= job.max_attempts then", "if false then")


@mutant("RETRY-2", stores=REDIS)
def expired_lease_costs_nothing(bug: Bug) -> None:
    """An expired lease does not count as an attempt."""
    bug.lua(
        "leases",
        "log_job_event(job, EVENT_EXPIRED,",
        "job.attempts = job.attempts - 1\n    log_job_event(job, EVENT_EXPIRED,",
    )


@mutant("LEASE-3", stores=REDIS)
def claims_end_no_leases(bug: Bug) -> None:
    """Without a reaper an expired lease is never ended."""
    bug.lua("claim", "reap_expired(max_repairs, random)", "")


@mutant("LEASE-3", stores=REDIS)
def reaper_comes_a_moment_late(bug: Bug) -> None:
    """A lease is not found at its exact deadline."""
    bug.lua("leases", "lane[set_name], '-inf', now,", "lane[set_name], '-inf', now - 1,")


@mutant("LEASE-3", stores=REDIS)
def reaper_takes_any_lease_first(bug: Bug) -> None:
    """Leases are ended in the order of their jobs, not of their deadlines."""
    old = "return a[1] < b[1] or (a[1] == b[1] and bytes_before(a[2], b[2]))"
    bug.lua("leases", old, "return bytes_before(a[2], b[2])")


@mutant("LEASE-3", "LEASE-2", stores=REDIS)
def reaper_takes_the_whole_lane(bug: Bug) -> None:
    """One expired lease ends all leases of its queue."""
    bug.lua("leases", "lane[set_name], '-inf', now,", "lane[set_name], '-inf', '+inf',")


@mutant("LEASE-3", stores=REDIS)
def fast_lease_is_not_watched(bug: Bug) -> None:
    """The fast path of a lease does not store its deadline in the index."""
    bug.lua("granting", "add_bound('L', lane, deadline)", "")


@mutant("ENQ-3", "LEASE-3", stores=REDIS)
def slow_lease_is_not_watched(bug: Bug) -> None:
    """The lease of a job that failed before is never found expired."""
    bug.lua("jobs", "add_bound('L', lane, job.deadline)", "")


@mutant("LEASE-3", "KEEP-1", stores=REDIS)
def long_lease_hides_a_short_one(bug: Bug) -> None:
    """A queue is checked at the deadline of the lease granted last, not at the earliest one."""
    bug.lua("writes", "shard .. index, 'LT',", "shard .. index,")


@mutant("KEEP-1", stores=REDIS)
def first_end_of_a_batch_speaks_for_all(bug: Bug) -> None:
    """A queue is checked at the end of the first job in a batch, although others end earlier."""
    bug.lua("writes", "if not known or at < known then", "if not known then")


@mutant("LEASE-3", stores=REDIS)
def lane_is_reaped_once(bug: Bug) -> None:
    """Expired leases beyond a call's limit are not found again."""
    bug.lua("leases", "call('ZADD', shard .. index, earliest, name)", "call('ZREM', shard .. index, name)")


@mutant("LEASE-2", stores=REDIS)
def extend_can_shorten(bug: Bug) -> None:
    """Extending by less than what is left shortens the lease."""
    bug.lua("extend", "max(job.deadline, now + item[4])", "now + item[4]")


@mutant("LEASE-2", stores=REDIS)
def extended_lease_ends_at_its_old_deadline(bug: Bug) -> None:
    """Extending changes the record, and not the index of deadlines."""
    bug.lua("extend", "set_indexed(job, STATE_LEASED, true)", "")


@mutant("TIME-1", "LEASE-2", stores=REDIS)
def extend_goes_by_another_clock(bug: Bug) -> None:
    """The extension of a lease ignores the shift of the clock."""
    bug.lua("extend", "now + item[4]", "now - shift + item[4]")


@mutant("EVENT-1", stores=REDIS)
def extending_is_logged_unasked(bug: Bug) -> None:
    """Every extension of a lease makes an event."""
    bug.lua("extend", "if all_events then", "if true then")
