-- Registers, moves, drops and lists readers of the log, of one tenant or, with `false`, of all. [EVENT-2]
--   uses: nothing
--
-- request: { 'set', tenant, name, number } -> 1, or 0 if the number is not an offset;
--   { 'check', tenant, name, number } -> the same without setting it; { 'drop', tenant, name } -> 1 if there was one;
--   { 'list', tenant } -> { name, number, ... }
-- A reader never moves backwards. Safe to repeat. Writes the sorted sets `d` and d:TENANT.

local verb, tenant, name, number = unpack(request)
local key = shard .. (tenant and 'd:' .. tenant or 'd')
if verb == 'list' then
  return call('ZRANGE', key, 0, -1, 'WITHSCORES')
elseif verb == 'drop' then
  return call('ZREM', key, name)
elseif number > max(last, micros) then
  return 0
elseif verb == 'set' then
  call('ZADD', key, 'GT', int_text(number), name)
end
return 1
