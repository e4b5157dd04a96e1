"""Bugs in Lua: what is kept and what is shown of it: retention, the log, counts, lists, workers."""

from __future__ import annotations

from tests.mutants.planting import REDIS, Bug, mutant

# Retention ----------------------------------------------------------------------------------------------------


@mutant("KEEP-1", "ENQ-5", stores=REDIS)
def retention_counts_from_the_enqueue(bug: Bug) -> None:
    """A job is forgotten when its result would be, even if it has not run."""
    late = "zset_put(lane.e, struct.pack('>I7', seq) .. id, now + ttls[n])\n  add_bound('E', lane, now + ttls[n])"
    bug.lua("enqueue", "note_arrival(lane, visible_at)", f"note_arrival(lane, visible_at)\n  {late}")
    bug.lua("prune", "if job and job.state > STATE_LEASED and is_forgotten(job) then", "if job then")


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def result_is_kept_from_the_claim_on(bug: Bug) -> None:
    """The running time of a job shortens the time that its result is kept."""
    bug.lua("finish", "sub(raw, AT_CLAIMED_AT, AT_FINISHED_AT - 1) .. times", (
        "sub(raw, 41, 48) .. sub(times, 1, 8) .. struct.pack('<I8', struct.unpack('<I8', raw, 41) + ttl)"
    ))  # fmt: skip


@mutant("KEEP-1", stores=REDIS)
def failed_jobs_are_kept_like_canceled_ones(bug: Bug) -> None:
    """Dead letters are gone after a day."""
    bug.lua("jobs", "set_ended(job, keep_failed)", "set_ended(job, keep_canceled)")


@mutant("KEEP-1", "RESULT-1", stores=REDIS)
def completed_jobs_are_never_pruned(bug: Bug) -> None:
    """The fast path of a completion does not store the end of its retention."""
    bug.lua("finish", "add_bound('E', lane, now + ttl)", "")


@mutant("KEEP-1", stores=REDIS)
def other_ends_are_never_pruned(bug: Bug) -> None:
    """The end of retention of failed and canceled jobs is not stored."""
    bug.lua("jobs", "add_bound('E', lane, job.expires_at)", "")


@mutant("KEEP-1", stores=REDIS)
def prune_takes_one_too_many(bug: Bug) -> None:
    """The limit of a prune is off by one."""
    bug.lua("prune", "min(#ended, limit)", "#ended")


@mutant("KEEP-1", stores=REDIS)
def prune_says_that_nothing_is_left(bug: Bug) -> None:
    """A prune that reached its limit answers that nothing is left."""
    bug.lua("prune", "(any_due('E') or any_due('y')) and 1 or 0", "0")


@mutant("DEAD-1", "KEEP-1", stores=REDIS)
def forgotten_record_stays(bug: Bug) -> None:
    """A purge removes a job from the indexes and leaves its record."""
    bug.lua("jobs", "hash_put(job.lane.j, job.id, false)", "")


@mutant("KEEP-1", "STATE-1", stores=REDIS)
def forgotten_job_stays_in_the_indexes(bug: Bug) -> None:
    """A purged job is still counted."""
    bug.lua("jobs", "set_indexed(job, job.state, false)\n  unsaved[job]", "unsaved[job]")


@mutant("DEAD-1", "KEEP-1", stores=REDIS)
def purge_takes_waiting_jobs(bug: Bug) -> None:
    """A purge does not check whether the job has ended."""
    bug.lua("purge", "job.state <= STATE_LEASED or", "")


@mutant("DEAD-1", stores=REDIS)
def purge_by_age_takes_younger_ends(bug: Bug) -> None:
    """A job that was replayed and failed again is purged by its first ending."""
    bug.lua("purge", "item[3] ~= NONE and item[3] ~= job.finished_at", "false")


@mutant("DEAD-1", "KEEP-1", stores=REDIS)
def purge_leaves_no_event(bug: Bug) -> None:
    """A purge makes no event."""
    bug.lua("purge", "log_job_event(job, EVENT_PURGED, number, series, item[5])", "")


@mutant("RESULT-1", stores=REDIS)
def new_ttl_counts_from_the_end(bug: Bug) -> None:
    """A changed TTL counts from the job's end, not from now."""
    bug.lua("set_result_ttl", "now + item[3]", "job.finished_at + item[3]")


@mutant("RESULT-1", "KEEP-1", stores=REDIS)
def new_ttl_does_not_move_the_job(bug: Bug) -> None:
    """A changed TTL is in the record, but not in the index of the pruner."""
    bug.lua("set_result_ttl", "set_indexed(job, job.state, true)", "")


