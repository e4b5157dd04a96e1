-- The shortcut of `finish.lua` for the completion of a single job under a live lease, without an idempotency key and
-- without a blob. Defining the functions of `finish.lua` takes longer than all of this. Any other request is left
-- to `finish.lua`, which uses the names unpacked here.

local lane_names, ids, tokens, outcomes, result_sizes, in_blob, details, plain = unpack(request)
if #ids == 1 and outcomes[1] == OUTCOME_COMPLETE and not in_blob[1] then
  local lane, id, result = lane_names[1], ids[1], ARGV[3]
  local raw = call('HGET', shard .. 'j:' .. lane, id)
  local state, attempts, spent, _, events, reason, flags, worker_size, priority, extra_size, visible_at, token,
    deadline, claimed_at, _, _, ttl, _, type_size, key_size, static_size, request_size, payload_size, seq
  if raw then
    state, attempts, spent, _, events, reason, flags, worker_size, priority, extra_size, visible_at, token, deadline,
      claimed_at, _, _, ttl, _, type_size, key_size, static_size, request_size, payload_size, seq =
      struct.unpack(RECORD_FORMAT, raw)
  end
  if state == STATE_LEASED and token == tokens[1] and spent == 0 and now < deadline and key_size == 0 then
    local stop = RECORD_SIZE + type_size + static_size + request_size + payload_size
    local record = struct.pack(
      CHANGING_FORMAT, STATE_COMPLETED, attempts, OUTCOME_COMPLETE, STATE_COMPLETED, events + 1, reason, flags,
      worker_size, priority, extra_size, visible_at, token, 0, claimed_at, now, now + ttl, ttl
    ) .. sub(raw, AT_MAX_ATTEMPTS, stop + worker_size + extra_size) .. result
    local member = struct.pack('>I7', seq) .. id
    call('HSET', shard .. 'j:' .. lane, id, record)
    call('ZREM', shard .. 'l:' .. lane, member)
    call('ZADD', shard .. 'C:' .. lane, now, member)
    call('ZADD', shard .. 'e:' .. lane, now + ttl, member)
    call('ZADD', shard .. 'E', 'LT', now + ttl, lane)
    local type, worker = sub(raw, RECORD_SIZE + 1, RECORD_SIZE + type_size), sub(raw, stop + 1, stop + worker_size)
    local dictionary = { lane, type, worker }
    local total, number = logged_total + 1, string.format('%.0f', max(last + 1, micros))
    local chunk = cmsgpack.pack({ dictionary, { EVENT_COMPLETED, 1, id, 2, attempts, token, 3, events + 1 } })
    local tenant_size, tenant_at = string.match(lane, '^(%d+):()')
    local sums = sub(lane, tenant_at, tenant_at + tenant_size - 1) .. ' 1 0 0 ' .. #result
    call('XADD', shard .. 'e', number .. '-0', 'k', 1, 'n', total, 'a', now, 'e', chunk, 's', sums)
    call('HSET', KEYS[1], 'last', number, 'log', number, 'logged', total)
    local prefix = string.match(shard, '^(.-):{')
    redis.pcall('PUBLISH', prefix .. ':events', '')
    -- With the record, if it is short and kept: then waiters need no read.
    local in_full = ttl > 0 and #record < MAX_RECORDS_BYTES
      and RECORDS_MARK .. struct.pack('<HHI4', #lane, #id, #record) .. lane .. id .. record
    redis.pcall('PUBLISH', prefix .. ':done', in_full or cmsgpack.pack({ lane, id }))
    return { STATE_COMPLETED }
  end
end
