-- Keeps the list of living workers.   uses: nothing
--
-- request: { 'beat', worker_id, description, ttl_ms } (0 signs it off); { 'list' } -> { now, started_at, seen_at,
--   description, ... }. Safe to repeat.

local verb, name, description, ttl = unpack(request)
local key, by_end = shard .. 'h', shard .. 'H'
for _, dead in ipairs(call('ZRANGEBYSCORE', by_end, '-inf', now, 'LIMIT', 0, 100)) do
  call('HDEL', key, dead)
  call('ZREM', by_end, dead)
end
if verb == 'beat' then
  if ttl <= 0 then
    call('ZREM', by_end, name)
    return call('HDEL', key, name)
  end
  local known = call('HGET', key, name)
  local started_at = known and cmsgpack.unpack(known)[1] or now
  call('HSET', key, name, cmsgpack.pack({ started_at, now, description }))
  return call('ZADD', by_end, now + ttl, name)
end
local answer = { now }
for _, alive in ipairs(call('ZRANGEBYSCORE', by_end, '(' .. whole(now), '+inf')) do
  for _, part in ipairs(cmsgpack.unpack(call('HGET', key, alive))) do
    answer[#answer + 1] = part
  end
end
return answer
