-- Leases: how they are judged and how they expire.

-- Judge an acknowledgement. Returns nil if it may proceed, the recorded state if it repeats an earlier one, or a
-- refusal. [LEASE-1]
local function judge_lease(job, token, outcome)
  if not job then
    return REFUSED_NOT_FOUND
  elseif token == job.token and job.spent ~= 0 and job.spent == outcome then
    return job.spent_state
  elseif token ~= job.token or token <= 0 then
    return REFUSED_LEASE_LOST
  elseif job.state == STATE_CANCELED then
    return REFUSED_JOB_CANCELED
  elseif job.spent ~= 0 then
    return REFUSED_LEASE_LOST
  elseif job.state ~= STATE_LEASED or now >= job.deadline then
    return REFUSED_LEASE_EXPIRED
  end
  return nil
end

-- The replies to `count` items of a call made under a parent lease, { lane, id, token }, that is over; nil if the lease
-- is live or there is none.
local function refused_by_parent(parent_lease, count)
  local refusal = parent_lease and judge_lease(find(lane_of(parent_lease[1]), parent_lease[2]), parent_lease[3])
  if not refusal then
    return nil
  end
  local answers = {}
  for n = 1, count do
    answers[n] = { PARENT_REFUSED, refusal }
  end
  return answers
end

-- End a lease whose deadline has passed. It counts as an attempt. [RETRY-2, LEASE-3]
local function expire_lease(job, random)
  local message = 'the lease of worker ' .. job.worker .. ' ran out'
  local error = { 'LeaseExpired', message, '', message, expired_fingerprint }
  add_error(job, error)
  if job.attempts >= job.max_attempts then
    end_failed(job, REASON_LEASE_EXPIRED, error)
  else
    requeue(job, STATE_RETRYING, backoff_delay(job, random))
    log_job_event(job, EVENT_EXPIRED, job.visible_at, error_data(error))
  end
end

-- How many lanes one search covers, and up to how many lanes each may use the whole limit.
local MAX_LANES, FULL_SHARE_LANES = 100, 10

-- Correct the bound of a lane in the index `L` or `E` (see `add_bound`), and return it.
local function correct_bound(index, set_name, name, known)
  local earliest = call('ZRANGE', lane_of(name)[set_name], 0, 0, 'WITHSCORES')[2]
  if not earliest then
    call('ZREM', shard .. index, name)
  elseif earliest ~= known then
    call('ZADD', shard .. index, earliest, name)
  end
  return earliest
end

-- Up to `limit` jobs of all lanes whose lease or retention is over, oldest first, each { time, member, lane }. Also
-- returns a function that corrects the bounds of their lanes, to be called when the jobs are dealt with.
local function find_overdue(index, set_name, limit)
  local names = call('ZRANGEBYSCORE', shard .. index, '-inf', now, 'LIMIT', 0, MAX_LANES)
  local found = {}
  local share = #names <= FULL_SHARE_LANES and limit or math.ceil(limit * FULL_SHARE_LANES / #names)
  for _, name in ipairs(names) do
    local lane = lane_of(name)
    local members = call('ZRANGEBYSCORE', lane[set_name], '-inf', now, 'WITHSCORES', 'LIMIT', 0, share)
    for n = 1, #members, 2 do
      found[#found + 1] = { tonumber(members[n + 1]), members[n], lane }
    end
  end
  if #names > 1 then
    table.sort(found, function(a, b)
      return a[1] < b[1] or (a[1] == b[1] and bytes_before(a[2], b[2]))
    end)
  end
  return found, function()
    for _, name in ipairs(names) do
      correct_bound(index, set_name, name)
    end
  end
end

-- End up to `limit` expired leases, oldest deadline first. [LEASE-3]
local function reap_expired(limit, random)
  local found, correct_bounds = find_overdue('L', 'l', limit)
  local ended = {}
  for n = 1, min(limit, #found) do
    local lane, id = found[n][3], sub(found[n][2], 8)
    local job = find_any(lane, id)
    if job and job.state == STATE_LEASED then
      expire_lease(job, (random + (n - 1) * 0.6180339887498949) % 1)
      ended[#ended + 1] = lane.name
      ended[#ended + 1] = id
    else
      zset_put(lane.l, found[n][2], false)
    end
  end
  save_and_commit()
  correct_bounds()
  return ended
end

-- When the next lease expires, or nil. Corrects bounds that are too early.
local function next_deadline()
  for _ = 1, MAX_LANES do
    local head = call('ZRANGE', shard .. 'L', 0, 0, 'WITHSCORES')
    if not head[1] or correct_bound('L', 'l', head[1], head[2]) == head[2] then
      return tonumber(head[2])
    end
  end
  return now + 1
end
