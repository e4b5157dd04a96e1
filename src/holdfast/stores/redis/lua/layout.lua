-- Remembers how the store is laid out, by the first who opens it.   uses: nothing
--
-- request: { format, number of shards or 0 for "as it is", -1 for a clock that goes, else the instant at which it stands
--   still, 0 for now }
-- Answers { format, shards, frozen } as they are; 0 shards where nothing is laid out and none were named.
-- Safe to repeat.

local format, shards, frozen = unpack(request)
local kept = call('HMGET', KEYS[1], 'format', 'shards', 'frozen')
if kept[1] then
  return { tonumber(kept[1]), tonumber(kept[2]), tonumber(kept[3]) or -1 }
elseif shards == 0 then
  return { format, 0, frozen }
end
call('HSET', KEYS[1], 'format', format, 'shards', shards)
if frozen >= 0 then
  frozen = frozen > 0 and frozen or now
  call('HSET', KEYS[1], 'frozen', whole(frozen))
end
return { format, shards, frozen }
