-- Which waiting jobs are next: visible ones of a lane in order, and turns between lanes. [CLAIM-2, TENANT-4]
--
-- Per queue name of the shard: T:QUEUE has the tenants in the turns by virtual time, N:QUEUE those that may have got
-- visible work by the moment they do, V:QUEUE the times of those that left the turns, and `f` the floors.

-- Walks over the visible jobs of a lane in claim order. What is not due yet hides nothing behind it. Where lanes take
-- turns, the tenant, its virtual time, whether it had a turn, and whether it is out of jobs.
local NOTHING = {}

local function walk(lane, chunk, tenant, time)
  return {
    lane = lane, chunk = chunk, low = 0, skip = 0, found = NOTHING, at = 1, safe = 0, dry = false,
    tenant = tenant or false, time = time or 0, moved = false, out = false,
  }
end

-- Up to where members are surely due: to the end if the last one is, and has the priority of the first.
local function all_due(found)
  local size = #found
  if size == 0 then
    return 0
  end
  local first, last_one = tonumber(found[2]), tonumber(found[size])
  local band = floor(first / BAND)
  return floor(last_one / BAND) == band and last_one - band * BAND <= now and size or 0
end

-- The next visible member, or nil.
local function peek(way)
  while true do
    local member = way.found[way.at]
    if way.at < way.safe then
      return member
    elseif member then
      local score = tonumber(way.found[way.at + 1])
      local band = floor(score / BAND)
      local visible_at = score - band * BAND
      if visible_at <= now then
        return member
      end
      -- The rest of this priority is not due yet.
      way.low, way.skip, way.found, way.at, way.dry = (band + 1) * BAND, 0, NOTHING, 1, false
      way.safe = 0
    elseif way.dry then
      return nil
    else
      local skip, chunk = way.skip, way.chunk
      if way.low == 0 then
        way.found = call('ZRANGE', way.lane.w, skip, skip + chunk - 1, 'WITHSCORES')
      else
        way.found = call('ZRANGEBYSCORE', way.lane.w, way.low, '+inf', 'WITHSCORES', 'LIMIT', skip, chunk)
      end
      way.at, way.skip = 1, skip + #way.found / 2
      way.safe = all_due(way.found)
      way.dry = #way.found < 2 * way.chunk
    end
  end
end

-- The earliest moment at which a job of this lane is visible, or nil if none waits.
local function soonest(lane)
  local low, best = 0, nil
  while true do
    local found = call('ZRANGEBYSCORE', lane.w, low, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not found[1] then
      return best
    end
    local score = tonumber(found[2])
    local band = floor(score / BAND)
    best = min(best or score, score - band * BAND)
    low = (band + 1) * BAND
  end
end

-- How many lanes without work one claim lets go; with more of them it says to look again at once.
local LEAVE_LIMIT = 200
local left_turns = 0

local function leave_turns(queue, lane, time)
  local tenant = names_of(lane)
  left_turns = left_turns + 1
  local at = soonest(lane)
  call('ZREM', shard .. 'T:' .. queue, tenant)
  if time > 0 then
    call('HSET', shard .. 'V:' .. queue, tenant, whole(time) .. ':' .. whole(now))
  end
  if at then
    call('ZADD', shard .. 'N:' .. queue, at, tenant)
  end
end

local function tired(dry)
  return left_turns + dry >= LEAVE_LIMIT
end

-- Let up to `limit` lanes that got visible work into the turns, at the current minimum: the times they came with, by
-- tenant. Whether they have any work is seen when their turn comes; for those it does not come to `check_entered` looks.
local function enter_turns(queue, limit)
  local turns, next_up = shard .. 'T:' .. queue, shard .. 'N:' .. queue
  local least = tonumber(call('HGET', shard .. 'f', queue)) or 0
  local head = call('ZRANGE', turns, 0, 0, 'WITHSCORES')
  while head[1] and left_turns < LEAVE_LIMIT do
    local lane = lane_named(head[1], queue)
    if not is_paused(lane) and peek(walk(lane, 1)) then
      least = tonumber(head[2])
      break
    end
    leave_turns(queue, lane, tonumber(head[2]))
    head = call('ZRANGE', turns, 0, 0, 'WITHSCORES')
  end
  local due = call('ZRANGEBYSCORE', next_up, '-inf', now, 'LIMIT', 0, limit)
  if not due[1] then
    return {}
  end
  call('ZREM', next_up, unpack(due))
  local present = call('ZMSCORE', turns, unpack(due))
  local times = call('HMGET', shard .. 'V:' .. queue, unpack(due))
  local entering, gone, entered = {}, {}, {}
  for n, tenant in ipairs(due) do
    if not present[n] and not (any_paused and is_paused(lane_named(tenant, queue))) then
      local own = times[n] and tonumber(string.match(times[n], '^%d+')) or 0
      entering[#entering + 1] = max(own, least)
      entering[#entering + 1] = tenant
      entered[tenant] = own
      gone[#gone + 1] = times[n] and tenant or nil
    end
  end
  send('ZADD', turns, entering)
  send('HDEL', shard .. 'V:' .. queue, gone)
  return entered
end

-- Have those leave again, with the time they came with, that had no turn in this call and have nothing visible.
local function check_entered(queue, entered)
  local ending = #queue .. ':' .. queue
  for tenant, own in pairs(entered) do
    local first = call('ZRANGE', shard .. 'w:' .. #tenant .. ':' .. tenant .. ending, 0, 0, 'WITHSCORES')[2]
    if not first or first % BAND > now then
      local lane = lane_named(tenant, queue)
      if not peek(walk(lane, 1)) then
        leave_turns(queue, lane, own)
      end
    end
  end
end

-- A heap of lanes by (virtual time, tenant).
local function before(a, b)
  return a.time < b.time or (a.time == b.time and text_before(a.tenant, b.tenant))
end

local function sift_up(heap, n)
  while n > 1 do
    local parent = floor(n / 2)
    if not before(heap[n], heap[parent]) then
      return
    end
    heap[n], heap[parent] = heap[parent], heap[n]
    n = parent
  end
end

local function sift_down(heap, n)
  while true do
    local least = n
    for child = 2 * n, 2 * n + 1 do
      if heap[child] and before(heap[child], heap[least]) then
        least = child
      end
    end
    if least == n then
      return
    end
    heap[n], heap[least] = heap[least], heap[n]
    n = least
  end
end

local function push(heap, turn)
  heap[#heap + 1] = turn
  sift_up(heap, #heap)
end

local function pop(heap)
  local top = heap[1]
  heap[1] = heap[#heap]
  heap[#heap] = nil
  sift_down(heap, 1)
  return top
end
