-- Stops or goes on handing out a queue's jobs. [CLAIM-5]   uses: jobs lanes turns
--
-- request: { lane, paused }. Safe to repeat.

local lane = lane_of(request[1])
local tenant, queue = names_of(lane)
register(lane)
if request[2] then
  call('SADD', shard .. 'P', lane.name)
  call('HSET', KEYS[1], 'paused', 1)
  -- It leaves the turns at once, and when it goes on it enters them like any other newcomer.
  local time = call('ZSCORE', shard .. 'T:' .. queue, tenant)
  if time then
    leave_turns(queue, lane, tonumber(time))
  end
else
  call('SREM', shard .. 'P', lane.name)
  if call('EXISTS', shard .. 'P') == 0 then
    call('HDEL', KEYS[1], 'paused')
  end
  call('ZADD', shard .. 'N:' .. queue, 'LT', now, tenant)
  hints.ready[1] = lane.name
  commit()
end
return 1
