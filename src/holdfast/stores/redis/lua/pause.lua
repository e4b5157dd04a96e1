-- Pauses or resumes a queue of a tenant. [CLAIM-5]   uses: records keys jobs lanes turns
--
-- request: { lane, paused }
-- Answers 1. Safe to repeat. Writes the set `P`, the counter `paused` and the turns.

local lane = lane_of(request[1])
local tenant, queue = names_of(lane)
register_lane(lane)
if request[2] then
  call('SADD', shard .. 'P', lane.name)
  call('HSET', KEYS[1], 'paused', 1)
  -- It leaves the turns now. When it is resumed, it enters them like a newcomer.
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
