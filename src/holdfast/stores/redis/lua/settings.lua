-- Sets and reads the settings of a tenant and its queues. [TENANT-4, TENANT-5]   uses: lanes
--
-- request: { 'set', tenant, field, cost, weight, max_waiting (false for no change), { name = budget } }: answers 1, or
--   0 if the
--     tenant's waiting jobs are still to be counted
--   { 'count', tenant } counts some of them, and answers the same
--   { 'get', tenant } -> { field, settings, ... }
-- A field is 't' for the tenant, or 'q' and the name of a queue. Safe to repeat. Writes s:TENANT, `S`, `W` and `U`.

local verb, tenant, field = unpack(request)
local key = shard .. 's:' .. tenant
if verb == 'get' then
  return call('HGETALL', key)
elseif verb == 'count' then
  return continue_count(tenant) and 1 or 0
end
local raw = call('HGET', key, field)
local kept = raw and cmsgpack.unpack(raw) or { false, false, false, {} }
for n = SETTING_COST, SETTING_MAX_WAITING do
  kept[n] = request[3 + n] or kept[n]
end
for name, budget in pairs(request[7]) do
  kept[SETTING_BUDGETS][name] = budget
end
call('HSET', key, field, cmsgpack.pack(kept))
call('ZADD', shard .. 'S', 0, tenant)
call('HSET', KEYS[1], 'settings', 1)
if field == 't' and kept[SETTING_MAX_WAITING] and call('HSETNX', shard .. 'W', tenant, 0) == 1 then
  call('HSET', shard .. 'U', tenant, '')
  call('HSET', KEYS[1], 'quotas', 1)
end
return call('HEXISTS', shard .. 'U', tenant) == 1 and 0 or 1
