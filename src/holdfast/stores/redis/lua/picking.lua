-- Part of `claim.lua`: which jobs a claim takes, and in which order. [CLAIM-2, CLAIM-5, TENANT-4]

local tenant, queues, limit, lease_ms, worker, random, max_repairs, registration = unpack(request)

-- The jobs picked so far, in order: lanes, members, ids, records as far as they are read, and whether they have been
-- removed from their lane's waiting jobs already.
local picked, lanes_of, members, ids, found, popped, all_popped = 0, {}, {}, {}, {}, {}, true

-- If each lane gives one job, its first is popped at once: one command instead of two.
local function pop_first(scan)
  local first = call('ZPOPMIN', scan.lane.w)
  local score = tonumber(first[2])
  if score and score % PRIORITY_BAND > now then
    call('ZADD', scan.lane.w, first[2], first[1]) -- Not due. Another may be: see `next_visible`.
    return nil
  end
  return first[1]
end

local function pick_next(scan)
  local first = scan.chunk == 1 and scan.min_score == 0 and scan.skip == 0 and pop_first(scan)
  local member = first or next_visible(scan)
  if not member then
    return false
  end
  picked = picked + 1
  lanes_of[picked], members[picked], ids[picked] = scan.lane, member, sub(member, 8)
  if first then
    popped[picked], found[picked] = true, call('HGET', scan.lane.j, ids[picked])
    count_waiting(scan.lane, -1)
  else
    scan.at, all_popped = scan.at + 2, false
  end
  return true
end

-- The pickers below take the next job of a queue name each time they are called. They return false if there is none.

-- The jobs of one tenant.
local function tenant_picker(queue)
  local lane = lane_named(tenant, queue)
  local scan = new_scan(lane, limit)
  local paused = is_paused(lane)
  return function()
    return not paused and pick_next(scan)
  end
end

-- How to write the turns of each queue name at the end; how many lanes had no visible job; whether the claim stopped
-- early, because too many had none.
local turn_writers, exhausted_lanes, needs_rescan = {}, 0, false

-- Weighted turns between the tenants that have visible work.
local function turns_picker(queue)
  local turns = shard .. 'T:' .. queue
  local heap, all, minimum, chunk = {}, {}, nil, nil
  local page, at, following, next_lane, entered = {}, 1, 0, nil, nil

  -- The next lane in the index of turns. It joins the heap once it has had a turn.
  local function next_in_index()
    if not page[at] then
      page = call('ZRANGE', turns, following, following + limit - 1, 'WITHSCORES')
      at, following = 1, following + limit
    end
    if not page[at] then
      return nil
    end
    at = at + 2
    return new_scan(lane_named(page[at - 2], queue), chunk, page[at - 2], tonumber(page[at - 1]))
  end

  local function write_turns()
    local moved = {}
    for _, turn in ipairs(all) do
      if turn.has_left then
        leave_turns(queue, turn.lane, not turn.took_turn and entered[turn.tenant] or turn.time)
      elseif turn.took_turn then
        local n = #moved
        moved[n + 1], moved[n + 2] = turn.time, turn.tenant
      end
      entered[turn.tenant] = nil
    end
    call_in_pieces('ZADD', turns, moved)
    check_entered(queue, entered)
    if minimum then
      call('HSET', shard .. 'f', queue, int_text(max(minimum, tonumber(call('HGET', shard .. 'f', queue)) or 0)))
    end
  end

  return function()
    if not chunk then
      -- On the first call, not earlier: a claim that is full before that leaves this queue's turns alone.
      entered = enter_turns(queue, max(limit, 100))
      chunk = math.ceil(limit / max(1, min(limit, call('ZCARD', turns))))
      turn_writers[#turn_writers + 1] = write_turns
      next_lane = next_in_index()
    end
    while true do
      -- The next lane is the first of the heap or the first of the index, whichever has the earlier time.
      local turn = heap[1]
      local is_new = next_lane and (not turn or turn_before(next_lane, turn))
      if is_new then
        turn, next_lane = next_lane, next_in_index()
        all[#all + 1] = turn
      elseif not turn then
        return false
      end
      if pick_next(turn) then
        minimum = max(minimum or 0, turn.time)
        turn.time, turn.took_turn = turn.time + cost_of(turn.lane), true
        if is_new then
          heap_push(heap, turn)
        else
          sift_down(heap, 1)
        end
        -- In a claim over one queue, a tenant without competitors has all the turns.
        while not queues[2] and not next_lane and not heap[2] and picked < limit and pick_next(turn) do
          minimum = max(minimum, turn.time)
          turn.time = turn.time + cost_of(turn.lane)
        end
        return true
      end
      turn.has_left, exhausted_lanes = true, exhausted_lanes + 1
      if not is_new then
        heap_pop(heap)
      end
      if at_departure_limit(exhausted_lanes) then
        needs_rescan = true
        return false
      end
    end
  end
end

-- One job from each queue in rotation. A queue without visible work leaves the rotation.
local function pick_all()
  local pickers, seen = {}, {}
  for _, queue in ipairs(queues) do
    if not seen[queue] then
      seen[queue] = true
      pickers[#pickers + 1] = tenant and tenant_picker(queue) or turns_picker(queue)
    end
  end
  while #pickers > 0 and picked < limit do
    local active = {}
    for _, pick_from in ipairs(pickers) do
      if picked < limit and pick_from() then
        active[#active + 1] = pick_from
      end
    end
    pickers = active
  end
end
