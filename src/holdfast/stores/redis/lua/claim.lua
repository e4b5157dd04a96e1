-- Leases visible jobs, in order and in fair turns. [CLAIM-1 to CLAIM-5, TENANT-4, LEASE-3]   uses: jobs lanes turns
--
-- request: { tenant or false, queues, limit, lease_ms, worker, random, how many expired leases to end first }
-- Answers { now, next_at or -1, lane, id, record, lane, id, record, ... }. Sent once: a lost reply costs a lease. [ENQ-8]

local tenant, queues, limit, lease_ms, worker, random, repairs = unpack(request)

if #reap(repairs, random) > 0 then
  finish_call()
end

local picks = {}

local function pick(way)
  local member = peek(way)
  if not member then
    return false
  end
  way.at = way.at + 2
  picks[#picks + 1] = { lane = way.lane, id = sub(member, 8) }
  return true
end

-- One tenant's jobs.
local function take_own(queue)
  local lane = lane_named(tenant, queue)
  local way = walk(lane, limit)
  local paused = is_paused(lane)
  return function()
    return not paused and pick(way)
  end
end

-- Weighted turns between the tenants that have visible work here.
local settling = {}

local function take_turns(queue)
  local turns = shard .. 'T:' .. queue
  local heap, all, least, chunk = {}, {}, nil, nil
  local page, at, following, next_lane = {}, 1, 0, nil

  -- The next lane of the index, which joins the heap when its turn may be before all there.
  local function ahead()
    if not page[at] then
      page = call('ZRANGE', turns, following, following + limit - 1, 'WITHSCORES')
      at, following = 1, following + limit
    end
    return page[at] and { tenant = page[at], time = tonumber(page[at + 1]) }
  end

  local function settle()
    for _, turn in ipairs(all) do
      if turn.dry then
        leave_turns(queue, turn.way.lane, turn.time)
      elseif turn.moved then
        call('ZADD', turns, turn.time, turn.tenant)
      end
    end
    if least then
      call('HSET', shard .. 'f', queue, whole(max(least, tonumber(call('HGET', shard .. 'f', queue)) or 0)))
    end
  end

  return function()
    if not chunk then
      -- Only when this queue's turn comes: a claim that is full before leaves its tenants where they are.
      enter_turns(queue)
      chunk = math.ceil(limit / max(1, min(limit, call('ZCARD', turns))))
      settling[#settling + 1] = settle
      next_lane = ahead()
    end
    while true do
      while next_lane and (not heap[1] or before(next_lane, heap[1])) do
        next_lane.way = walk(lane_named(next_lane.tenant, queue), chunk)
        all[#all + 1] = next_lane
        push(heap, next_lane)
        at = at + 2
        next_lane = ahead()
      end
      local turn = heap[1]
      if not turn then
        return false
      elseif pick(turn.way) then
        least = max(least or 0, turn.time)
        turn.time, turn.moved = turn.time + cost_of(turn.way.lane), true
        sift_down(heap, 1)
        return true
      end
      turn.dry = true
      pop(heap)
    end
  end
end

-- One from each queue in rotation; a queue without visible work leaves the round.
local going, seen = {}, {}
for _, queue in ipairs(queues) do
  if not seen[queue] then
    seen[queue] = true
    going[#going + 1] = tenant and take_own(queue) or take_turns(queue)
  end
end
while #going > 0 and #picks < limit do
  local still = {}
  for _, take in ipairs(going) do
    if #picks < limit and take() then
      still[#still + 1] = take
    end
  end
  going = still
end

local wanted = {}
for _, picked in ipairs(picks) do
  wanted[#wanted + 1] = { picked.lane.name, picked.id }
end
load_all(wanted)
local token = tick(#picks)
for n, picked in ipairs(picks) do
  local job = picked.lane.jobs[picked.id]
  move(job, LEASED, function()
    job.attempts, job.token, job.deadline = job.attempts + 1, token + n - 1, now + lease_ms
    job.worker, job.claimed_at, job.spent, job.spent_state = worker, now, 0, 0
    drop_progress(job)
    drop_key(job, false)
  end)
  note('claimed', job, job.visible_at, job.deadline)
end
finish_call()
for _, settle in ipairs(settling) do
  settle()
end

local next_at = nil

local function look_at(moment)
  if moment and (not next_at or moment < next_at) then
    next_at = moment
  end
end

-- When a claim that came back short should look again. [CLAIM-3]
if #picks < limit then
  look_at(tonumber(call('ZRANGE', shard .. 'l', 0, 0, 'WITHSCORES')[2]))
  for _, queue in ipairs(queues) do
    if not tenant then
      look_at(tonumber(call('ZRANGE', shard .. 'N:' .. queue, 0, 0, 'WITHSCORES')[2]))
    elseif not is_paused(lane_named(tenant, queue)) then
      look_at(soonest(lane_named(tenant, queue)))
    end
  end
end

local answer = { now, next_at or -1 }
for _, picked in ipairs(picks) do
  answer[#answer + 1] = picked.lane.name
  answer[#answer + 1] = picked.id
  answer[#answer + 1] = picked.lane.jobs[picked.id].raw
end
return answer
