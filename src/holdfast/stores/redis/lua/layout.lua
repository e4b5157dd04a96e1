-- Reads the layout of the store, or writes it if the store is new.   uses: nothing
--
-- request: { format, number of shards or 0 for any, clock }; clock is NONE for the real one, else the instant at which
--   it is frozen, 0 for the present
-- Answers { format, shards, clock } as they are stored; 0 shards if the store is new and no number was given.
-- Safe to repeat. Writes the counters `format`, `shards` and `frozen`.

local format, shards, clock = unpack(request)
local kept = call('HMGET', KEYS[1], 'format', 'shards', 'frozen')
if kept[1] then
  return { tonumber(kept[1]), tonumber(kept[2]), tonumber(kept[3]) or NONE }
elseif shards == 0 then
  return { format, 0, clock }
end
call('HSET', KEYS[1], 'format', format, 'shards', shards)
if clock >= 0 then
  clock = clock > 0 and clock or now
  call('HSET', KEYS[1], 'frozen', int_text(clock))
end
return { format, shards, clock }
