-- The shortcut of `enqueue.lua` for a single new job without an idempotency key, a large payload or a parent lease,
-- that is no step of a flow and whose tenant has no settings. Defining the functions of `enqueue.lua` takes longer than
-- all of this. Any other request is left to `enqueue.lua`, which uses the names unpacked here.
--
-- If a worker waits and no other job would be claimed before this one, the job is handed off: it is leased to that
-- worker and sent to its inbox in the same step (see `waiters.lua`). A hand-off takes no turn: turns are for tenants
-- whose jobs wait. [CLAIM-1, CLAIM-2, TENANT-4]

local MAX_STALE_WAITERS = 4 -- How many registrations of dead workers one enqueue removes.
local lane_names, ids, type_sizes, static_sizes, request_sizes, key_sizes, payload_sizes, large_sizes, priorities,
  max_attempts, delays, run_ats, ttls, replace_failed_flags, request_is_id, plain, parent_lease, steps = unpack(request)

if #ids == 1 and plain and large_sizes[1] == 0 and not parent_lease and not steps then
  local lane, id, body = lane_names[1], ids[1], ARGV[3]
  local tenant_size, tenant_at = string.match(lane, '^(%d+):()')
  local tenant = sub(lane, tenant_at, tenant_at + tenant_size - 1)
  local has_settings = any_settings and call('EXISTS', shard .. 's:' .. tenant) == 1
  if not has_settings and not call('HGET', shard .. 'j:' .. lane, id) then
    local priority, attempts, run_at = priorities[1], max_attempts[1], run_ats[1]
    local queue = sub(lane, string.match(lane, '^%d+:()', tenant_at + tenant_size))
    local type = sub(body, 1, type_sizes[1])
    local visible_at = max(now, run_at < 0 and now + delays[1] or run_at)
    local state, worker, token, deadline, claimed_at = visible_at > now and STATE_SCHEDULED or STATE_READY, '', 0, 0, 0

    -- A worker of this tenant may take the job if none of the tenant's jobs waits here. A worker for all tenants may
    -- take it if no tenant has visible work in this queue name.
    local inbox, registration
    local own_until, all_until = tonumber(own_waiters_until) or 0, tonumber(waiters_until) or 0
    if state == STATE_READY and max(own_until, all_until) > now
      and not (any_paused and call('SISMEMBER', shard .. 'P', lane) == 1) then
      local function find_waiter(table_key)
        for _ = 1, MAX_STALE_WAITERS do
          local found = call('HRANDFIELD', table_key, 1, 'WITHVALUES')
          if not found[1] then
            return
          end
          registration = cmsgpack.unpack(found[2])
          if registration[WAITER_UNTIL] > now and (redis.pcall('PUBSUB', 'NUMSUB', found[1])[2] or 0) > 0 then
            inbox = found[1]
            return
          end
          call('HDEL', table_key, found[1])
        end
      end

      if own_until > now and call('ZCARD', shard .. 'w:' .. lane) == 0 then
        find_waiter(shard .. 'o:' .. lane)
      end
      if not inbox and all_until > now and call('ZCARD', shard .. 'T:' .. queue) == 0 then
        local head = call('ZRANGE', shard .. 'N:' .. queue, 0, 0, 'WITHSCORES')[2]
        if not head or tonumber(head) > now then
          find_waiter(shard .. 'O:' .. queue)
        end
      end
    end

    local seq = max(last + 1, micros)
    local member, dictionary = struct.pack('>I7', seq) .. id, { lane, type, '' }
    local log, logged = { EVENT_ENQUEUED, 1, id, 2, 0, 0, 3, 1, priority, attempts, visible_at }, 1
    if inbox then
      token, worker = seq + 1, registration[WAITER_WORKER]
      deadline, claimed_at = now + registration[WAITER_LEASE_MS], now
      dictionary[4], logged = worker, 2
      log[12], log[13], log[14], log[15], log[16], log[17] = EVENT_CLAIMED, 1, id, 2, 1, token
      log[18], log[19], log[20], log[21] = 4, 2, now, deadline
    end
    last = seq + (inbox and 1 or 0) + logged
    local raw = struct.pack(
      RECORD_FORMAT, inbox and STATE_LEASED or state, inbox and 1 or 0, 0, 0, logged, 0,
      request_is_id[1] and FLAG_REQUEST_IS_ID or 0, #worker, priority, 0, visible_at, token, deadline, claimed_at, 0, 0,
      ttls[1], attempts, type_sizes[1], 0, static_sizes[1], request_sizes[1], payload_sizes[1], seq, now
    ) .. body .. worker

    call('HSET', shard .. 'j:' .. lane, id, raw)
    if call('ZADD', shard .. 'Q:' .. tenant, 0, queue) == 1 then
      call('ZADD', shard .. 'T', 0, tenant)
    end
    if inbox then
      call('ZADD', shard .. 'l:' .. lane, deadline, member)
      call('ZADD', shard .. 'L', 'LT', deadline, lane)
      -- Listed until the worker knows of it, or all leases under this registration are over: the message may be lost.
      call('ZADD', shard .. 'i:' .. inbox, token, lane .. id)
      if registration[WAITER_ROOM_LEFT] == registration[WAITER_ROOM] then
        call('PEXPIRE', shard .. 'i:' .. inbox, registration[WAITER_UNTIL] - now + registration[WAITER_LEASE_MS])
      end
      registration[WAITER_ROOM_LEFT] = registration[WAITER_ROOM_LEFT] - 1
      local left = registration[WAITER_ROOM_LEFT] > 0 and cmsgpack.pack(registration)
      for _, other in ipairs(registration[WAITER_QUEUES]) do
        local own_table = 'o:' .. #tenant .. ':' .. tenant .. #other .. ':' .. other
        local table_key = shard .. (registration[WAITER_TENANT] and own_table or 'O:' .. other)
        if left then
          call('HSET', table_key, inbox, left)
        else
          call('HDEL', table_key, inbox)
        end
      end
    else
      call('ZADD', shard .. 'w:' .. lane, (MAX_PRIORITY - priority) * PRIORITY_BAND + visible_at, member)
      call('ZADD', shard .. 'N:' .. queue, 'LT', visible_at, tenant)
    end
    local total, number = logged_total + logged, string.format('%.0f', last)
    local chunk = cmsgpack.pack({ dictionary, log })
    local sums = tenant .. ' ' .. logged .. ' 1 0 ' .. RECORD_BYTES + payload_sizes[1]
    call('XADD', shard .. 'e', number .. '-0', 'k', logged, 'n', total, 'a', now, 'e', chunk, 's', sums)
    call('HSET', KEYS[1], 'last', number, 'log', number, 'logged', total)
    local prefix = string.match(shard, '^(.-):{')
    redis.pcall('PUBLISH', prefix .. ':events', '')
    if inbox then
      local sent = struct.pack('<I8I8HHI4', registration[WAITER_NUMBER], now, #lane, #id, #raw) .. lane .. id .. raw
      redis.pcall('PUBLISH', inbox, sent) -- If it is lost, the worker releases the job. [RETRY-2]
    else
      redis.pcall('PUBLISH', prefix .. ':ready', cmsgpack.pack({ lane }))
    end
    return { state }
  end
end
