-- One new job that is nothing special, straight on: no key, no large payload, no settings of its tenant, under no lease,
-- no step of a flow. It does what `enqueue.lua` does, without the functions that take longer to make than this takes to run; all
-- else is left to that.
--
-- If a worker waits and no other job would be next, it is leased to it and sent at once: see `offers.lua`. It takes no
-- turn: turns are for tenants that wait, and here nobody does. [CLAIM-1, CLAIM-2, TENANT-4]
if #request[2] == 1 and request[16] and request[8][1] == 0 and not request[17] and not request[18] then
  local lane, id, body = request[1][1], request[2][1], ARGV[3]
  local tenant_size, tenant_at = string.match(lane, '^(%d+):()')
  local tenant = sub(lane, tenant_at, tenant_at + tenant_size - 1)
  local has_settings = counters[7] and call('EXISTS', shard .. 's:' .. tenant) == 1
  if not has_settings and not call('HGET', shard .. 'j:' .. lane, id) then
    local priority, attempts, run_at = request[9][1], request[10][1], request[12][1]
    local queue = sub(lane, string.match(lane, '^%d+:()', tenant_at + tenant_size))
    local type = sub(body, 1, request[3][1])
    local visible_at = max(now, run_at < 0 and now + request[11][1] or run_at)
    local state, worker, token, deadline, claimed_at = visible_at > now and 1 or 2, '', 0, 0, 0

    local taker, offer
    if state == 2 and not (counters[6] and call('SISMEMBER', shard .. 'P', lane) == 1) then
      for kind = 9, 8, -1 do
        local place
        if (tonumber(counters[kind]) or 0) <= now then
          place = nil
        elseif kind == 9 then
          place = call('ZCARD', shard .. 'w:' .. lane) == 0 and shard .. 'o:' .. lane
        elseif call('ZCARD', shard .. 'T:' .. queue) == 0 then
          local head = call('ZRANGE', shard .. 'N:' .. queue, 0, 0, 'WITHSCORES')[2]
          place = (not head or tonumber(head) > now) and shard .. 'O:' .. queue
        end
        -- Some offers may be of workers that are gone.
        for _ = 1, place and not taker and 4 or 0 do
          local found = call('HRANDFIELD', place, 1, 'WITHVALUES')
          if not found[1] then
            break
          end
          offer = cmsgpack.unpack(found[2])
          if offer[1] > now and (redis.pcall('PUBSUB', 'NUMSUB', found[1])[2] or 0) > 0 then
            taker = found[1]
            break
          end
          call('HDEL', place, found[1])
        end
      end
    end

    local seq = max(last + 1, micros)
    local member, dictionary = struct.pack('>I7', seq) .. id, { lane, type, '' }
    local log, logged = { 0, 1, id, 2, 0, 0, 3, 1, priority, attempts, visible_at }, 1
    if taker then
      token, deadline, claimed_at, worker = seq + 1, now + offer[5], now, offer[6]
      dictionary[4], logged = worker, 2
      log[12], log[13], log[14], log[15], log[16], log[17] = 1, 1, id, 2, 1, token
      log[18], log[19], log[20], log[21] = 4, 2, now, deadline
    end
    last = seq + (taker and 1 or 0) + logged
    local raw = struct.pack(
      '<BBBBI4BBBBI4I8I8I8I8I8I8I8BBHI4HI4I8I8', taker and 4 or state, taker and 1 or 0, 0, 0, logged, 0,
      request[15][1] and 4 or 0, #worker, priority, 0, visible_at, token, deadline, claimed_at, 0, 0, request[13][1],
      attempts, request[3][1], 0, request[4][1], request[5][1], request[7][1], seq, now
    ) .. body .. worker

    call('HSET', shard .. 'j:' .. lane, id, raw)
    if call('ZADD', shard .. 'Q:' .. tenant, 0, queue) == 1 then
      call('ZADD', shard .. 'T', 0, tenant)
    end
    if taker then
      call('ZADD', shard .. 'l:' .. lane, deadline, member)
      call('ZADD', shard .. 'L', 'LT', deadline, lane)
      -- Named until the worker has learned of it, or all leases under this offer are over: the message may be lost.
      call('ZADD', shard .. 'i:' .. taker, token, lane .. id)
      if offer[2] == offer[3] then
        call('PEXPIRE', shard .. 'i:' .. taker, offer[1] - now + offer[5])
      end
      offer[2] = offer[2] - 1
      local left = offer[2] > 0 and cmsgpack.pack(offer)
      for _, other in ipairs(offer[8]) do
        local place = shard .. (offer[7] and 'o:' .. #tenant .. ':' .. tenant .. #other .. ':' .. other or 'O:' .. other)
        if left then
          call('HSET', place, taker, left)
        else
          call('HDEL', place, taker)
        end
      end
    else
      call('ZADD', shard .. 'w:' .. lane, (9 - priority) * 2 ^ 49 + visible_at, member)
      call('ZADD', shard .. 'N:' .. queue, 'LT', visible_at, tenant)
    end
    local total, number = (tonumber(counters[5]) or 0) + logged, string.format('%.0f', last)
    local chunk = cmsgpack.pack({ dictionary, log })
    local sums = tenant .. ' ' .. logged .. ' 1 0 ' .. 256 + request[7][1]
    call('XADD', shard .. 'e', number .. '-0', 'k', logged, 'n', total, 'a', now, 'e', chunk, 's', sums)
    call('HSET', KEYS[1], 'last', number, 'log', number, 'logged', total)
    local prefix = string.match(shard, '^(.-):{')
    redis.pcall('PUBLISH', prefix .. ':events', '')
    if taker then
      local sent = struct.pack('<I8I8HHI4', offer[4], now, #lane, #id, #raw) .. lane .. id .. raw
      redis.pcall('PUBLISH', taker, sent) -- A lost message is missed by the worker, which releases the job. [RETRY-2]
    else
      redis.pcall('PUBLISH', prefix .. ':ready', cmsgpack.pack({ lane }))
    end
    return { state }
  end
end
