-- Lists the tenants that have jobs or settings.   uses: nothing
--
-- request: { cursor, how many to look at }
-- Answers { cursor of the next call or '0', tenant, ... }; with the first come all that have settings.

local cursor, tenants = unpack(call('SSCAN', shard .. 'T', request[1], 'COUNT', request[2]))
local answer = { cursor }
for _, tenant in ipairs(tenants) do
  for _, queue in ipairs(call('SMEMBERS', shard .. 'Q:' .. tenant)) do
    if call('EXISTS', lane_named(tenant, queue).j) == 1 then
      answer[#answer + 1] = tenant
      break
    end
  end
end
if request[1] == '0' then
  for _, tenant in ipairs(call('SMEMBERS', shard .. 'S')) do
    answer[#answer + 1] = tenant
  end
end
return answer
