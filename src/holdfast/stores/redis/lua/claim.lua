-- Leases visible jobs, in order and in fair turns. [CLAIM-1 to CLAIM-5, TENANT-4, LEASE-3]   uses: jobs lanes turns offers
--
-- request: { tenant or false, queues, limit, lease_ms, worker, random, how many expired leases to end first,
--   false or { channel, number of this offer, number of the last one, how many it was for, how many of them came,
--   how many could start at once, how many to offer at most, for how many ms, whether something may have been handed over,
--   up to which token the worker has learned what was } }
-- Answers { now, next_at or -1, how many are offered or minus how many are on their way, { lane and id, token, ... } of what
--   was handed over, lane, id, record, lane, id, record, ... }. Sent once: a lost reply costs a lease. [ENQ-8]

local tenant, queues, limit, lease_ms, worker, random, repairs, offer = unpack(request)
local places, coming, handed = offer and places_of(tenant, queues), 0, {}
if offer then
  coming = take_back(offer[1], places, offer[3], offer[4], offer[5])
  limit = limit - coming
  handed = offer[9] and handed_to(offer[1], offer[10]) or handed
end

reap(repairs, random)

-- What was picked, in order: lanes, members, ids, records as far as known, and which have left their lane already.
local picks, lanes_of, members, ids, found, popped, all_popped = 0, {}, {}, {}, {}, {}, true

-- Where each lane gives one job the first is taken out at once, which saves the way back to it.
local function pop_first(way)
  local first = call('ZPOPMIN', way.lane.w)
  local score = tonumber(first[2])
  if score and score % BAND > now then
    call('ZADD', way.lane.w, first[2], first[1]) -- Not due, but another may be: see `peek`.
    return nil
  end
  return first[1]
end

local function pick(way)
  local first = way.chunk == 1 and way.low == 0 and way.skip == 0 and pop_first(way)
  local member = first or peek(way)
  if not member then
    return false
  end
  picks = picks + 1
  lanes_of[picks], members[picks], ids[picks] = way.lane, member, sub(member, 8)
  if first then
    popped[picks], found[picks] = true, call('HGET', way.lane.j, ids[picks])
    count_waiting(way.lane, -1)
  else
    way.at, all_popped = way.at + 2, false
  end
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
local settling, dry, worn_out = {}, 0, false

