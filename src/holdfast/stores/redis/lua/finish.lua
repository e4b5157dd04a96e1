-- Completes, fails, retries or releases leased jobs. [LEASE-1, RETRY-1 to RETRY-5, RESULT-1]   uses: jobs, after lone_finish
--
-- request: columns, one value for each item: lanes (or one for all), ids, tokens, outcomes (1 complete, 2 fail, 3 retry,
--   4 release), sizes of the results; then, by place: 1 where the result is a blob's name; { { error's type, message,
--   traceback, message for the log, fingerprint } or false, timed out, delay_ms or -1, random, forgive, reason of a release
--   or '' } where the outcome is not 1; then, once: no job stands twice
-- ARGV[3]: the results, one after another.
-- Answers each with the state it led to, or with the refusal of `judge`. Safe to repeat.

local COMPLETE, FAIL, RETRY = 1, 2, 3
local names, ids, tokens, outcomes, sizes, in_blob, details, plain = unpack(request)
local results, at = ARGV[3], 1

local function complete_slowly(job, result, blob)
  move(job, COMPLETED, function()
    job.result = result
    job.flags = blob and bit.bor(job.flags, RESULT_IN_BLOB) or job.flags
    end_at(job, job.ttl)
  end)
  note_of(job, 'completed')
end

local function fail(job, reason, error)
  remember(job, error)
  end_dead(job, reason, error)
end

local function retry(job, error, timed_out, delay, random)
  if job.attempts >= job.max_attempts then
    return fail(job, timed_out and TIMEOUT or MAX_ATTEMPTS, error)
  end
  remember(job, error)
  wait_again(job, RETRYING, delay >= 0 and delay or backoff(job, random))
  note_of(job, 'retried', job.visible_at, error[1], error[4], error[5])
end

-- The attempt is given back. The token stays spent: only a new claim makes a new one. [RETRY-5, RETRY-6]
local function release(job, delay, forgive, reason)
  local known_for, since = released_for(job)
  wait_again(job, delay > 0 and SCHEDULED or READY, delay)
  if reason ~= '' then
    set_released_for(job, reason, reason == known_for and since or now)
    note_of(job, 'released_for', job.visible_at, reason)
  else
    note_of(job, 'released', job.visible_at)
  end
  job.attempts = forgive and 0 or job.attempts - 1
end

local function finish_slowly(n, job, result)
  local outcome = outcomes[n]
  local answer = judge(job, tokens[n], outcome)
  if answer ~= nil then
    return answer
  elseif outcome == COMPLETE then
    complete_slowly(job, result, in_blob[n])
  else
    local error, timed_out, delay, random, forgive, reason = unpack(details[n])
    if outcome == FAIL then
      fail(job, timed_out and TIMEOUT or PERMANENT, error)
    elseif outcome == RETRY then
      retry(job, error, timed_out, delay, random)
    else
      release(job, max(0, delay), forgive, reason)
    end
  end
  job.spent, job.spent_state = outcome, job.state
  return job.state
end

local runs_of, now_text, ends, times_of, starts = {}, whole(now), {}, {}, {}
local NO_DEADLINE = string.rep('\0', 8)

-- Of a record's head: state, attempts, spent, number of the last event, size of worker and extra, token, deadline, ttl, sizes of type, key,
-- settings, request id and payload, sequence number.
local SEEN = '<BBBxI4xxBxI4xxxxxxxxI8I8' .. string.rep('x', 24) .. 'I8xBHI4HI4I8'

-- Complete a job that holds its lease and has no key, by changing the record where it differs; else nothing is done.
local function complete(lane, n, raw, result)
  local state, attempts, spent, events, worker_size, extra_size, token, deadline, ttl, type_size, key_size, static_size,
    request_size, payload_size, seq = struct.unpack(SEEN, raw)
  if state ~= LEASED or token ~= tokens[n] or spent ~= 0 or now >= deadline or key_size > 0 or in_blob[n] then
    return nil
  end
  local id = ids[n]
  local stop = HEAD_SIZE + type_size + static_size + request_size + payload_size
  local end_text, times = ends[ttl], times_of[ttl]
  if not times then
    -- As text, since the server makes one of each number that it is given.
    end_text, times = whole(now + ttl), struct.pack('<I8I8', now, now + ttl)
    ends[ttl], times_of[ttl] = end_text, times
  end
  local start = starts[256 * events + attempts]
  if not start then
    start = struct.pack('<BBBBI4', COMPLETED, attempts, COMPLETE, COMPLETED, events + 1)
    starts[256 * events + attempts] = start
  end
  local record = start .. sub(raw, 9, 32) .. NO_DEADLINE .. sub(raw, 41, 48) .. times
    .. sub(raw, 65, stop + worker_size + extra_size) .. result
  if #ids <= IN_FULL and ttl > 0 then
    completed[lane.name .. id] = record
  end
  -- What `set` and `rank` do, without asking each time where.
  local runs = runs_of[lane]
  if not runs then
    runs = {
      run_of(hashes, lane.j, 'HSET'), run_of(zsets, lane.l, 'ZREM'), run_of(zsets, lane[COMPLETED], 'ZADD'),
      run_of(zsets, lane.e, 'ZADD'),
    }
    runs_of[lane] = runs
  end
  local records, gone, ended, kept = runs[1], runs[2], runs[3], runs[4]
  local member = struct.pack('>I7', seq) .. id
  local at = records.n
  records[at + 1], records[at + 2], records.n = id, record, at + 2
  at = gone.n + 1
  gone[at], gone.n = member, at
  at = ended.n
  ended[at + 1], ended[at + 2], ended.n = now_text, member, at + 2
  at = kept.n
  kept[at + 1], kept[at + 2], kept.n = end_text, member, at + 2
  bound('E', lane, now + ttl)
  local type, worker = sub(raw, HEAD_SIZE + 1, HEAD_SIZE + type_size), sub(raw, stop + 1, stop + worker_size)
  note(KINDS.completed, lane.name, id, type, attempts, token, worker, events + 1)
  local tally = tallies[lane.name]
  tally[4] = tally[4] + #result
  local done = hints.done
  done[#done + 1] = lane.name
  done[#done + 1] = id
  return COMPLETED
end

local lanes_of, raws = {}, {}
for n = 1, #ids do
  lanes_of[n] = lane_of(names[n] or names[1])
end
fetch(lanes_of, ids, raws)

local answers = {}
for n, id in ipairs(ids) do
  local lane, raw = lanes_of[n], raws[n]
  local result = sub(results, at, at + sizes[n] - 1)
  local answer = plain and raw and outcomes[n] == COMPLETE and complete(lane, n, raw, result) or nil
  if answer == nil then
    if lane.jobs[id] == nil then
      lane.jobs[id] = raw and parse(lane, id, raw) or false
    end
    answer = finish_slowly(n, find(lane, id), result)
  end
  answers[n] = answer
  at = at + sizes[n]
end
finish_call()
return answers
