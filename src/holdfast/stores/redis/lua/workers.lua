-- Keeps the list of live workers.   uses: lanes
--
-- request: { 'beat', worker id, description, ttl_ms }, with 0 to sign off; or { 'list', worker id to start after, most
--   workers to read } -> { worker id to continue after or '' at the end, started_at, seen_at, description, ... }
-- Safe to repeat. Reads and writes the hash `h` and its indexes `H` (by the end of the last beat) and `g` (by id).

local verb, name, description, ttl = unpack(request)
local key, by_end, by_name = shard .. 'h', shard .. 'H', shard .. 'g'
for _, dead in ipairs(call('ZRANGEBYSCORE', by_end, '-inf', now, 'LIMIT', 0, 100)) do
  call('HDEL', key, dead)
  call('ZREM', by_end, dead)
  call('ZREM', by_name, dead)
end
if verb == 'beat' then
  if ttl <= 0 then
    call('ZREM', by_end, name)
    call('ZREM', by_name, name)
    return call('HDEL', key, name)
  end
  local known = call('HGET', key, name)
  local started_at = known and cmsgpack.unpack(known)[1] or now
  call('HSET', key, name, cmsgpack.pack({ started_at, now, description }))
  call('ZADD', by_name, 0, name)
  return call('ZADD', by_end, now + ttl, name)
end
local names = names_after(by_name, name, description)
local answer = { #names == description and names[#names] or '' }
for _, found in ipairs(names) do
  if tonumber(call('ZSCORE', by_end, found) or 0) > now then
    for _, value in ipairs(cmsgpack.unpack(call('HGET', key, found))) do
      answer[#answer + 1] = value
    end
  end
end
return answer
