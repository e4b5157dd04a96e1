-- Part of every script: numbers, texts, and lanes with their keys.
--
-- A lane is one tenant's jobs in one queue name ("tenant queue" in the docs).

-- `count` fresh numbers for tokens, jobs and events; the first is returned. They follow the clock: after a failover
-- that lost the counter, no number is given out twice. [LEASE-5]
local function next_numbers(count)
  local first = max(last + 1, micros)
  last = first + count - 1
  return first
end

-- A whole number as text, without an exponent.
local function int_text(number)
  return string.format('%.0f', number)
end

-- Whether text `a` comes before `b` by its bytes, as in sorted sets. Lua itself compares by the server's locale.
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

-- Lanes. ----------------------------------------------------------------------------------------------------------

local LANE_KEYS = {
  j = 'j:', -- hash: id -> record
  p = 'p:', -- hash: id -> payload that is too large for the record
  k = 'k:', -- hash: type and idempotency key -> binding
  w = 'w:', -- sorted set: waiting jobs in claim order
  r = 'r:', -- sorted set: retrying jobs by visible time
  l = 'l:', -- sorted set: leased jobs by deadline
  e = 'e:', -- sorted set: ended jobs by the end of their retention
  [STATE_COMPLETED] = 'C:', [STATE_FAILED] = 'F:', [STATE_CANCELED] = 'X:', -- sorted sets: ended jobs by time
}
local lanes = {}
-- A lane's keys are made when they are first used.
local lane_fields = {
  __index = function(lane, name)
    local value = LANE_KEYS[name]
    if value then
      value = shard .. value .. lane.name
    elseif name == 'jobs' or name == 'keys' then
      value = {} -- Jobs and idempotency keys that this call has read.
    end
    lane[name] = value
    return value
  end,
}

local function lane_of(name)
  local lane = lanes[name]
  if not lane then
    lane = setmetatable({ name = name, arrived = false, tenant = false, queue = false }, lane_fields)
    lanes[name] = lane
  end
  return lane
end

-- The first name of a text, and the rest.
local function split_name(text)
  local colon = string.find(text, ':', 1, true)
  local stop = colon + tonumber(sub(text, 1, colon - 1))
  return sub(text, colon + 1, stop), sub(text, stop + 1)
end

local function names_of(lane)
  if not lane.tenant then
    local rest
    lane.tenant, rest = split_name(lane.name)
    lane.queue = split_name(rest)
  end
  return lane.tenant, lane.queue
end

local queue_suffixes = {}

local function lane_named(tenant, queue)
  local ending = queue_suffixes[queue]
  if not ending then
    ending = #queue .. ':' .. queue
    queue_suffixes[queue] = ending
  end
  local lane = lane_of(#tenant .. ':' .. tenant .. ending)
  lane.tenant, lane.queue = tenant, queue
  return lane
end

-- The lane at the beginning of a text, and the rest.
local function split_lane(text)
  local _, rest = split_name(text)
  local _, id = split_name(rest)
  return lane_of(sub(text, 1, #text - #id)), id
end
