-- Part of every script: the writes of a call, its events and its notifications.
--
-- Writes are collected in batches, each for one command on one key, and made by `commit`: a script that fails before
-- that, for lack of memory for example, has changed nothing. Claims write turns, and leases of lanes with one job, at once.
-- Tables are few and short, because making them takes most of the time.

local zsets, hashes, bounds, blobs, hints, completed
local log, log_size, logged, words, dictionary
local usage_changes -- By lane: how much more the tenant keeps after this call. [TENANT-5]

local function clear_writes()
  zsets, hashes, bounds, blobs, hints = {}, {}, {}, {}, { ready = {}, done = {}, canceled = {} }
  completed = {}
  log, log_size, logged, words, dictionary = {}, 0, 0, {}, {}
  usage_changes = {}
end

clear_writes()

-- The `n` arguments collected so far for the last command on a key, if that is `command`; else a new list.
local function batch_of(changes, key, command)
  local batches = changes[key]
  if not batches then
    batches = {}
    changes[key] = batches
  end
  local batch = batches[#batches]
  if not batch or batch.command ~= command then
    batch = { command = command, n = 0 }
    batches[#batches + 1] = batch
  end
  return batch
end

-- Put a member into a sorted set. With the score `false`, remove it.
local function zset_put(key, member, score)
  if score then
    local batch = batch_of(zsets, key, 'ZADD')
    local n = batch.n
    batch[n + 1], batch[n + 2], batch.n = score, member, n + 2
  else
    local batch = batch_of(zsets, key, 'ZREM')
    local n = batch.n + 1
    batch[n], batch.n = member, n
  end
end

-- Set a field of a hash. With the value `false`, remove it.
local function hash_put(key, field, value)
  local batch = batch_of(hashes, key, value and 'HSET' or 'HDEL')
  local n = batch.n + 1
  batch[n] = field
  if value then
    n = n + 1
    batch[n] = value
  end
  batch.n = n
end

-- Note that a lease (index `L`) or a retention (index `E`) of a lane ends at a time. The index has the earliest one of
-- each lane. It may be too early, never too late: the reader that finds it too early corrects it.
local function add_bound(index, lane, at)
  local lane_bounds = bounds[index]
  if not lane_bounds then
    lane_bounds = {}
    bounds[index] = lane_bounds
  end
  local known = lane_bounds[lane.name]
  if not known or at < known then
    lane_bounds[lane.name] = at
  end
end

local MAX_ARGUMENTS = 2000

-- Run a command in pieces of MAX_ARGUMENTS; the sum of its replies.
local function call_in_pieces(command, key, arguments)
  local sum = 0
  for first = 1, #arguments, MAX_ARGUMENTS do
    sum = sum + call(command, key, unpack(arguments, first, min(first + MAX_ARGUMENTS - 1, #arguments)))
  end
  return sum
end

-- The waiting jobs of a tenant are counted only if it has a quota for all its queues. `W` has the count. A new count is
-- made in steps: while it is incomplete, `U` has the name of the last queue counted. [TENANT-5]
local waiting_changes = any_quotas and {} -- By lane; false if there are no such quotas.

local function count_waiting(lane, change)
  if waiting_changes then
    waiting_changes[lane] = (waiting_changes[lane] or 0) + change
  end
end

local function commit_waiting_counts()
  local sums = {}
  for lane, change in pairs(waiting_changes or {}) do
    local tenant, queue = names_of(lane)
    if change ~= 0 and call('HEXISTS', shard .. 'W', tenant) == 1 then
      local counted_to = call('HGET', shard .. 'U', tenant)
      if not counted_to or not text_before(counted_to, queue) then
        sums[tenant] = (sums[tenant] or 0) + change
      end
    end
  end
  for tenant, sum in pairs(sums) do
    call('HINCRBY', shard .. 'W', tenant, sum)
  end
  waiting_changes = waiting_changes and {}
end

local function write_batches(changes)
  for key, batches in pairs(changes) do
    local waiting = waiting_changes and sub(key, #shard + 1, #shard + 2) == 'w:' and lane_of(sub(key, #shard + 3))
    for _, batch in ipairs(batches) do
      local changed = call_in_pieces(batch.command, key, batch)
      if waiting then
        count_waiting(waiting, batch.command == 'ZADD' and changed or -changed)
      end
    end
  end
end

-- The position in the dictionary of a text that many events share.
local function word_number(text)
  local number = words[text]
  if not number then
    number = #dictionary + 1
    dictionary[number], words[text] = text, number
  end
  return number
end

local function new_usage(lane)
  local usage = { 0, 0, 0, 0 }
  usage_changes[lane] = usage
  return usage
end

-- Add to what a lane's tenant keeps: jobs, keys that outlive their job, and bytes. [TENANT-5]
local function add_usage(lane, jobs, keys, bytes)
  local usage = usage_changes[lane.name] or new_usage(lane.name)
  usage[USAGE_JOBS], usage[USAGE_KEYS] = usage[USAGE_JOBS] + jobs, usage[USAGE_KEYS] + keys
  usage[USAGE_BYTES] = usage[USAGE_BYTES] + bytes
end

-- Log an event. `number` counts the events of the job; `a` to `d` are the values of its kind (`EVENT_DATA`).
local function log_event(kind, lane, id, type, attempts, token, worker, number, a, b, c, d)
  local n = log_size
  log[n + 1], log[n + 2] = kind, words[lane] or word_number(lane)
  log[n + 3], log[n + 4] = id, words[type] or word_number(type)
  log[n + 5], log[n + 6], log[n + 7], log[n + 8] = attempts, token, words[worker] or word_number(worker), number
  n = n + 8
  if a then
    log[n + 1], log[n + 2], log[n + 3], log[n + 4] = a, b, c, d
    n = n + (d and 4 or c and 3 or b and 2 or 1)
  end
  log_size, logged = n, logged + 1
  local usage = usage_changes[lane] or new_usage(lane)
  usage[USAGE_EVENTS] = usage[USAGE_EVENTS] + 1
end

local function publish(hint, data)
  -- By pcall: a failure here must not fail the call, whose writes are made.
  redis.pcall('PUBLISH', string.match(shard, '^(.-):{') .. ':' .. hint, data)
end

-- The notification of a few completed jobs carries their records, so that waiters need no read. Many jobs, and jobs
-- that are not kept, are notified by name.
local MAX_FULL_RECORDS = 4

local function full_records_message(texts)
  local message = RECORDS_MARK
  for n = 1, #texts, 2 do
    local record = completed[texts[n] .. texts[n + 1]]
    if not record or #texts > 2 * MAX_FULL_RECORDS or #message + #record > MAX_RECORDS_BYTES then
      return nil
    end
    message = message .. struct.pack('<HHI4', #texts[n], #texts[n + 1], #record) .. texts[n] .. texts[n + 1] .. record
  end
  return message
end

-- Add to the counts of what a tenant keeps. Only calls without events do this themselves. A log entry states what its
-- call adds, and `count_usage.lua` adds it up later: a command for each call would cost more.
local function store_usage(tenant, usage)
  for n, kind in ipairs({ 'n:e', 'n:j', 'n:k', 'n:b' }) do
    if usage[n] ~= 0 and call('HINCRBY', shard .. kind, tenant, usage[n]) == 0 then
      call('HDEL', shard .. kind, tenant)
    end
  end
end

-- Make the collected writes. Each transition has one event, in the same step as its change. [EVENT-1]
local function commit()
  write_batches(zsets)
  write_batches(hashes)
  commit_waiting_counts()
  for index, lane_bounds in pairs(bounds) do
    local arguments = {}
    for name, at in pairs(lane_bounds) do
      local n = #arguments
      arguments[n + 1], arguments[n + 2] = at, name
    end
    for first = 1, #arguments, MAX_ARGUMENTS do
      call('ZADD', shard .. index, 'LT', unpack(arguments, first, min(first + MAX_ARGUMENTS - 1, #arguments)))
    end
  end
  call_in_pieces('RPUSH', shard .. 'b', blobs)
  if logged > 0 then
    next_numbers(logged)
    logged_total = logged_total + logged
    local chunk, sums, n = cmsgpack.pack({ dictionary, log }), {}, 0
    for name, usage in pairs(usage_changes) do
      n = n + 1
      sums[n] = names_of(lane_of(name)) .. ' ' .. table.concat(usage, ' ')
    end
    call(
      'XADD', shard .. 'e', int_text(last) .. '-0', 'k', logged, 'n', logged_total, 'a', now, 'e', chunk,
      's', table.concat(sums, ' ')
    )
    call('HSET', KEYS[1], 'last', int_text(last), 'log', int_text(last), 'logged', logged_total)
    publish('events', '')
  else
    for name, usage in pairs(usage_changes) do
      store_usage(names_of(lane_of(name)), usage)
    end
  end
  for hint, texts in pairs(hints) do
    if #texts > 0 then
      publish(hint, hint == 'done' and full_records_message(texts) or cmsgpack.pack(texts))
    end
  end
  clear_writes()
end

-- Note that a lane has a new waiting job, due or not. `commit_call` publishes it once for each lane.
local arrivals = {}

local function note_arrival(lane, visible_at)
  if not lane.arrived then
    arrivals[#arrivals + 1] = lane
    lane.arrived = visible_at
  elseif visible_at < lane.arrived then
    lane.arrived = visible_at
  end
end

local function commit_call()
  for _, lane in ipairs(arrivals) do
    local tenant, queue = names_of(lane)
    -- `N:` has the tenants that may have visible work, by the earliest time. A claim lets them into the turns.
    -- [TENANT-4]
    call('ZADD', shard .. 'N:' .. queue, 'LT', lane.arrived, tenant)
    lane.arrived = false
    hints.ready[#hints.ready + 1] = lane.name
  end
  arrivals = {}
  commit()
end
