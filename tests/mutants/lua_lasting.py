"""Bugs in Lua: what is kept and what is shown of it: retention, the log, counts, lists, workers."""

from __future__ import annotations

from tests.mutants.planting import REDIS, Bug, mutant

# Retention ----------------------------------------------------------------------------------------------------


@mutant("KEEP-1", "ENQ-5", stores=REDIS)
def retention_counts_from_the_enqueue(bug: Bug) -> None:
    """A job is forgotten when its result would be, whether it has run or not."""
    late = "zset_put(lane.e, struct.pack('>I7', seq) .. id, now + ttls[n])\n  add_bound('E', lane, now + ttls[n])"
    bug.lua("enqueue", "note_arrival(lane, visible_at)", f"note_arrival(lane, visible_at)\n  {late}")
    bug.lua("prune", "if job and job.state > STATE_LEASED and is_forgotten(job) then", "if job then")


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def result_is_kept_from_the_claim_on(bug: Bug) -> None:
    """The time that a job ran is taken off the time that its result is kept."""
    bug.lua("finish", "sub(raw, AT_CLAIMED_AT, AT_FINISHED_AT - 1) .. times", (
        "sub(raw, 41, 48) .. sub(times, 1, 8) .. struct.pack('<I8', struct.unpack('<I8', raw, 41) + ttl)"
    ))  # fmt: skip


@mutant("KEEP-1", stores=REDIS)
def failed_jobs_are_kept_like_canceled_ones(bug: Bug) -> None:
    """Dead letters are gone after a day."""
    bug.lua("jobs", "set_ended(job, keep_failed)", "set_ended(job, keep_canceled)")


@mutant("KEEP-1", "RESULT-1", stores=REDIS)
def completed_jobs_are_never_pruned(bug: Bug) -> None:
    """The short way of a completion does not note when the job is to be forgotten."""
    bug.lua("finish", "add_bound('E', lane, now + ttl)", "")


@mutant("KEEP-1", stores=REDIS)
def other_ends_are_never_pruned(bug: Bug) -> None:
    """For jobs that failed or were canceled it is not noted when they are to be forgotten."""
    bug.lua("jobs", "add_bound('E', lane, job.expires_at)", "")


@mutant("KEEP-1", stores=REDIS)
def prune_takes_one_too_many(bug: Bug) -> None:
    """The limit of a prune is off by one."""
    bug.lua("prune", "min(#ended, limit)", "#ended")


@mutant("KEEP-1", stores=REDIS)
def prune_says_that_nothing_is_left(bug: Bug) -> None:
    """A pruner that came to its limit stops."""
    bug.lua("prune", "(any_due('E') or any_due('y')) and 1 or 0", "0")


@mutant("DEAD-1", "KEEP-1", stores=REDIS)
def forgotten_record_stays(bug: Bug) -> None:
    """A purged job is taken out of the indexes, and its record is left."""
    bug.lua("jobs", "hash_put(job.lane.j, job.id, false)", "")


@mutant("KEEP-1", "STATE-1", stores=REDIS)
def forgotten_job_stays_in_the_indexes(bug: Bug) -> None:
    """A purged job is still counted."""
    bug.lua("jobs", "set_indexed(job, job.state, false)\n  unsaved[job]", "unsaved[job]")


@mutant("DEAD-1", "KEEP-1", stores=REDIS)
def purge_takes_waiting_jobs(bug: Bug) -> None:
    """A purge does not look whether the job has ended."""
    bug.lua("purge", "job.state <= STATE_LEASED or", "")


@mutant("DEAD-1", stores=REDIS)
def purge_by_age_takes_younger_ends(bug: Bug) -> None:
    """A job that was replayed since and failed anew is purged for its first end."""
    bug.lua("purge", "item[3] ~= NONE and item[3] ~= job.finished_at", "false")


@mutant("DEAD-1", "KEEP-1", stores=REDIS)
def purge_leaves_no_event(bug: Bug) -> None:
    """A purged job vanishes without a trace."""
    bug.lua("purge", "log_job_event(job, EVENT_PURGED, count_purge(job))", "")


