-- Registers, moves, drops and lists readers of the log. [EVENT-2]   uses: nothing
--
-- request: { 'set', name, number } -> 1, or 0 if that is no offset; { 'check', name, number } only tells which; { 'drop', name } -> 1 if there was one;
--   { 'list' } -> { name, number, ... }. A reader never moves backwards. Safe to repeat.

local verb, name, number = unpack(request)
local key = shard .. 'd'
if verb == 'list' then
  return call('HGETALL', key)
elseif verb == 'drop' then
  return call('HDEL', key, name)
elseif number > max(last, micros) then
  return 0
elseif verb == 'check' then
  return 1
end
call('HSET', key, name, whole(max(number, tonumber(call('HGET', key, name)) or 0)))
return 1
