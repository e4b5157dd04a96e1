-- Counts the jobs of a tenant's queues by state.   uses: jobs lanes
--
-- request: { tenant, queues; or false for those that have jobs or are paused, name to go on behind, how many to look at }
-- Answers { now, name to go on behind or '' after the last, queue, { paused, oldest visible or -1, scheduled, ready,
--   retrying, leased, completed, failed, canceled }, ... }. Ended jobs past their retention are taken off, as far as
--   FORGOTTEN of a queue wait for the pruner; where so many were looked at, the answer ends early.

local FORGOTTEN = 1000
local tenant, queues, after, most = unpack(request)
local forgotten_seen = 0

-- How many ended jobs of a lane wait for the pruner, by state.
local function gone_of(lane)
  local gone = { [COMPLETED] = 0, [FAILED] = 0, [CANCELED] = 0 }
  for _, member in ipairs(call('ZRANGEBYSCORE', lane.e, '-inf', now, 'LIMIT', 0, FORGOTTEN)) do
    for state = COMPLETED, CANCELED do
      if call('ZSCORE', lane[state], member) then
        gone[state] = gone[state] + 1
      end
    end
    forgotten_seen = forgotten_seen + 1
  end
  return gone
end

local function counts(lane)
  local ready, oldest = 0, nil
  for band = 0, 9 do
    local low = band * BAND
    local visible = call('ZCOUNT', lane.w, low, low + now)
    if visible > 0 then
      local first = tonumber(call('ZRANGEBYSCORE', lane.w, low, low + now, 'WITHSCORES', 'LIMIT', 0, 1)[2]) - low
      ready, oldest = ready + visible, min(oldest or first, first)
    end
  end
  local retrying = call('ZCOUNT', lane.r, '(' .. whole(now), '+inf')
  local scheduled = call('ZCARD', lane.w) - ready - retrying
  local answer = { is_paused(lane) and 1 or 0, oldest or -1, scheduled, ready, retrying, call('ZCARD', lane.l) }
  local gone = gone_of(lane)
  for state = COMPLETED, CANCELED do
    answer[#answer + 1] = call('ZCARD', lane[state]) - gone[state]
  end
  return answer
end

local names, answer = queues or names_behind(shard .. 'Q:' .. tenant, after, most), { now, '' }
for n, queue in ipairs(names) do
  local lane = lane_named(tenant, queue)
  if queues or call('EXISTS', lane.j) == 1 or is_paused(lane) then
    answer[#answer + 1] = queue
    answer[#answer + 1] = counts(lane)
  end
  if n == most or forgotten_seen >= FORGOTTEN then
    answer[2] = queue
    break
  end
end
return answer