@mutant("RESULT-1", stores=REDIS)
def new_ttl_for_jobs_that_run(bug: Bug) -> None:
    """A TTL can be set for a job that has not ended, which is then forgotten."""
    bug.lua("set_result_ttl", "elseif job.state <= STATE_LEASED then", "elseif false then")


@mutant("RESULT-1", stores=REDIS)
def blobs_are_left_behind(bug: Bug) -> None:
    """A prune does not return the blobs of the results that it removed."""
    bug.lua("finish", "blob and bit.bor(job.flags, FLAG_RESULT_IN_BLOB) or job.flags", "job.flags")


@mutant("RESULT-1", stores=REDIS)
def blobs_are_named_again_and_again(bug: Bug) -> None:
    """Each prune returns the blobs of all earlier prunes again."""
    bug.lua("prune", "call('LTRIM', shard .. 'b', limit, -1)", "")


# The log ------------------------------------------------------------------------------------------------------


@mutant("EVENT-2", stores=REDIS)
def trimming_keeps_nothing(bug: Bug) -> None:
    """Events are trimmed that must be kept even without a reader."""
    bug.lua(
        "trimming",
        "soft, hard, names = unpack(request)",
        "soft, hard, names = unpack(request)\nsoft = names and 0 or soft",
    )


@mutant("EVENT-2", stores=REDIS)
def trimming_does_not_wait_for_readers(bug: Bug) -> None:
    """Events are trimmed that a registered reader has not read yet."""
    bug.lua("trimming", "upto <= owner.passed and owner.kept - soft or 0", "owner.kept - soft")


@mutant("EVENT-2", stores=REDIS)
def trimming_waits_for_the_fastest_reader(bug: Bug) -> None:
    """Of several readers the fastest one decides."""
    ahead = "max(passed_by_all < math.huge and passed_by_all or own, own < math.huge and own or passed_by_all)"
    bug.lua("trimming", "passed = min(passed_by_all, own)", f"passed = {ahead}")


@mutant("EVENT-2", stores=REDIS)
def trimming_does_not_wait_for_a_tenants_own_readers(bug: Bug) -> None:
    """Only readers of all tenants are waited for."""
    bug.lua("trimming", "passed = min(passed_by_all, own)", "passed = passed_by_all")


@mutant("EVENT-2", stores=REDIS)
def trimming_waits_for_ever(bug: Bug) -> None:
    """An abandoned reader keeps the whole log."""
    bug.lua("count_usage", "tonumber(oldest[ENTRY_AT]) <= now - request[1]", "false")


@mutant("EVENT-2", stores=REDIS)
def one_old_batch_takes_all_before_it(bug: Bug) -> None:
    """The log is assumed to be in order of time, even if the clock was set back."""
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
    """All events of a batch are trimmed when only some should be."""
    bug.lua("trimming", "too_many(owner, number) >= count", "too_many(owner, number) > 0")


@mutant("EVENT-2", stores=REDIS)
def trimmed_log_has_a_silent_gap(bug: Bug) -> None:
    """A reader that fell behind continues with the oldest event, without a gap."""
    bug.lua("trim", "call('ZADD', shard .. 'G', int_text(owner.cut), name)", "local _ = name")


@mutant("EVENT-2", stores=REDIS)
def cut_is_one_event_short(bug: Bug) -> None:
    """A reader just before the kept events gets no gap for the event that is gone."""
    bug.lua("trimming", "owner.kept - count, number, true", "owner.kept - count, number - 1, true")


@mutant("EVENT-2", stores=REDIS)
def flood_takes_what_is_in_its_way(bug: Bug) -> None:
    """Trimming one tenant's events also removes the events of others between them."""
    bug.lua("trimming", "(can_lose(owner) and too_many(owner, number) > 0)", "pending > 0")
    bug.lua("trimming", "not by_age and (not can_lose(owner) or too_many(owner, first) <= 0)", "false")


@mutant("EVENT-2", stores=REDIS)
def only_the_first_survivors_of_a_batch_move(bug: Bug) -> None:
    """Events that should be kept after a trimmed one are lost with it."""
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
    """A reader of all tenants gets no gaps of single tenants."""
    bug.lua("events", "if not tenant and wanted > 0 and after >= gone then", "if false then")


