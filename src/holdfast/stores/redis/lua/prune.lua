-- Forgets ended jobs past their retention and keys past their time to live, and removes empty lanes. [KEEP-1]
--   uses: records keys jobs leases lanes
--
-- request: { limit, 1 to return the names of blobs }
-- Answers { jobs forgotten, 1 if there is more to do, result that names a blob, ... }.
-- Safe to repeat, but the names of blobs are returned once. Reads and writes the lanes, the index `E`, the keys `y`,
-- the list `b` of blobs and the turns.

local limit, with_blobs = unpack(request)
local MAX_LANES_SWEPT, MONTH_MS = 300, 30 * 86400000

local ended, correct_bounds = find_overdue('E', 'e', limit + 1)
local jobs = min(#ended, limit)
for n = 1, jobs do
  local lane = ended[n][3]
  local job = find_any(lane, sub(ended[n][2], 8))
  if job and job.state > STATE_LEASED and is_forgotten(job) then
    forget(job)
  else
    zset_put(lane.e, ended[n][2], false)
  end
end
for _, member in ipairs(call('ZRANGEBYSCORE', shard .. 'y', '-inf', now, 'LIMIT', 0, limit)) do
  local lane, field = split_lane(member)
  unbind(lane, field)
end
save_and_commit()
correct_bounds()

-- Remove a lane without jobs, once forgetting its virtual time gives it no advantage. [TENANT-4]
local function sweep_lane(tenant, queue)
  local lane = lane_named(tenant, queue)
  local turns, times = shard .. 'T:' .. queue, shard .. 'V:' .. queue
  if call('EXISTS', lane.j) == 1 or is_paused(lane) or call('ZSCORE', turns, tenant) then
    return
  end
  local kept = call('HGET', times, tenant)
  local time, left_at = string.match(kept or '0:0', '^(%d+):(%d+)$')
  local minimum = tonumber(call('HGET', shard .. 'f', queue)) or 0
  minimum = min(minimum, tonumber(call('ZRANGE', turns, 0, 0, 'WITHSCORES')[2]) or minimum)
  if tonumber(time) <= minimum or left_at + MONTH_MS < now then
    call('HDEL', times, tenant)
    call('ZREM', shard .. 'N:' .. queue, tenant)
    call('ZREM', shard .. 'Q:' .. tenant, queue)
    if call('EXISTS', times, turns, shard .. 'N:' .. queue) == 0 then
      call('HDEL', shard .. 'f', queue) -- No tenant is left in this queue name.
    end
  end
end

-- Sweep some lanes, continuing after those of the last call.
local function sweep()
  local tenant, queue = unpack(call('HMGET', KEYS[1], 'sweep_tenant', 'sweep_queue'))
  local lanes_left = MAX_LANES_SWEPT
  tenant, queue = tenant or '', queue or ''
  while lanes_left > 0 do
    local queues = tenant ~= '' and names_after(shard .. 'Q:' .. tenant, queue, lanes_left) or {}
    for _, name in ipairs(queues) do
      sweep_lane(tenant, name)
    end
    lanes_left = lanes_left - #queues - 1
    if lanes_left >= 0 then -- The tenant has no more queues.
      if tenant ~= '' and call('EXISTS', shard .. 'Q:' .. tenant) == 0 then
        call('ZREM', shard .. 'T', tenant)
      end
      tenant, queue = names_after(shard .. 'T', tenant, 1)[1] or '', ''
      if tenant == '' then
        break -- The next call starts over.
      end
    else
      queue = queues[#queues]
    end
  end
  call('HSET', KEYS[1], 'sweep_tenant', tenant, 'sweep_queue', queue)
end

-- Whether anything in an index is due.
local function any_due(index)
  return call('ZCOUNT', shard .. index, '-inf', now) > 0
end

sweep()
local answer = { jobs, (any_due('E') or any_due('y')) and 1 or 0 }
if with_blobs == 1 then
  for _, result in ipairs(call('LRANGE', shard .. 'b', 0, limit - 1)) do
    answer[#answer + 1] = result
  end
  call('LTRIM', shard .. 'b', limit, -1)
  answer[2] = max(answer[2], call('EXISTS', shard .. 'b'))
end
return answer
