-- Completes, fails, retries or releases leased jobs. [LEASE-1, RETRY-1 to RETRY-5, RESULT-1]   uses: jobs
--
-- request: the items, each { lane, id, token, outcome (1 complete, 2 fail, 3 retry, 4 release), size of the result,
--   1 if that is a blob's name, { error's type, message, traceback, message for the log, fingerprint } or false,
--   timed out, delay_ms or -1, random }; the last four only where the outcome is not 1
-- ARGV[3]: the results, one after another.
-- Answers each with the state it led to, or with the refusal of `judge`. Safe to repeat.

local COMPLETE, FAIL, RETRY = 1, 2, 3
local results, at = ARGV[3], 1

local function complete(job, result, in_blob)
  move(job, COMPLETED, function()
    job.result = result
    job.flags = in_blob == 1 and bit.bor(job.flags, RESULT_IN_BLOB) or job.flags
    end_at(job, job.ttl)
  end)
  note('completed', job)
end

local function fail(job, reason, item)
  remember(job, item[7])
  end_dead(job, reason, item[7])
end

local function retry(job, item)
  if job.attempts >= job.max_attempts then
    return fail(job, item[8] and TIMEOUT or MAX_ATTEMPTS, item)
  end
  remember(job, item[7])
  wait_again(job, RETRYING, item[9] >= 0 and item[9] or backoff(job, item[10]))
  note('retried', job, job.visible_at, item[7][1], item[7][4], item[7][5])
end

-- The attempt is given back. The token stays spent: only a new claim makes a new one. [RETRY-5]
local function release(job, delay)
  wait_again(job, delay > 0 and SCHEDULED or READY, delay)
  note('released', job, job.visible_at)
  job.attempts = job.attempts - 1
end

load_all(request)
local answers = {}
for n, item in ipairs(request) do
  local job = find(lane_of(item[1]), item[2])
  local answer = judge(job, item[3], item[4])
  if answer == nil then
    if item[4] == COMPLETE then
      complete(job, sub(results, at, at + item[5] - 1), item[6])
    elseif item[4] == FAIL then
      fail(job, item[8] and TIMEOUT or PERMANENT, item)
    elseif item[4] == RETRY then
      retry(job, item)
    else
      release(job, max(0, item[9]))
    end
    job.spent, job.spent_state = item[4], job.state
    answer = job.state
  end
  answers[n] = answer
  at = at + item[5]
end
finish_call()
return answers
