-- Waiters: workers that wait for a job. An enqueue can hand a job off to one directly (`single_enqueue.lua`). [CLAIM-3]
--
-- The hash O:QUEUE has the waiters for all tenants, o:LANE those for one tenant: inbox channel -> registration, {
-- until, room left, room, number, lease_ms, worker, tenant or false, queues }. The counters `waiters` and `own_waiters`
-- say until when there may be any. There are none on a cluster: a node cannot tell whether a channel has a subscriber.
-- The sorted set i:CHANNEL lists the jobs handed off to a worker, lane and id by token, until the worker knows of them:
-- a message may be lost.

-- The waiter tables of a worker for these queues.
local function waiter_tables(tenant, queues)
  local tables = {}
  for n, queue in ipairs(queues) do
    tables[n] = shard .. (tenant and 'o:' .. lane_named(tenant, queue).name or 'O:' .. queue)
  end
  return tables
end

-- Write a registration to its tables. Without room left, or if it is `false`, remove it.
local function write_registration(channel, tables, registration)
  local raw = registration and registration[WAITER_ROOM_LEFT] > 0 and cmsgpack.pack(registration)
  for _, table_key in ipairs(tables) do
    if raw then
      call('HSET', table_key, channel, raw)
    else
      call('HDEL', table_key, channel)
    end
  end
end

-- End a worker's last registration before it claims. Returns how many jobs handed off to it are still in flight.
local function end_registration(channel, tables, number, room, received)
  local raw
  for _, table_key in ipairs(tables) do
    raw = raw or call('HGET', table_key, channel) -- `single_enqueue.lua` may have removed it from some of the tables.
  end
  if not raw then
    return max(0, room - received) -- The room is used up.
  end
  local registration = cmsgpack.unpack(raw)
  write_registration(channel, tables, false)
  local used = registration[WAITER_ROOM] - registration[WAITER_ROOM_LEFT]
  return registration[WAITER_NUMBER] == number and max(0, used - received) or 0
end

-- The jobs handed off to a worker, { lane and id, token, ... }. Those up to `known_token` are removed: it knows of
-- them.
local function handed_off_to(channel, known_token)
  local key = shard .. 'i:' .. channel
  if known_token > 0 then
    call('ZREMRANGEBYSCORE', key, '-inf', int_text(known_token))
  end
  return call('ZRANGE', key, 0, -1, 'WITHSCORES')
end

local MIN_TABLE_MS = 600000 -- A table that is no longer used expires after ten minutes or more.

-- Register a worker. Checks two other registrations as well, so that those of dead workers do not accumulate.
local function register_waiter(channel, tables, registration, lasts_ms)
  for _, table_key in ipairs(tables) do
    local some = call('HRANDFIELD', table_key, 2, 'WITHVALUES')
    for n = 1, #some, 2 do
      if cmsgpack.unpack(some[n + 1])[WAITER_UNTIL] <= now then
        call('HDEL', table_key, some[n])
      end
    end
  end
  write_registration(channel, tables, registration)
  for _, table_key in ipairs(tables) do
    call('PEXPIRE', table_key, max(MIN_TABLE_MS, 2 * lasts_ms))
  end
  local counter = registration[WAITER_TENANT] and 'own_waiters' or 'waiters'
  local known = tonumber(registration[WAITER_TENANT] and own_waiters_until or waiters_until) or 0
  call('HSET', KEYS[1], counter, int_text(max(known, registration[WAITER_UNTIL])))
end
