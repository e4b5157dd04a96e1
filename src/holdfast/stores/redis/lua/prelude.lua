-- What follows the head in every script: lanes, and the writes of a call.
--
-- Writes are gathered and made by `commit`, each kind in one command: a script that is refused, for want of memory say,
-- has changed nothing. What a claim does with the turns, and with lanes it takes one job of, it writes at once.

-- Fresh numbers for tokens, jobs and events. They follow the clock, so that a failover which loses writes, and with
-- them the counter, cannot hand one out twice. [LEASE-5]
local function tick(count)
  local first = max(last + 1, micros)
  last = first + count - 1
  return first
end

-- A number as the server is to read it: whole, and without an exponent.
local function whole(number)
  return string.format('%.0f', number)
end

-- Texts in the order of their bytes, as sorted sets have them. Lua goes by the locale that the server was started in.
local function bytes_before(a, b)
  for n = 1, min(#a, #b) do
    local x, y = string.byte(a, n), string.byte(b, n)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

local locale_is_plain = 'B' < 'a' and 'a' < 'b' and '-' < 'B'

local function text_before(a, b)
  if locale_is_plain then
    return a < b
  end
  return bytes_before(a, b)
end

-- Lanes: one tenant's jobs in one queue name, with the keys they are kept under. ---------------------------------

local LANE_KEYS = {
  j = 'j:', -- hash: id -> record
  p = 'p:', -- hash: id -> a payload too large to stand in the record
  k = 'k:', -- hash: type and idempotency key -> binding
  w = 'w:', -- waiting jobs in claim order
  r = 'r:', -- of these, the retrying ones by visible time
  l = 'l:', -- leased jobs by deadline
  e = 'e:', -- ended jobs by the end of their retention
  [5] = 'C:', [6] = 'F:', [7] = 'X:', -- completed, failed and canceled ones by time
}
local lanes = {}
local of_lane = {
  __index = function(lane, name)
    local value = LANE_KEYS[name]
    if value then
      value = shard .. value .. lane.name
    elseif name == 'jobs' or name == 'keys' then
      value = {} -- What is known of its jobs and idempotency keys.
    end
    lane[name] = value
    return value
  end,
}

local function lane_of(name)
  local lane = lanes[name]
  if not lane then
    lane = setmetatable({ name = name, arrived = false, tenant = false, queue = false }, of_lane)
    lanes[name] = lane
  end
  return lane
end

-- One name off the front of a text, and the rest.
local function split(text)
  local colon = string.find(text, ':', 1, true)
  local stop = colon + tonumber(sub(text, 1, colon - 1))
  return sub(text, colon + 1, stop), sub(text, stop + 1)
end

local function names_of(lane)
  if not lane.tenant then
    local rest
    lane.tenant, rest = split(lane.name)
    lane.queue = split(rest)
  end
  return lane.tenant, lane.queue
end

local ends_of_names = {}

local function lane_named(tenant, queue)
  local ending = ends_of_names[queue]
  if not ending then
    ending = #queue .. ':' .. queue
    ends_of_names[queue] = ending
  end
  local lane = lane_of(#tenant .. ':' .. tenant .. ending)
  lane.tenant, lane.queue = tenant, queue
  return lane
end

-- Text that begins with a lane: the lane, and the rest.
local function split_lane(text)
  local _, rest = split(text)
  local _, id = split(rest)
  return lane_of(sub(text, 1, #text - #id)), id
end

-- Writes. -------------------------------------------------------------------------------------------------------
--
-- Gathered for each key in runs of one command, so that order holds; few tables and short ones, as they are what costs.

local zsets, hashes, bounds, blobs, hints, completed
local log, log_size, logged, words, dictionary
local tallies -- By lane: events, jobs, lasting keys and bytes that this call adds. [TENANT-5]

local function clear()
  zsets, hashes, bounds, blobs, hints = {}, {}, {}, {}, { ready = {}, done = {}, canceled = {} }
  completed = {}
  log, log_size, logged, words, dictionary = {}, 0, 0, {}, {}
  tallies = {}
end

clear()

-- The arguments of the run of `command` that is under way for a key, `n` of them.
local function run_of(changes, key, command)
  local runs = changes[key]
  if not runs then
    runs = {}
    changes[key] = runs
  end
  local run = runs[#runs]
  if not run or run.command ~= command then
    run = { command = command, n = 0 }
    runs[#runs + 1] = run
  end
  return run
end

-- Put a member into a sorted set, or take it out with `false`.
local function rank(key, member, score)
  if score then
    local run = run_of(zsets, key, 'ZADD')
    local n = run.n
    run[n + 1], run[n + 2], run.n = score, member, n + 2
  else
    local run = run_of(zsets, key, 'ZREM')
    local n = run.n + 1
    run[n], run.n = member, n
  end
end

-- The same for a field of a hash.
local function set(key, field, value)
  local run = run_of(hashes, key, value and 'HSET' or 'HDEL')
  local n = run.n + 1
  run[n] = field
  if value then
    n = n + 1
    run[n] = value
  end
  run.n = n
end

-- Lanes by the earliest moment at which something of theirs may be over, `L` a lease and `E` a retention. A bound may be
-- too early, never too late: who finds it so sets it right.
local function bound(index, lane, at)
  local set_bounds = bounds[index]
  if not set_bounds then
    set_bounds = {}
    bounds[index] = set_bounds
  end
  local known = set_bounds[lane.name]
  if not known or at < known then
    set_bounds[lane.name] = at
  end
end

local ARGUMENTS = 2000

-- Sends a command in pieces; the sum of the answers.
local function send(command, key, arguments)
  local sum = 0
  for first = 1, #arguments, ARGUMENTS do
    sum = sum + call(command, key, unpack(arguments, first, min(first + ARGUMENTS - 1, #arguments)))
  end
  return sum
end

-- How many jobs a tenant has waiting is kept only for those that have a quota for all their queues: in `W`, the sum of those
-- queues that come before the name in `U`, or of all if there is none. A count that begins goes on in steps. [TENANT-5]
local came_to_wait = counters[10] and {} -- By lane; false where there is no such quota.

local function count_waiting(lane, change)
  if came_to_wait then
    came_to_wait[lane] = (came_to_wait[lane] or 0) + change
  end
end

local function commit_counts()
  local sums = {}
  for lane, change in pairs(came_to_wait or {}) do
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
  came_to_wait = came_to_wait and {}
end

local function write(changes)
  for key, runs in pairs(changes) do
    local waiting = came_to_wait and sub(key, #shard + 1, #shard + 2) == 'w:' and lane_of(sub(key, #shard + 3))
    for _, run in ipairs(runs) do
      local changed = send(run.command, key, run)
      if waiting then
        count_waiting(waiting, run.command == 'ZADD' and changed or -changed)
      end
    end
  end
end

-- A text that many events share, by its number in the chunk.
local function word(text)
  local number = words[text]
  if not number then
    number = #dictionary + 1
    dictionary[number], words[text] = text, number
  end
  return number
end

local function tally_of(lane)
  local tally = { 0, 0, 0, 0 }
  tallies[lane] = tally
  return tally
end

-- Count jobs, keys that outlive their job, and bytes of a lane, or take them off. [TENANT-5]
local function count_kept(lane, jobs, keys, bytes)
  local tally = tallies[lane.name] or tally_of(lane.name)
  tally[2], tally[3], tally[4] = tally[2] + jobs, tally[3] + keys, tally[4] + bytes
end

-- Log an event, with its number within its job. What belongs to its kind alone comes in `a` to `d`.
local function note(kind, lane, id, type, attempts, token, worker, number, a, b, c, d)
  local n = log_size
  log[n + 1], log[n + 2], log[n + 3], log[n + 4] = kind, words[lane] or word(lane), id, words[type] or word(type)
  log[n + 5], log[n + 6], log[n + 7], log[n + 8] = attempts, token, words[worker] or word(worker), number
  n = n + 8
  if a then
    log[n + 1], log[n + 2], log[n + 3], log[n + 4] = a, b, c, d
    n = n + (d and 4 or c and 3 or b and 2 or 1)
  end
  log_size, logged = n, logged + 1
  local tally = tallies[lane] or tally_of(lane)
  tally[1] = tally[1] + 1
end

local function publish(hint, data)
  redis.pcall('PUBLISH', string.match(shard, '^(.-):{') .. ':' .. hint, data) -- What is written stays, heard or not.
end

-- A few completions are told with their records, which saves whoever waits for them the look. Many are told by name, as
-- is what is forgotten at once.
local IN_FULL, IN_FULL_BYTES = 4, 4096

local function ended_in_full(texts)
  local message = '\193' -- A byte that no msgpack begins with.
  for n = 1, #texts, 2 do
    local record = completed[texts[n] .. texts[n + 1]]
    if not record or #texts > 2 * IN_FULL or #message + #record > IN_FULL_BYTES then
      return nil
    end
    message = message .. struct.pack('<HHI4', #texts[n], #texts[n + 1], #record) .. texts[n] .. texts[n + 1] .. record
  end
  return message
end

-- What each tenant keeps: events, jobs, lasting keys, bytes. Entries of the log say what they add, and `count.lua` adds
-- it up: a command for each call would cost more. What makes no event is added at once.
local function add_kept(tenant, tally)
  for n, kind in ipairs({ 'n:e', 'n:j', 'n:k', 'n:b' }) do
    if tally[n] ~= 0 and call('HINCRBY', shard .. kind, tenant, tally[n]) == 0 then
      call('HDEL', shard .. kind, tenant)
    end
  end
end

-- Make all the writes gathered so far. One event for each transition, in the same step as its change. [EVENT-1]
local function commit()
  write(zsets)
  write(hashes)
  commit_counts()
  for index, set_bounds in pairs(bounds) do
    local arguments = {}
    for name, at in pairs(set_bounds) do
      local n = #arguments
      arguments[n + 1], arguments[n + 2] = at, name
    end
    for first = 1, #arguments, ARGUMENTS do
      call('ZADD', shard .. index, 'LT', unpack(arguments, first, min(first + ARGUMENTS - 1, #arguments)))
    end
  end
  send('RPUSH', shard .. 'b', blobs)
  if logged > 0 then
    tick(logged)
    counters[5] = (tonumber(counters[5]) or 0) + logged
    local chunk, sums, n = cmsgpack.pack({ dictionary, log }), {}, 0
    for name, tally in pairs(tallies) do
      n = n + 1
      sums[n] = names_of(lane_of(name)) .. ' ' .. table.concat(tally, ' ')
    end
    call(
      'XADD', shard .. 'e', whole(last) .. '-0', 'k', logged, 'n', counters[5], 'a', now, 'e', chunk,
      's', table.concat(sums, ' ')
    )
    call('HSET', KEYS[1], 'last', whole(last), 'log', whole(last), 'logged', counters[5])
    publish('events', '')
  else
    for name, tally in pairs(tallies) do
      add_kept(names_of(lane_of(name)), tally)
    end
  end
  for hint, texts in pairs(hints) do
    if #texts > 0 then
      publish(hint, hint == 'done' and ended_in_full(texts) or cmsgpack.pack(texts))
    end
  end
  clear()
end

-- Let claims know that a lane has got a waiting job, due or not. `commit_arrivals` tells them once per lane.
local arrivals = {}

local function arrive(lane, visible_at)
  if not lane.arrived then
    arrivals[#arrivals + 1] = lane
    lane.arrived = visible_at
  elseif visible_at < lane.arrived then
    lane.arrived = visible_at
  end
end

local function commit_arrivals()
  for _, lane in ipairs(arrivals) do
    local tenant, queue = names_of(lane)
    -- Lanes that may have something to claim, by the earliest moment; a claim lets them into the turns. [TENANT-4]
    call('ZADD', shard .. 'N:' .. queue, 'LT', lane.arrived, tenant)
    lane.arrived = false
    hints.ready[#hints.ready + 1] = lane.name
  end
  arrivals = {}
  commit()
end