local function take_turns(queue)
  local turns = shard .. 'T:' .. queue
  local heap, all, least, chunk = {}, {}, nil, nil
  local page, at, following, next_lane, entered = {}, 1, 0, nil, nil

  -- The next lane of the index, which joins the heap when it has had a turn.
  local function ahead()
    if not page[at] then
      page = call('ZRANGE', turns, following, following + limit - 1, 'WITHSCORES')
      at, following = 1, following + limit
    end
    if not page[at] then
      return nil
    end
    at = at + 2
    return walk(lane_named(page[at - 2], queue), chunk, page[at - 2], tonumber(page[at - 1]))
  end

  local function settle()
    local moved = {}
    for _, turn in ipairs(all) do
      if turn.out then
        leave_turns(queue, turn.lane, not turn.moved and entered[turn.tenant] or turn.time)
      elseif turn.moved then
        local n = #moved
        moved[n + 1], moved[n + 2] = turn.time, turn.tenant
      end
      entered[turn.tenant] = nil
    end
    send('ZADD', turns, moved)
    check_entered(queue, entered)
    if least then
      call('HSET', shard .. 'f', queue, whole(max(least, tonumber(call('HGET', shard .. 'f', queue)) or 0)))
    end
  end

  return function()
    if not chunk then
      -- Only when this queue's turn comes: a claim that is full before leaves its tenants where they are.
      entered = enter_turns(queue, max(limit, 100))
      chunk = math.ceil(limit / max(1, min(limit, call('ZCARD', turns))))
      settling[#settling + 1] = settle
      next_lane = ahead()
    end
    while true do
      -- Who is next stands at the head of the heap, or of what the index has not given us yet.
      local turn = heap[1]
      local fresh = next_lane and (not turn or before(next_lane, turn))
      if fresh then
        turn, next_lane = next_lane, ahead()
        all[#all + 1] = turn
      elseif not turn then
        return false
      end
      if pick(turn) then
        least = max(least or 0, turn.time)
        turn.time, turn.moved = turn.time + cost_of(turn.lane), true
        if fresh then
          push(heap, turn)
        else
          sift_down(heap, 1)
        end
        -- A tenant that is alone, in a claim over one queue, has all the turns.
        while not queues[2] and not next_lane and not heap[2] and picks < limit and pick(turn) do
          least = max(least, turn.time)
          turn.time = turn.time + cost_of(turn.lane)
        end
        return true
      end
      turn.out, dry = true, dry + 1
      if not fresh then
        pop(heap)
      end
      if tired(dry) then
        worn_out = true
        return false
      end
    end
  end
end

-- One from each queue in rotation; a queue without visible work leaves the round.
do -- Lua has room for 200 local names in a script, and these are not needed any more.
  local going, seen = {}, {}
  for _, queue in ipairs(queues) do
    if not seen[queue] then
      seen[queue] = true
      going[#going + 1] = tenant and take_own(queue) or take_turns(queue)
    end
  end
  while #going > 0 and picks < limit do
    local still = {}
    for _, take in ipairs(going) do
      if picks < limit and take() then
        still[#still + 1] = take
      end
    end
    going = still
  end
end

-- Lease a job: a fresh token, a deadline, one more attempt. [CLAIM-1, RETRY-1]
local raws = {}

do
  local deadline = now + lease_ms
  local deadline_text = whole(deadline)
  local CLAIMED = KINDS.claimed

  local alone, runs_of = {}, {}

  -- Of a record's head: state, attempts, number of the last event, size of extra, visible_at, sizes of type, key, settings, request id and payload.
  local SEEN = '<BBxxI4xxxxI4I8' .. string.rep('x', 49) .. 'BHI4HI4'
  local starts, worker_size, times = {}, string.char(#worker), struct.pack('<I8I8', deadline, now)

  local function lease_slowly(job, token)
    move(job, LEASED, function()
      job.attempts, job.token, job.deadline = job.attempts + 1, token, deadline
      job.worker, job.claimed_at, job.spent, job.spent_state = worker, now, 0, 0
      drop_progress(job)
      drop_key(job, false)
    end)
    note_of(job, 'claimed', job.visible_at, deadline)
  end

  -- The same for most jobs, which have no key, no errors and no replays, by changing the record where it differs.
  local function lease(n, id, raw, token)
    local lane, member = lanes_of[n], members[n]
    if not raw then -- Somebody took the record and left the index: mend it, and let the others have their turn.
      return rank(lane.w, member, false)
    end
    local state, attempts, events, extra_size, visible_at, type_size, key_size, static_size, request_size, payload_size =
      struct.unpack(SEEN, raw)
    if key_size > 0 or extra_size > 0 or state == RETRYING then
      local job = parse(lane, id, raw)
      lane.jobs[id] = job
      return lease_slowly(job, token)
    end
    local start = starts[256 * events + attempts]
    if not start then
      start = struct.pack('<BBBBI4', LEASED, attempts + 1, 0, 0, events + 1)
      starts[256 * events + attempts] = start
    end
    local stop = HEAD_SIZE + type_size + static_size + request_size + payload_size
    raws[n] = start .. sub(raw, 9, 10) .. worker_size .. sub(raw, 12, 24) .. struct.pack('<I8', token) .. times
      .. sub(raw, 49, stop) .. worker
    if popped[n] or alone[lane] then
      -- Its only job here: gathering would cost more than it saves.
      call('HSET', lane.j, id, raws[n])
      if not popped[n] and call('ZREM', lane.w, member) == 1 then
        count_waiting(lane, -1)
      end
      call('ZADD', lane.l, deadline_text, member)
    else
      -- What `set` and `rank` do, without asking each time where.
      local runs = runs_of[lane]
      if not runs then
        runs = { run_of(hashes, lane.j, 'HSET'), run_of(zsets, lane.w, 'ZREM'), run_of(zsets, lane.l, 'ZADD') }
        runs_of[lane] = runs
      end
      local records, gone, leased = runs[1], runs[2], runs[3]
      local at = records.n
      records[at + 1], records[at + 2], records.n = id, raws[n], at + 2
      at = gone.n + 1
      gone[at], gone.n = member, at
      at = leased.n
      leased[at + 1], leased[at + 2], leased.n = deadline_text, member, at + 2
    end
    bound('L', lane, deadline)
    local type = sub(raw, HEAD_SIZE + 1, HEAD_SIZE + type_size)
    note(CLAIMED, lane.name, id, type, attempts + 1, token, worker, events + 1, visible_at, deadline)
  end

  -- Records come lane by lane, leases are given in the order of the turns.
  if not all_popped then
    fetch(lanes_of, ids, found, alone)
  end
  local token = tick(picks)
  for n = 1, picks do
    lease(n, ids[n], found[n], token + n - 1)
  end
end
finish_call()
for _, settle in ipairs(settling) do
  settle()
end

local next_at, LOOK_AGAIN_MS = worn_out and now or nil, 20

local function look_at(moment)
  if moment and (not next_at or moment < next_at) then
    next_at = moment
  end
end

-- When a claim that came back short should look again. [CLAIM-3]
if picks < limit then
  look_at(next_deadline())
  for _, queue in ipairs(queues) do
    if not tenant then
      look_at(tonumber(call('ZRANGE', shard .. 'N:' .. queue, 0, 0, 'WITHSCORES')[2]))
    elseif not is_paused(lane_named(tenant, queue)) then
      look_at(soonest(lane_named(tenant, queue)))
    end
  end
end

local offered = offer and max(0, min(limit - picks, offer[6] - coming - picks, offer[7])) or 0
if offered > 0 then
  local mine = { now + offer[8], offered, offered, offer[2], lease_ms, worker, tenant, queues }
  make_offer(offer[1], places, mine, offer[8])
elseif coming > 0 then
  look_at(now + LOOK_AGAIN_MS) -- What is on its way was counted in, and may be lost.
end

local answer = { now, next_at or -1, offered > 0 and offered or -coming, handed }
for n = 1, picks do
  if found[n] then
    local size = #answer
    answer[size + 1], answer[size + 2] = lanes_of[n].name, ids[n]
    answer[size + 3] = raws[n] or lanes_of[n].jobs[ids[n]].raw
  end
end
return answer