@mutant("RESULT-1", stores=REDIS)
def new_ttl_counts_from_the_end(bug: Bug) -> None:
    """A changed TTL is counted from when the job ended, not from now."""
    bug.lua("set_result_ttl", "now + item[3]", "job.finished_at + item[3]")


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def new_ttl_does_not_move_the_job(bug: Bug) -> None:
    """A changed TTL is in the record, and the pruner does not hear of it."""
    bug.lua("set_result_ttl", "set_indexed(job, job.state, true)", "")


@mutant("RESULT-1", stores=REDIS)
def new_ttl_for_jobs_that_run(bug: Bug) -> None:
    """A TTL can be set for a job that has not ended, which is forgotten then."""
    bug.lua("set_result_ttl", "elseif job.state <= STATE_LEASED then", "elseif false then")


@mutant("RESULT-1", stores=REDIS)
def blobs_are_left_behind(bug: Bug) -> None:
    """The pruner is not told which blobs held the results that it forgot."""
    bug.lua("finish", "blob and bit.bor(job.flags, FLAG_RESULT_IN_BLOB) or job.flags", "job.flags")


@mutant("RESULT-1", stores=REDIS)
def blobs_are_named_again_and_again(bug: Bug) -> None:
    """Each prune names the blobs of all prunes before."""
    bug.lua("prune", "call('LTRIM', shard .. 'b', limit, -1)", "")


# The log ------------------------------------------------------------------------------------------------------


@mutant("EVENT-2", stores=REDIS)
def trimming_keeps_nothing(bug: Bug) -> None:
    """What should be kept although no reader waits for it is cut off."""
    bug.lua(
        "trimming",
        "soft, hard, names = unpack(request)",
        "soft, hard, names = unpack(request)\nsoft = names and 0 or soft",
    )


@mutant("EVENT-2", stores=REDIS)
def trimming_does_not_wait_for_readers(bug: Bug) -> None:
    """What a registered reader has not read yet is cut off."""
    bug.lua("trimming", "upto <= owner.passed and owner.kept - soft or 0", "owner.kept - soft")


@mutant("EVENT-2", stores=REDIS)
def trimming_waits_for_the_fastest_reader(bug: Bug) -> None:
    """Of several readers the one that is ahead decides."""
    ahead = "max(passed_by_all < math.huge and passed_by_all or own, own < math.huge and own or passed_by_all)"
    bug.lua("trimming", "passed = min(passed_by_all, own)", f"passed = {ahead}")


@mutant("EVENT-2", stores=REDIS)
def trimming_does_not_wait_for_a_tenants_own_readers(bug: Bug) -> None:
    """Only readers of all tenants are waited for."""
    bug.lua("trimming", "passed = min(passed_by_all, own)", "passed = passed_by_all")


@mutant("EVENT-2", stores=REDIS)
def trimming_waits_for_ever(bug: Bug) -> None:
    """A reader that never comes back keeps the whole log."""
    bug.lua("count_usage", "tonumber(oldest[ENTRY_AT]) <= now - request[1]", "false")


@mutant("EVENT-2", stores=REDIS)
def one_old_batch_takes_all_before_it(bug: Bug) -> None:
    """The log is taken to be in order of time, also where the clock was set back."""
    found = "for _, other in ipairs(call('XRANGE', shard .. 'e', '-', '+')) do if tonumber(other[2][ENTRY_AT]) <= now -"
    bug.lua(
        "count_usage",
        "oldest and tonumber",
        f"false\n{found} request[1] then old = true end end\nold = old or oldest and tonumber",
    )
    young = f"(function() {found} soft then return false end end return true end)()"
    bug.lua("trim", "tonumber(fields[ENTRY_AT]) > now - soft", young)


@mutant("EVENT-2", stores=REDIS)
def trimming_takes_whole_batches(bug: Bug) -> None:
    """Where only some events of a batch have to go, all of them do."""
    bug.lua("trimming", "too_many(owner, number) >= count", "too_many(owner, number) > 0")


