-- What a tenant keeps, as far as it is counted. [TENANT-5]   uses: lanes
--
-- request: { tenant }
-- Answers { jobs, lasting keys, bytes, queues with jobs or paused, events }. Of very many queues some are looked at.

local QUEUES = 1000
local tenant = request[1]
local known, sample = call('ZCARD', shard .. 'Q:' .. tenant), nil
if known <= QUEUES then
  sample = call('ZRANGE', shard .. 'Q:' .. tenant, 0, -1)
else
  sample = call('ZRANDMEMBER', shard .. 'Q:' .. tenant, QUEUES)
end
local used = 0
for _, queue in ipairs(sample) do
  local lane = lane_named(tenant, queue)
  if call('EXISTS', lane.j) == 1 or is_paused(lane) then
    used = used + 1
  end
end
local answer = { 0, 0, 0, known > QUEUES and floor(used * known / QUEUES) or used, 0 }
for place, kind in pairs({ 'n:j', 'n:k', 'n:b', [5] = 'n:e' }) do
  answer[place] = max(0, tonumber(call('HGET', shard .. kind, tenant)) or 0)
end
return answer
