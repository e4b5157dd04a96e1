-- Completes, fails, retries or releases leased jobs. [LEASE-1, RETRY-1 to RETRY-6, RESULT-1]
--   uses: records keys jobs leases, after single_finish
--
-- request: { lanes (one for each item, or one for all), ids, tokens, outcomes, sizes of the results, { position = 1 }
--   for results that name a blob, { position = details } for outcomes other than complete, whether no job is named
--   twice }. Details are { error or false, timed out, delay_ms or NONE, random, forgive, reason of a release or '' }.
-- ARGV[3]: the results, joined.
-- Answers each item with the state that it led to, or a refusal. Safe to repeat: a repeated item gets the first answer.
-- Reads and writes the lanes of the jobs and the log.

local results, at = ARGV[3], 1

local function complete_in_full(job, result, blob)
  transition(job, STATE_COMPLETED, function()
    job.result = result
    job.flags = blob and bit.bor(job.flags, FLAG_RESULT_IN_BLOB) or job.flags
    set_ended(job, job.ttl)
  end)
  log_job_event(job, EVENT_COMPLETED)
end

local function fail(job, reason, error)
  add_error(job, error)
  end_failed(job, reason, error)
end

local function retry(job, error, timed_out, delay, random)
  if job.attempts >= job.max_attempts then
    return fail(job, timed_out and REASON_TIMEOUT or REASON_MAX_ATTEMPTS, error)
  end
  add_error(job, error)
  requeue(job, STATE_RETRYING, delay >= 0 and delay or backoff_delay(job, random))
  log_job_event(job, EVENT_RETRIED, job.visible_at, error_data(error))
end

-- Give the attempt back. The token stays spent: only a new claim makes a new one. [RETRY-5, RETRY-6]
local function release(job, delay, forgive, reason)
  local known_for, since = release_reason(job)
  requeue(job, delay > 0 and STATE_SCHEDULED or STATE_READY, delay)
  if reason ~= '' then
    set_release_reason(job, reason, reason == known_for and since or now)
  end
  log_job_event(job, EVENT_RELEASED, job.visible_at, reason)
  job.attempts = forgive and 0 or job.attempts - 1
end

local function finish_in_full(n, job, result)
  local outcome = outcomes[n]
  local answer = judge_lease(job, tokens[n], outcome)
  if answer ~= nil then
    return answer
  elseif outcome == OUTCOME_COMPLETE then
    complete_in_full(job, result, in_blob[n])
  else
    local error, timed_out, delay, random, forgive, reason = unpack(details[n])
    if outcome == OUTCOME_FAIL then
      fail(job, timed_out and REASON_TIMEOUT or REASON_PERMANENT, error)
    elseif outcome == OUTCOME_RETRY then
      retry(job, error, timed_out, delay, random)
    else
      release(job, max(0, delay), forgive, reason)
    end
  end
  job.spent, job.spent_state = outcome, job.state
  return job.state
end

local batches_of, now_text, ends, times_of, starts = {}, int_text(now), {}, {}, {}
local NO_DEADLINE = string.rep('\0', 8)

-- Complete a job under a live lease and without a key: only the changed bytes of the record are made. Returns nil,
-- and changes nothing, for other jobs.
local function complete_in_place(lane, n, raw, result)
  local state, attempts, spent, events, worker_size, extra_size, token, deadline, ttl, type_size, key_size, static_size,
    request_size, payload_size, seq = struct.unpack(COMPLETE_FORMAT, raw)
  if state ~= STATE_LEASED or token ~= tokens[n] or spent ~= 0 or now >= deadline or key_size > 0 or in_blob[n] then
    return nil
  end
  local id = ids[n]
  local stop = RECORD_SIZE + type_size + static_size + request_size + payload_size
  local end_text, times = ends[ttl], times_of[ttl]
  if not times then
    -- As text: the server converts numbers to text in every call.
    end_text, times = int_text(now + ttl), struct.pack('<I8I8', now, now + ttl)
    ends[ttl], times_of[ttl] = end_text, times
  end
  local start = starts[256 * events + attempts]
  if not start then
    start = struct.pack('<BBBBI4', STATE_COMPLETED, attempts, OUTCOME_COMPLETE, STATE_COMPLETED, events + 1)
    starts[256 * events + attempts] = start
  end
  local record = start .. sub(raw, AT_REASON, AT_DEADLINE - 1) .. NO_DEADLINE
    .. sub(raw, AT_CLAIMED_AT, AT_FINISHED_AT - 1) .. times
    .. sub(raw, AT_TTL, stop + worker_size + extra_size) .. result
  if #ids <= MAX_FULL_RECORDS and ttl > 0 then
    completed[lane.name .. id] = record
  end
  -- The same as `hash_put` and `zset_put`, with the batches looked up once for each lane.
  local batches = batches_of[lane]
  if not batches then
    batches = {
      batch_of(hashes, lane.j, 'HSET'), batch_of(zsets, lane.l, 'ZREM'), batch_of(zsets, lane[STATE_COMPLETED], 'ZADD'),
      batch_of(zsets, lane.e, 'ZADD'),
    }
    batches_of[lane] = batches
  end
  local records, gone, ended, kept = batches[1], batches[2], batches[3], batches[4]
  local member = struct.pack('>I7', seq) .. id
  local at = records.n
  records[at + 1], records[at + 2], records.n = id, record, at + 2
  at = gone.n + 1
  gone[at], gone.n = member, at
  at = ended.n
  ended[at + 1], ended[at + 2], ended.n = now_text, member, at + 2
  at = kept.n
  kept[at + 1], kept[at + 2], kept.n = end_text, member, at + 2
  add_bound('E', lane, now + ttl)
  local type, worker = sub(raw, RECORD_SIZE + 1, RECORD_SIZE + type_size), sub(raw, stop + 1, stop + worker_size)
  log_event(EVENT_COMPLETED, lane.name, id, type, attempts, token, worker, events + 1)
  local usage = usage_changes[lane.name]
  usage[USAGE_BYTES] = usage[USAGE_BYTES] + #result
  local done = hints.done
  done[#done + 1] = lane.name
  done[#done + 1] = id
  return STATE_COMPLETED
end

local lanes_of, raws = {}, {}
for n = 1, #ids do
  lanes_of[n] = lane_of(lane_names[n] or lane_names[1])
end
fetch_records(lanes_of, ids, raws)

local answers = {}
for n, id in ipairs(ids) do
  local lane, raw = lanes_of[n], raws[n]
  local result = sub(results, at, at + result_sizes[n] - 1)
  local answer = plain and raw and outcomes[n] == OUTCOME_COMPLETE and complete_in_place(lane, n, raw, result) or nil
  if answer == nil then
    if lane.jobs[id] == nil then
      lane.jobs[id] = raw and unpack_record(lane, id, raw) or false
    end
    answer = finish_in_full(n, find(lane, id), result)
  end
  answers[n] = answer
  at = at + result_sizes[n]
end
save_and_commit()
return answers