@mutant("EVENT-2", stores=REDIS)
def trimmed_log_has_a_silent_gap(bug: Bug) -> None:
    """A reader that fell behind goes on with the oldest event there is."""
    bug.lua("trim", "call('ZADD', shard .. 'G', int_text(owner.cut), name)", "local _ = name")


@mutant("EVENT-2", stores=REDIS)
def cut_is_one_event_short(bug: Bug) -> None:
    """A reader at the very edge of the log is not told that the next event is gone."""
    bug.lua("trimming", "owner.kept - count, number, true", "owner.kept - count, number - 1, true")


@mutant("EVENT-2", stores=REDIS)
def flood_takes_what_is_in_its_way(bug: Bug) -> None:
    """Where one tenant is cut, the others lose what they have there."""
    bug.lua("trimming", "(can_lose(owner) and too_many(owner, number) > 0)", "pending > 0")
    bug.lua("trimming", "not by_age and (not can_lose(owner) or too_many(owner, first) <= 0)", "false")


@mutant("EVENT-2", stores=REDIS)
def only_the_first_survivors_of_a_batch_move(bug: Bug) -> None:
    """What survives behind an event that goes is lost with it."""
    bug.lua("trimming", "for _, run in ipairs(runs) do", "for _, run in ipairs({ runs[1] }) do")


@mutant("EVENT-2", stores=REDIS)
def survivors_of_a_batch_get_the_number_of_the_batch(bug: Bug) -> None:
    """A part of a batch is logged under the number of its last event."""
    bug.lua(
        "trimming",
        "shard .. target, int_text(run[2]) .. '-0'",
        "shard .. target, int_text(number) .. '-' .. run[1] % 1000",
    )


@mutant("EVENT-2", stores=REDIS)
def gaps_are_not_named(bug: Bug) -> None:
    """A reader of all tenants does not learn what is gone of single ones."""
    bug.lua("events", "if not tenant and wanted > 0 and after >= gone then", "if false then")


@mutant("EVENT-2", stores=REDIS)
def tenant_is_judged_by_what_all_have_lost(bug: Bug) -> None:
    """A tenant that lost nothing is told of a gap."""
    bug.lua("log", "'G', tenant)) or lost", "'G', tenant)) or trimmed")


@mutant("EVENT-2", stores=REDIS)
def readers_do_not_see_what_survived(bug: Bug) -> None:
    """What was moved out of the way of a cut is no longer found."""
    bug.lua("log", "number < moved and STREAMS or NEWEST", "NEWEST")


@mutant("EVENT-2", stores=REDIS)
def events_are_counted_by_the_batch(bug: Bug) -> None:
    """The log takes itself for shorter than it is, and keeps more than it should."""
    bug.lua("writes", "logged_total + logged", "logged_total + 1")


@mutant("EVENT-2", "EVENT-1", stores=REDIS)
def end_of_the_log_stays_behind(bug: Bug) -> None:
    """Who wants to read what comes from now on gets what has been."""
    bug.lua("writes", "'log', int_text(last), 'logged'", "'logged'")


@mutant("EVENT-2", stores=REDIS)
def reader_can_go_back(bug: Bug) -> None:
    """A reader that is set to an earlier offset holds up trimming again."""
    bug.lua("readers", "'GT', int_text(number)", "int_text(number)")


@mutant("EVENT-2", stores=REDIS)
def log_grows_in_silence(bug: Bug) -> None:
    """Who follows the log is not told that it grew."""
    bug.lua("writes", "publish('events', '')", "")


@mutant("EVENT-3", "EVENT-1", stores=REDIS)
def batch_is_logged_under_its_first_tenant(bug: Bug) -> None:
    """All events of a call are filed under the lane of the first."""
    bug.lua("writes", "= kind, words[lane] or word_number(lane)", "= kind, min(1, word_number(lane))")


@mutant("EVENT-1", stores=REDIS)
def batch_is_logged_with_its_first_type(bug: Bug) -> None:
    """All events of a call have the type of the first."""
    bug.lua("writes", "id, words[type] or word_number(type)", "id, min(2, word_number(type))")


