-- Sets and reads what is set for a tenant and its queues. [TENANT-4, TENANT-5]   uses: lanes
--
-- request: { 'set', tenant, field, cost or false, weight or false, max_waiting or false, budgets by name }: false leaves what is there;
--   1, or 0 if the tenant's waiting jobs are to be counted: { 'count', tenant } does some of it, and answers likewise;
--   { 'get', tenant } -> { field, settings, ... }. A field is 't' for the tenant or 'q' and a queue. Safe to repeat.

local verb, tenant, field = unpack(request)
local key = shard .. 's:' .. tenant
if verb == 'get' then
  return call('HGETALL', key)
elseif verb == 'count' then
  return count_more(tenant) and 1 or 0
end
local raw = call('HGET', key, field)
local kept = raw and cmsgpack.unpack(raw) or { false, false, false, {} }
for n = 1, 3 do
  kept[n] = request[3 + n] or kept[n]
end
for name, most in pairs(request[7]) do
  kept[4][name] = most
end
call('HSET', key, field, cmsgpack.pack(kept))
call('ZADD', shard .. 'S', 0, tenant)
call('HSET', KEYS[1], 'settings', 1)
if field == 't' and kept[3] and call('HSETNX', shard .. 'W', tenant, 0) == 1 then
  call('HSET', shard .. 'U', tenant, '')
  call('HSET', KEYS[1], 'quotas', 1)
end
return call('HEXISTS', shard .. 'U', tenant) == 1 and 0 or 1
