-- Forgets ended jobs past their retention, and lets go of lanes that are empty. [KEEP-1]   uses: jobs lanes
--
-- request: { limit, 1 to hand out blobs }
-- Answers { jobs forgotten, 1 if something is left over, result that names a blob, ... }. Safe to repeat,
--   but for the names of blobs, which are handed out once.

local limit, with_blobs = unpack(request)
local LANES, MONTH = 300, 30 * 86400000

local ended, settle = overdue('E', 'e', limit + 1)
local jobs = min(#ended, limit)
for n = 1, jobs do
  local lane = ended[n][3]
  local job = find_any(lane, sub(ended[n][2], 8))
  if job and job.state > LEASED and forgotten(job) then
    forget(job)
  else
    rank(lane.e, ended[n][2], false)
  end
end
for _, member in ipairs(call('ZRANGEBYSCORE', shard .. 'y', '-inf', now, 'LIMIT', 0, limit)) do
  local lane, field = split_lane(member)
  unbind(lane, field)
end
finish_call()
settle()

-- A lane without jobs is forgotten once that takes no turn from anybody. [TENANT-4]
local function sweep_lane(tenant, queue)
  local lane = lane_named(tenant, queue)
  local turns, times = shard .. 'T:' .. queue, shard .. 'V:' .. queue
  if call('EXISTS', lane.j) == 1 or is_paused(lane) or call('ZSCORE', turns, tenant) then
    return
  end
  local kept = call('HGET', times, tenant)
  local time, left_at = string.match(kept or '0:0', '^(%d+):(%d+)$')
  local least = tonumber(call('HGET', shard .. 'f', queue)) or 0
  least = min(least, tonumber(call('ZRANGE', turns, 0, 0, 'WITHSCORES')[2]) or least)
  if tonumber(time) <= least or left_at + MONTH < now then
    call('HDEL', times, tenant)
    call('ZREM', shard .. 'N:' .. queue, tenant)
    call('ZREM', shard .. 'Q:' .. tenant, queue)
    if call('EXISTS', times, turns, shard .. 'N:' .. queue) == 0 then
      call('HDEL', shard .. 'f', queue) -- Nobody is left to be before or behind.
    end
  end
end

-- Looks at some lanes, behind those that the last call looked at.
local function sweep()
  local tenant, queue = unpack(call('HMGET', KEYS[1], 'sweep_tenant', 'sweep_queue'))
  local looks = LANES
  tenant, queue = tenant or '', queue or ''
  while looks > 0 do
    local queues = tenant ~= '' and names_behind(shard .. 'Q:' .. tenant, queue, looks) or {}
    for _, name in ipairs(queues) do
      sweep_lane(tenant, name)
    end
    looks = looks - #queues - 1
    if looks >= 0 then -- These were the last of this tenant.
      if tenant ~= '' and call('EXISTS', shard .. 'Q:' .. tenant) == 0 then
        call('ZREM', shard .. 'T', tenant)
      end
      tenant, queue = names_behind(shard .. 'T', tenant, 1)[1] or '', ''
      if tenant == '' then
        break -- The next call begins anew.
      end
    else
      queue = queues[#queues]
    end
  end
  call('HSET', KEYS[1], 'sweep_tenant', tenant, 'sweep_queue', queue)
end

-- Whether anything of an index is over by now.
local function any_over(index)
  return call('ZCOUNT', shard .. index, '-inf', now) > 0
end

sweep()
local answer = { jobs, (any_over('E') or any_over('y')) and 1 or 0 }
if with_blobs == 1 then
  for _, result in ipairs(call('LRANGE', shard .. 'b', 0, limit - 1)) do
    answer[#answer + 1] = result
  end
  call('LTRIM', shard .. 'b', limit, -1)
  answer[2] = max(answer[2], call('EXISTS', shard .. 'b'))
end
return answer
