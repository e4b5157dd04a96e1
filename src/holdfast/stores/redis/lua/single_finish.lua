-- One completed job that is nothing special, straight on: no key, no blob, its lease held. It does what `finish.lua` does,
-- without the functions that take longer to make than this takes to run; all else is left to that.
if #request[2] == 1 and request[4][1] == 1 and not request[6][1] then
  local lane, id, result = request[1][1], request[2][1], ARGV[3]
  local raw = call('HGET', shard .. 'j:' .. lane, id)
  local state, attempts, spent, _, events, reason, flags, worker_size, priority, extra_size, visible_at, token, deadline,
    claimed_at, _, _, ttl, _, type_size, key_size, static_size, request_size, payload_size, seq
  if raw then
    state, attempts, spent, _, events, reason, flags, worker_size, priority, extra_size, visible_at, token, deadline,
      claimed_at, _, _, ttl, _, type_size, key_size, static_size, request_size, payload_size, seq =
      struct.unpack('<BBBBI4BBBBI4I8I8I8I8I8I8I8BBHI4HI4I8I8', raw)
  end
  if state == 4 and token == request[3][1] and spent == 0 and now < deadline and key_size == 0 then
    local stop = 102 + type_size + static_size + request_size + payload_size
    local record = struct.pack(
      '<BBBBI4BBBBI4I8I8I8I8I8I8I8', 5, attempts, 1, 5, events + 1, reason, flags, worker_size, priority, extra_size, visible_at,
      token, 0, claimed_at, now, now + ttl, ttl
    ) .. sub(raw, 73, stop + worker_size + extra_size) .. result
    local member = struct.pack('>I7', seq) .. id
    call('HSET', shard .. 'j:' .. lane, id, record)
    call('ZREM', shard .. 'l:' .. lane, member)
    call('ZADD', shard .. 'C:' .. lane, now, member)
    call('ZADD', shard .. 'e:' .. lane, now + ttl, member)
    call('ZADD', shard .. 'E', 'LT', now + ttl, lane)
    local dictionary = { lane, sub(raw, 103, 102 + type_size), sub(raw, stop + 1, stop + worker_size) }
    local total, number = (tonumber(counters[5]) or 0) + 1, string.format('%.0f', max(last + 1, micros))
    local chunk = cmsgpack.pack({ dictionary, { 7, 1, id, 2, attempts, token, 3, events + 1 } })
    local tenant_size, tenant_at = string.match(lane, '^(%d+):()')
    local sums = sub(lane, tenant_at, tenant_at + tenant_size - 1) .. ' 1 0 0 ' .. #result
    call('XADD', shard .. 'e', number .. '-0', 'k', 1, 'n', total, 'a', now, 'e', chunk, 's', sums)
    call('HSET', KEYS[1], 'last', number, 'log', number, 'logged', total)
    local prefix = string.match(shard, '^(.-):{')
    redis.pcall('PUBLISH', prefix .. ':events', '')
    -- With the record, if it is not too long and will still be there: that saves whoever waits for it the look.
    local told = ttl > 0 and #record < 4096 and '\193' .. struct.pack('<HHI4', #lane, #id, #record) .. lane .. id .. record
    redis.pcall('PUBLISH', prefix .. ':done', told or cmsgpack.pack({ lane, id }))
    return { 5 }
  end
end