# Counts and lists ---------------------------------------------------------------------------------------------


@mutant("KEEP-1", stores=REDIS)
def forgotten_jobs_are_counted_until_pruned(bug: Bug) -> None:
    """Counts of ended jobs include those past their retention."""
    bug.lua("stats", "- gone[state]", "")


@mutant("STATE-1", stores=REDIS)
def due_retries_are_counted_twice(bug: Bug) -> None:
    """A retrying job whose time has come counts as ready and as retrying."""
    bug.lua("stats", "lane.r, '(' .. int_text(now), '+inf'", "lane.r, '-inf', '+inf'")


@mutant("STATE-1", stores=REDIS)
def retrying_jobs_are_counted_as_scheduled(bug: Bug) -> None:
    """A job between two attempts counts in two states."""
    bug.lua("stats", "- ready - retrying", "- ready")


@mutant("STATE-1", stores=REDIS)
def oldest_ready_job_is_that_of_the_lowest_priority(bug: Bug) -> None:
    """How long the queue has been waiting is told by the priority looked at last."""
    bug.lua("stats", "min(oldest or first, first)", "first")


@mutant("STATE-1", "DEAD-1", stores=REDIS)
def page_of_a_list_skips_jobs_of_one_moment(bug: Bug) -> None:
    """Of jobs that stand at the same moment only those of the first page are listed."""
    bug.lua("list", "while low < high do", "low = high\n  while low < high do")


@mutant("STATE-1", stores=REDIS)
def page_of_a_list_repeats_its_first_job(bug: Bug) -> None:
    """A page begins with the last job of the page before."""
    bug.lua("list", "if not bytes_before(after_member, call('ZRANGE', key, middle, middle)[1]) then",
            "if bytes_before(call('ZRANGE', key, middle, middle)[1], after_member) then")  # fmt: skip


@mutant("STATE-1", "DEAD-1", stores=REDIS)
def ended_jobs_are_listed_by_state(bug: Bug) -> None:
    """A list of ended jobs is not in the order of their ends."""
    bug.lua("list", "if #sets > 1 then", "if false then")


@mutant("DEAD-1", stores=REDIS)
def list_ends_where_nothing_matched(bug: Bug) -> None:
    """A filtered list stops at the first stretch in which nothing matches."""
    bug.lua("list", "#found >= count and 1 or 0", "0")


@mutant("TENANT-1", stores=REDIS)
def tenants_with_settings_alone_are_not_listed(bug: Bug) -> None:
    """A tenant that has a quota and no job yet is unknown."""
    bug.lua("tenants", "first_of(shard .. 'S')", "{}")


@mutant("TENANT-1", stores=REDIS)
def tenants_without_jobs_are_listed(bug: Bug) -> None:
    """A tenant whose last job was purged is listed until somebody sweeps."""
    bug.lua("tenants", "if call('EXISTS', lane_named(tenant, queue).j) == 1 then", "if true then")


# Clock and workers --------------------------------------------------------------------------------------------


@mutant("TIME-1", stores=REDIS)
def second_shift_replaces_the_first(bug: Bug) -> None:
    """A clock that is moved twice goes back in between."""
    bug.lua("clock", "int_text(shift + request[2])", "int_text(request[2])")


@mutant("TIME-1", stores=REDIS)
def dead_workers_are_listed(bug: Bug) -> None:
    """A worker that stopped beating is among the living."""
    bug.lua("workers", "by_end, '-inf', now, 'LIMIT'", "by_end, '-inf', 0, 'LIMIT'")
    bug.lua("workers", "or 0) > now then", "or 0) > 0 then")


@mutant("TIME-1", stores=REDIS)
def worker_that_signed_off_is_listed(bug: Bug) -> None:
    """A worker that said goodbye lives on for as long as its last beat said."""
    bug.lua("workers", "if ttl <= 0 then", "if ttl <= 0 then\n    return 0\n  elseif false then")