@mutant("EVENT-2", stores=REDIS)
def tenant_is_judged_by_what_all_have_lost(bug: Bug) -> None:
    """A tenant that lost nothing gets a gap."""
    bug.lua("log", "'G', tenant)) or lost", "'G', tenant)) or trimmed")


@mutant("EVENT-2", stores=REDIS)
def readers_do_not_see_what_survived(bug: Bug) -> None:
    """Events that were moved by a cut are not found any more."""
    bug.lua("log", "number < moved and STREAMS or NEWEST", "NEWEST")


@mutant("EVENT-2", stores=REDIS)
def events_are_counted_by_the_batch(bug: Bug) -> None:
    """The log counts too few events, and keeps more than it should."""
    bug.lua("writes", "logged_total + logged", "logged_total + 1")


@mutant("EVENT-2", "EVENT-1", stores=REDIS)
def end_of_the_log_stays_behind(bug: Bug) -> None:
    """A reader that starts at the end of the log gets earlier events."""
    bug.lua("writes", "'log', int_text(last), 'logged'", "'logged'")


@mutant("EVENT-2", stores=REDIS)
def reader_can_go_back(bug: Bug) -> None:
    """A reader can be moved back to an earlier offset, and blocks trimming again."""
    bug.lua("readers", "'GT', int_text(number)", "int_text(number)")


@mutant("EVENT-2", stores=REDIS)
def log_grows_without_a_hint(bug: Bug) -> None:
    """Readers that follow the log get no hint of new events."""
    bug.lua("writes", "publish('events', '')", "")


@mutant("EVENT-3", "EVENT-1", stores=REDIS)
def batch_is_logged_under_its_first_tenant(bug: Bug) -> None:
    """All events of a call are filed under the first one's lane."""
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
    """A retrying job that is due counts as ready and as retrying."""
    bug.lua("stats", "lane.r, '(' .. int_text(now), '+inf'", "lane.r, '-inf', '+inf'")


@mutant("STATE-1", stores=REDIS)
def retrying_jobs_are_counted_as_scheduled(bug: Bug) -> None:
    """A job between two attempts counts in two states."""
    bug.lua("stats", "- ready - retrying", "- ready")


@mutant("STATE-1", stores=REDIS)
def oldest_ready_job_is_that_of_the_lowest_priority(bug: Bug) -> None:
    """The age of the oldest ready job is that of the priority read last."""
    bug.lua("stats", "min(oldest or first, first)", "first")


@mutant("STATE-1", "DEAD-1", stores=REDIS)
def page_of_a_list_skips_jobs_of_one_moment(bug: Bug) -> None:
    """Of jobs at the same instant, only those on the first page are listed."""
    bug.lua("reading", "while low < high do", "low = high\n  while low < high do")


@mutant("STATE-1", stores=REDIS)
def page_of_a_list_repeats_its_first_job(bug: Bug) -> None:
    """A page begins with the last job of the page before."""
    bug.lua("list", "not bytes_before(after_member, member)", "bytes_before(member, after_member)")


@mutant("STATE-1", "DEAD-1", stores=REDIS)
def ended_jobs_are_listed_by_state(bug: Bug) -> None:
    """A list of ended jobs is not in the order of their ends."""
    bug.lua("list", "if #sets > 1 then", "if false then")


@mutant("DEAD-1", stores=REDIS)
def list_ends_where_nothing_matched(bug: Bug) -> None:
    """A filtered list stops at the first range without a match."""
    bug.lua("reading", "#found >= count and 1 or 0", "0")


@mutant("TENANT-1", stores=REDIS)
def tenants_with_settings_alone_are_not_listed(bug: Bug) -> None:
    """A tenant that has a quota and no job yet is unknown."""
    bug.lua("tenants", "first_of(shard .. 'S')", "{}")


@mutant("TENANT-1", stores=REDIS)
def tenants_without_jobs_are_listed(bug: Bug) -> None:
    """A tenant whose last job was purged is listed until the next prune."""
    bug.lua("tenants", "if call('EXISTS', lane_named(tenant, queue).j) == 1 then", "if true then")


# Clock and workers --------------------------------------------------------------------------------------------


@mutant("TIME-1", stores=REDIS)
def second_shift_replaces_the_first(bug: Bug) -> None:
    """A second shift of the clock replaces the first one."""
    bug.lua("clock", "int_text(shift + request[2])", "int_text(request[2])")


@mutant("TIME-1", stores=REDIS)
def dead_workers_are_listed(bug: Bug) -> None:
    """A worker without heartbeats is listed as live."""
    bug.lua("workers", "by_end, '-inf', now, 'LIMIT'", "by_end, '-inf', 0, 'LIMIT'")
    bug.lua("workers", "or 0) > now then", "or 0) > 0 then")


