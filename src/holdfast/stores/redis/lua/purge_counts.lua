-- Reads how many jobs of one tenant, or of some tenants, were purged.   uses: nothing
--
-- request: { tenant or '' for all, cursor, about how many }
-- Answers { cursor, '0' after the last; tenant, count as `purge.lua` packs it, ... }. Safe to repeat.

local tenant, cursor, limit = unpack(request)
if tenant ~= '' then
  local raw = call('HGET', shard .. 'M', tenant)
  return raw and { '0', tenant, raw } or { '0' }
end
local found = call('HSCAN', shard .. 'M', cursor, 'COUNT', limit)
return { found[1], unpack(found[2]) }
