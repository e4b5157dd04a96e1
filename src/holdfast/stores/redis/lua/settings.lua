-- Sets and reads what is set for a tenant and its queues. [TENANT-4, TENANT-5]   uses: nothing
--
-- request: { 'set', tenant, field, cost or false, weight or false, max_waiting or false }: false leaves what is there;
--   { 'get', tenant } -> { field, settings, ... }. A field is 't' for the tenant or 'q' and a queue. Safe to repeat.

local verb, tenant, field = unpack(request)
local key = shard .. 's:' .. tenant
if verb == 'get' then
  return call('HGETALL', key)
end
local raw = call('HGET', key, field)
local kept = raw and cmsgpack.unpack(raw) or { false, false, false }
for n = 1, 3 do
  kept[n] = request[3 + n] or kept[n]
end
call('HSET', key, field, cmsgpack.pack(kept))
call('SADD', shard .. 'S', tenant)
call('HSET', KEYS[1], 'settings', 1)
return 1
