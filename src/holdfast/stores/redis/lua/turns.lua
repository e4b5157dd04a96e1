-- Which waiting jobs are next: the visible jobs of a lane in order, and turns between lanes. [CLAIM-2, TENANT-4]
--
-- For each queue name: T:QUEUE has the tenants in the turns by virtual time, N:QUEUE tenants by when they may have
-- visible work, V:QUEUE the virtual times of tenants that left the turns. `f` has the minimum of each queue name.

-- A scan over the visible jobs of a lane in claim order: it reads `chunk` members at a time from `min_score` on. A job
-- that is not due hides none behind it. Where lanes take turns, a scan also has the tenant, its virtual time, whether
-- it took a turn in this call and whether it leaves the turns.
local NOTHING = {}

local function new_scan(lane, chunk, tenant, time)
  return {
    lane = lane, chunk = chunk, min_score = 0, skip = 0, found = NOTHING, at = 1, due_until = 0, exhausted = false,
    tenant = tenant or false, time = time or 0, took_turn = false, has_left = false,
  }
end

-- How much of a chunk is due for certain: all of it, if the last member is due and has the priority of the first.
local function due_prefix(found)
  local size = #found
  if size == 0 then
    return 0
  end
  local first, last_one = tonumber(found[2]), tonumber(found[size])
  local band = floor(first / PRIORITY_BAND)
  return floor(last_one / PRIORITY_BAND) == band and last_one - band * PRIORITY_BAND <= now and size or 0
end

-- The next visible member of a scan, or nil.
local function next_visible(scan)
  while true do
    local member = scan.found[scan.at]
    if scan.at < scan.due_until then
      return member
    elseif member then
      local score = tonumber(scan.found[scan.at + 1])
      local band = floor(score / PRIORITY_BAND)
      local visible_at = score - band * PRIORITY_BAND
      if visible_at <= now then
        return member
      end
      -- The rest of this priority is not due yet.
      scan.min_score, scan.skip, scan.found, scan.at, scan.exhausted = (band + 1) * PRIORITY_BAND, 0, NOTHING, 1, false
      scan.due_until = 0
    elseif scan.exhausted then
      return nil
    else
      local skip, chunk = scan.skip, scan.chunk
      if scan.min_score == 0 then
        scan.found = call('ZRANGE', scan.lane.w, skip, skip + chunk - 1, 'WITHSCORES')
      else
        scan.found = call('ZRANGEBYSCORE', scan.lane.w, scan.min_score, '+inf', 'WITHSCORES', 'LIMIT', skip, chunk)
      end
      scan.at, scan.skip = 1, skip + #scan.found / 2
      scan.due_until = due_prefix(scan.found)
      scan.exhausted = #scan.found < 2 * scan.chunk
    end
  end
end

-- The earliest time at which a job of this lane is visible, or nil if none waits.
local function earliest_visible(lane)
  local min_score, best = 0, nil
  while true do
    local found = call('ZRANGEBYSCORE', lane.w, min_score, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not found[1] then
      return best
    end
    local score = tonumber(found[2])
    local band = floor(score / PRIORITY_BAND)
    best = min(best or score, score - band * PRIORITY_BAND)
    min_score = (band + 1) * PRIORITY_BAND
  end
end

-- The most lanes without visible work that one claim removes from the turns. If there are more, it asks for another
-- claim.
local MAX_DEPARTURES = 200
local departures = 0

-- Remove a lane from the turns, keep its virtual time, and note when it next has visible work.
local function leave_turns(queue, lane, time)
  local tenant = names_of(lane)
  departures = departures + 1
  local at = earliest_visible(lane)
  call('ZREM', shard .. 'T:' .. queue, tenant)
  if time > 0 then
    call('HSET', shard .. 'V:' .. queue, tenant, int_text(time) .. ':' .. int_text(now))
  end
  if at then
    call('ZADD', shard .. 'N:' .. queue, at, tenant)
  end
end

local function at_departure_limit(exhausted_lanes)
  return departures + exhausted_lanes >= MAX_DEPARTURES
end

-- Let up to `limit` lanes with new work into the turns, at the current minimum or their own time if that is later.
-- Returns their own times, by tenant. Whether they have visible work shows when their turn comes; `check_entered`
-- checks the others.
local function enter_turns(queue, limit)
  local turns, next_up = shard .. 'T:' .. queue, shard .. 'N:' .. queue
  local minimum = tonumber(call('HGET', shard .. 'f', queue)) or 0
  local head = call('ZRANGE', turns, 0, 0, 'WITHSCORES')
  while head[1] and departures < MAX_DEPARTURES do
    local lane = lane_named(head[1], queue)
    if not is_paused(lane) and next_visible(new_scan(lane, 1)) then
      minimum = tonumber(head[2])
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
      entering[#entering + 1] = max(own, minimum)
      entering[#entering + 1] = tenant
      entered[tenant] = own
      gone[#gone + 1] = times[n] and tenant or nil
    end
  end
  call_in_pieces('ZADD', turns, entering)
  call_in_pieces('HDEL', shard .. 'V:' .. queue, gone)
  return entered
end

-- Remove lanes from the turns that entered in this call, had no turn and have no visible job. They keep their own time.
local function check_entered(queue, entered)
  local ending = #queue .. ':' .. queue
  for tenant, own in pairs(entered) do
    local first = call('ZRANGE', shard .. 'w:' .. #tenant .. ':' .. tenant .. ending, 0, 0, 'WITHSCORES')[2]
    if not first or first % PRIORITY_BAND > now then
      local lane = lane_named(tenant, queue)
      if not next_visible(new_scan(lane, 1)) then
        leave_turns(queue, lane, own)
      end
    end
  end
end

-- A heap of lanes by (virtual time, tenant).
local function turn_before(a, b)
  return a.time < b.time or (a.time == b.time and text_before(a.tenant, b.tenant))
end

local function sift_up(heap, n)
  while n > 1 do
    local parent = floor(n / 2)
    if not turn_before(heap[n], heap[parent]) then
      return
    end
    heap[n], heap[parent] = heap[parent], heap[n]
    n = parent
  end
end

local function sift_down(heap, n)
  while true do
    local minimum = n
    for child = 2 * n, 2 * n + 1 do
      if heap[child] and turn_before(heap[child], heap[minimum]) then
        minimum = child
      end
    end
    if minimum == n then
      return
    end
    heap[n], heap[minimum] = heap[minimum], heap[n]
    n = minimum
  end
end

local function heap_push(heap, turn)
  heap[#heap + 1] = turn
  sift_up(heap, #heap)
end

local function heap_pop(heap)
  local top = heap[1]
  heap[1] = heap[#heap]
  heap[#heap] = nil
  sift_down(heap, 1)
  return top
end
