-- Reads what a tenant keeps, as far as it is counted. [TENANT-5]   uses: lanes
--
-- request: { tenant }
-- Answers { jobs, lasting keys, bytes, queues that have jobs or are paused, events }. The queues of a tenant with more
--   than MAX_QUEUES are estimated from a sample. Safe to repeat.

local MAX_QUEUES = 1000
local tenant = request[1]
local known, sample = call('ZCARD', shard .. 'Q:' .. tenant), nil
if known <= MAX_QUEUES then
  sample = call('ZRANGE', shard .. 'Q:' .. tenant, 0, -1)
else
  sample = call('ZRANDMEMBER', shard .. 'Q:' .. tenant, MAX_QUEUES)
end
local used = 0
for _, queue in ipairs(sample) do
  local lane = lane_named(tenant, queue)
  if call('EXISTS', lane.j) == 1 or is_paused(lane) then
    used = used + 1
  end
end
local answer = { 0, 0, 0, known > MAX_QUEUES and floor(used * known / MAX_QUEUES) or used, 0 }
for position, kind in pairs({ 'n:j', 'n:k', 'n:b', [5] = 'n:e' }) do
  answer[position] = max(0, tonumber(call('HGET', shard .. kind, tenant)) or 0)
end
return answer