@mutant("TIME-1", stores=REDIS)
def every_beat_is_a_birth(bug: Bug) -> None:
    """A worker has been started when it was last seen."""
    bug.lua("workers", "known and cmsgpack.unpack(known)[1] or now", "now")


@mutant("KEEP-1", stores=REDIS, seen_by="a_step_of_a_flow_that_ended_badly_is_kept_as_long_as_its_result_would_be")
def bad_ends_of_steps_are_kept_like_others_in_lua(bug: Bug) -> None:
    """The record of a step that failed or was canceled is gone before its flow has looked at it."""
    bug.lua("jobs", "has_flag(job, FLAG_FLOW_STEP) and max(keep_ms, job.ttl) or keep_ms", "keep_ms")


# What a tenant keeps ------------------------------------------------------------------------------------------


@mutant("TENANT-5", "EVENT-2", stores=REDIS)
def entries_are_counted_again_and_again(bug: Bug) -> None:
    """Each upkeep adds up the whole log."""
    bug.lua("count_usage", "call('HSET', KEYS[1], 'counted', int_text(counted))", "")


@mutant("TENANT-5", stores=REDIS)
def result_of_one_job_is_not_counted(bug: Bug) -> None:
    """A job that is completed alone counts as if it had no result."""
    bug.lua("single_finish", "' 1 0 0 ' .. #result", "' 1 0 0 0'")


@mutant("TENANT-5", stores=REDIS)
def results_of_a_batch_are_not_counted(bug: Bug) -> None:
    """Nor those of jobs that are completed together."""
    bug.lua("finish", "usage[USAGE_BYTES] + #result", "usage[USAGE_BYTES]")


@mutant("TENANT-5", stores=REDIS)
def large_payloads_count_nothing(bug: Bug) -> None:
    """What stands apart from its record is not counted."""
    bug.lua("enqueue", "payload_sizes[n] + large_sizes[n]\n", "payload_sizes[n]\n")
    bug.lua("jobs", "payload = call('HSTRLEN', job.lane.p, job.id)", "")


@mutant("TENANT-5", stores=REDIS)
def forgotten_payloads_count_on(bug: Bug) -> None:
    """A large payload is never taken off again."""
    bug.lua("jobs", "payload = call('HSTRLEN', job.lane.p, job.id)", "")


@mutant("TENANT-5", stores=REDIS)
def forgotten_results_count_on(bug: Bug) -> None:
    """What a job became is never taken off again."""
    bug.lua("jobs", "-RECORD_BYTES - payload - job.weight", "-RECORD_BYTES - payload")


@mutant("TENANT-5", stores=REDIS)
def errors_are_not_counted(bug: Bug) -> None:
    """A failing job can keep as much as it likes."""
    bug.lua("jobs", "add_usage(job.lane, 0, 0, weight - job.weight)", "")


@mutant("TENANT-5", stores=REDIS)
def all_keys_count(bug: Bug) -> None:
    """Also keys that go with their job are counted by themselves."""
    bug.lua("keys", "binding.policy >= POLICY_TTL", "binding.policy >= POLICY_UNTIL_TERMINAL")


@mutant("TENANT-5", stores=REDIS)
def released_keys_count_on(bug: Bug) -> None:
    """A key whose time is over is never taken off."""
    bug.lua(
        "keys",
        "local function unbind(lane, field)\n  count_lasting_key(lane, field, -1)",
        "local function unbind(lane, field)",
    )


@mutant("TENANT-5", stores=REDIS)
def emptied_queues_count(bug: Bug) -> None:
    """A queue without jobs counts as long as its turns are remembered."""
    bug.lua("usage", "if call('EXISTS', lane.j) == 1 or is_paused(lane) then", "if lane then")


@mutant("TENANT-5", stores=REDIS)
def budgets_are_set_anew(bug: Bug) -> None:
    """Setting one forgets the others."""
    bug.lua(
        "settings",
        "for name, budget in pairs(request[7]) do",
        "kept[SETTING_BUDGETS] = {}\nfor name, budget in pairs(request[7]) do",
    )