@mutant("TIME-1", stores=REDIS)
def worker_that_signed_off_is_listed(bug: Bug) -> None:
    """A worker that signed off is listed until its last heartbeat expires."""
    bug.lua("workers", "if ttl <= 0 then", "if ttl <= 0 then\n    return 0\n  elseif false then")


@mutant("TIME-1", stores=REDIS)
def every_beat_is_a_start(bug: Bug) -> None:
    """A worker's start is the time of its last heartbeat."""
    bug.lua("workers", "known and cmsgpack.unpack(known)[1] or now", "now")


@mutant("KEEP-1", stores=REDIS, seen_by="a_failed_step_of_a_flow_is_kept_as_long_as_its_result_would_be")
def bad_ends_of_steps_are_kept_like_others_in_lua(bug: Bug) -> None:
    """The record of a failed or canceled step is gone before its flow has read it."""
    bug.lua("jobs", "has_flag(job, FLAG_FLOW_STEP) and max(keep_ms, job.ttl) or keep_ms", "keep_ms")


# What a tenant keeps ------------------------------------------------------------------------------------------


@mutant("TENANT-5", "EVENT-2", stores=REDIS)
def entries_are_counted_again_and_again(bug: Bug) -> None:
    """Each round of maintenance counts the whole log again."""
    bug.lua("count_usage", "call('HSET', KEYS[1], 'counted', int_text(counted))", "")


@mutant("TENANT-5", stores=REDIS)
def result_of_one_job_is_not_counted(bug: Bug) -> None:
    """A job that is completed alone counts without its result."""
    bug.lua("single_finish", "' 1 0 0 ' .. #result", "' 1 0 0 0'")


@mutant("TENANT-5", stores=REDIS)
def results_of_a_batch_are_not_counted(bug: Bug) -> None:
    """The results of jobs that are completed together are not counted."""
    bug.lua("finish", "usage[USAGE_BYTES] + #result", "usage[USAGE_BYTES]")


@mutant("TENANT-5", stores=REDIS)
def large_payloads_count_nothing(bug: Bug) -> None:
    """A payload stored apart from its record is not counted."""
    bug.lua("enqueue", "payload_sizes[n] + large_sizes[n]\n", "payload_sizes[n]\n")
    bug.lua("jobs", "payload = call('HSTRLEN', job.lane.p, job.id)", "")


@mutant("TENANT-5", stores=REDIS)
def forgotten_payloads_count_on(bug: Bug) -> None:
    """A removed large payload is still counted."""
    bug.lua("jobs", "payload = call('HSTRLEN', job.lane.p, job.id)", "")


@mutant("TENANT-5", stores=REDIS)
def forgotten_results_count_on(bug: Bug) -> None:
    """A removed result is still counted."""
    bug.lua("jobs", "-RECORD_BYTES - payload - job.weight", "-RECORD_BYTES - payload")


@mutant("TENANT-5", stores=REDIS)
def errors_are_not_counted(bug: Bug) -> None:
    """The errors of a job are not counted."""
    bug.lua("jobs", "add_usage(job.lane, 0, 0, weight - job.weight)", "")


@mutant("TENANT-5", stores=REDIS)
def all_keys_count(bug: Bug) -> None:
    """Keys that end with their job are counted on their own."""
    bug.lua("keys", "binding.policy >= POLICY_TTL", "binding.policy >= POLICY_UNTIL_TERMINAL")


@mutant("TENANT-5", stores=REDIS)
def released_keys_count_on(bug: Bug) -> None:
    """A key whose time is over is still counted."""
    bug.lua(
        "keys",
        "local function unbind(lane, field)\n  count_lasting_key(lane, field, -1)",
        "local function unbind(lane, field)",
    )


@mutant("TENANT-5", stores=REDIS)
def emptied_queues_count(bug: Bug) -> None:
    """A queue without jobs counts as long as its turns are stored."""
    bug.lua("usage", "if call('EXISTS', lane.j) == 1 or is_paused(lane) then", "if lane then")


@mutant("TENANT-5", stores=REDIS)
def budgets_are_set_anew(bug: Bug) -> None:
    """Setting one budget drops the others."""
    bug.lua(
        "settings",
        "for name, budget in pairs(request[7]) do",
        "kept[SETTING_BUDGETS] = {}\nfor name, budget in pairs(request[7]) do",
    )
