-- Counts the jobs of a tenant's queues by state.   uses: records lanes
--
-- request: { tenant, queues, or false for those with jobs or a pause; name to start after, most queues to read }
-- Answers { now, name to continue after or '' at the end, queue, { paused, oldest visible time or NONE, scheduled,
--   ready, retrying, leased, completed, failed, canceled }, ... }.
-- Up to MAX_FORGOTTEN ended jobs of a queue that wait to be pruned are subtracted. The answer ends early when that many have
-- been read in all queues together.
-- Safe to repeat. Reads the sorted sets of the lanes.

local MAX_FORGOTTEN = 1000
local tenant, queues, after, max_queues = unpack(request)
local forgotten_seen = 0

-- How many ended jobs of a lane wait to be pruned, by state.
local function gone_of(lane)
  local gone = { [STATE_COMPLETED] = 0, [STATE_FAILED] = 0, [STATE_CANCELED] = 0 }
  for _, member in ipairs(call('ZRANGEBYSCORE', lane.e, '-inf', now, 'LIMIT', 0, MAX_FORGOTTEN)) do
    for state = STATE_COMPLETED, STATE_CANCELED do
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
    local low = band * PRIORITY_BAND
    local visible = call('ZCOUNT', lane.w, low, low + now)
    if visible > 0 then
      local first = tonumber(call('ZRANGEBYSCORE', lane.w, low, low + now, 'WITHSCORES', 'LIMIT', 0, 1)[2]) - low
      ready, oldest = ready + visible, min(oldest or first, first)
    end
  end
  local retrying = call('ZCOUNT', lane.r, '(' .. int_text(now), '+inf')
  local scheduled = call('ZCARD', lane.w) - ready - retrying
  local answer = { is_paused(lane) and 1 or 0, oldest or NONE, scheduled, ready, retrying, call('ZCARD', lane.l) }
  local gone = gone_of(lane)
  for state = STATE_COMPLETED, STATE_CANCELED do
    answer[#answer + 1] = call('ZCARD', lane[state]) - gone[state]
  end
  return answer
end

local names, answer = queues or names_after(shard .. 'Q:' .. tenant, after, max_queues), { now, '' }
for n, queue in ipairs(names) do
  local lane = lane_named(tenant, queue)
  if queues or call('EXISTS', lane.j) == 1 or is_paused(lane) then
    answer[#answer + 1] = queue
    answer[#answer + 1] = counts(lane)
  end
  if n == max_queues or forgotten_seen >= MAX_FORGOTTEN then
    answer[2] = queue
    break
  end
end
return answer
