-- Jobs: their records, the indexes they stand in, and the moves of `core/lifecycle.py`, restated.
--
-- A record is a head of fixed size, then what never changes (type, settings, request id, idempotency key, payload),
-- then what does (worker, extra, result). `records.py` reads and writes the same.

local MOVING = '<BBBBI4BBBBI4I8I8I8I8I8I8I8' -- The part of the head that changes, in front ...
local HEAD = MOVING .. 'BBHI4HI4I8I8' -- ... and all of it.
local MOVING_SIZE, HEAD_SIZE = 72, 102
local BLOCKED, SCHEDULED, READY, RETRYING, LEASED, COMPLETED, FAILED, CANCELED = 0, 1, 2, 3, 4, 5, 6, 7
local PERMANENT, MAX_ATTEMPTS, LEASE_EXPIRED, TIMEOUT = 1, 2, 3, 4
local PAYLOAD_ELSEWHERE, RESULT_IN_BLOB, REQUEST_IS_ID, IS_STEP = 1, 2, 4, 8 -- Bits of `flags`.
local BAND = 2 ^ 49 -- Waiting jobs stand in ten bands, one for each priority, and within it by visible time.
local ERRORS_KEPT = 10
local RECORD_BYTES = 256 -- As in `core/budgets.py`.

local function parse(lane, id, raw)
  local state, attempts, spent, spent_state, events, reason, flags, worker_size, priority, extra_size,
    visible_at, token, deadline, claimed_at, finished_at, expires_at, ttl,
    max_attempts, type_size, key_size, static_size, request_size, payload_size, seq, enqueued_at =
    struct.unpack(HEAD, raw)
  local stop = HEAD_SIZE + type_size + static_size + request_size + key_size + payload_size
  return {
    lane = lane, id = id, state = state, priority = priority, attempts = attempts, max_attempts = max_attempts,
    spent = spent, spent_state = spent_state, events = events, reason = reason, flags = flags, type_size = type_size,
    static_size = static_size, request_size = request_size, key_size = key_size, payload_size = payload_size,
    seq = seq, visible_at = visible_at, enqueued_at = enqueued_at, token = token, deadline = deadline,
    claimed_at = claimed_at, finished_at = finished_at, expires_at = expires_at, ttl = ttl,
    raw = raw, stop = stop, type = sub(raw, HEAD_SIZE + 1, HEAD_SIZE + type_size),
    worker = sub(raw, stop + 1, stop + worker_size),
    extra = sub(raw, stop + worker_size + 1, stop + worker_size + extra_size),
    result = sub(raw, stop + worker_size + extra_size + 1),
    member = struct.pack('>I7', seq) .. id, body = false, weight = #raw - stop - worker_size,
  }
end

local function packed(job)
  return struct.pack(
    HEAD, job.state, job.attempts, job.spent, job.spent_state, job.events, job.reason, job.flags, #job.worker,
    job.priority, #job.extra, job.visible_at, job.token, job.deadline, job.claimed_at, job.finished_at, job.expires_at, job.ttl,
    job.max_attempts, job.type_size, job.key_size, job.static_size, job.request_size, job.payload_size, job.seq,
    job.enqueued_at
  ) .. (job.body or sub(job.raw, HEAD_SIZE + 1, job.stop)) .. job.worker .. job.extra .. job.result
end

local function has(job, flag)
  return bit.band(job.flags, flag) ~= 0
end

-- Some bytes of what never changes.
local function part(job, first, size)
  if job.body then
    return sub(job.body, first + 1, first + size)
  end
  return sub(job.raw, HEAD_SIZE + first + 1, HEAD_SIZE + first + size)
end

-- The records of many jobs, each named by its lane and id, into `raws`: one command for each lane. Lanes that are named
-- once go into `alone`.
local function fetch(lanes_of, ids, raws, alone)
  local one = true
  for n = 2, #ids do
    one = one and lanes_of[n] == lanes_of[1]
  end
  if one then
    for first = 1, #ids, ARGUMENTS do
      local stop = min(first + ARGUMENTS - 1, #ids)
      local some = call('HMGET', lanes_of[1].j, unpack(ids, first, stop))
      for n = first, stop do
        raws[n] = some[n - first + 1]
      end
    end
    return
  end
  local places = {}
  for n = 1, #ids do
    local lane = lanes_of[n]
    local known = places[lane]
    if not known then
      places[lane] = n
    elseif type(known) == 'number' then
      places[lane] = { known, n }
    else
      known[#known + 1] = n
    end
  end
  for lane, known in pairs(places) do
    if type(known) == 'number' then
      raws[known] = call('HGET', lane.j, ids[known])
      if alone then
        alone[lane] = true
      end
    else
      local some = {}
      for n, place in ipairs(known) do
        some[n] = ids[place]
      end
      for n, raw in ipairs(call('HMGET', lane.j, unpack(some))) do
        raws[known[n]] = raw
      end
    end
  end
end

-- Fetch the records of a lane that will be needed, in one command.
local function load(lane, ids)
  for first = 1, #ids, ARGUMENTS do
    local stop = min(first + ARGUMENTS - 1, #ids)
    local raws = call('HMGET', lane.j, unpack(ids, first, stop))
    for n = first, stop do
      local raw = raws[n - first + 1]
      lane.jobs[ids[n]] = raw and parse(lane, ids[n], raw) or false
    end
  end
end

-- The records that the items of a batch name by their first two parts, fetched lane by lane.
local function load_all(items)
  local wanted, order = {}, {}
  for _, item in ipairs(items) do
    local ids = wanted[item[1]]
    if not ids then
      ids = {}
      wanted[item[1]] = ids
      order[#order + 1] = item[1]
    end
    ids[#ids + 1] = item[2]
  end
  for _, name in ipairs(order) do
    load(lane_of(name), wanted[name])
  end
end

-- The job that has this id, also one that only waits to be pruned.
local function find_any(lane, id)
  if lane.jobs[id] == nil then
    load(lane, { id })
  end
  return lane.jobs[id]
end

local function forgotten(job)
  return job.expires_at > 0 and job.expires_at <= now
end

-- The job, or nil for one that is not there or past its retention. [TENANT-2, KEEP-1]
local function find(lane, id)
  local job = find_any(lane, id)
  return job and not forgotten(job) and job or nil
end

-- The state that a reader sees: a waiting job whose time has come is ready.
local function shown(job)
  if (job.state == SCHEDULED or job.state == RETRYING) and job.visible_at <= now then
    return READY
  end
  return job.state
end

-- Where a job stands. -------------------------------------------------------------------------------------------

local function stand(job, state, present)
  local lane, member = job.lane, job.member
  if state < LEASED then
    rank(lane.w, member, present and (9 - job.priority) * BAND + job.visible_at)
    if state == RETRYING then
      rank(lane.r, member, present and job.visible_at)
    end
  elseif state == LEASED then
    rank(lane.l, member, present and job.deadline)
    if present then
      bound('L', lane, job.deadline)
    end
  else
    rank(lane[state], member, present and job.finished_at)
    rank(lane.e, member, present and job.expires_at)
    if present then
      bound('E', lane, job.expires_at)
    end
  end
end

-- Records are packed as late as possible: a job may be changed more than once in a call.
local unsaved = {}

local function save(job)
  unsaved[job] = true
end

local function finish_call()
  for job in pairs(unsaved) do
    local weight = #job.extra + #job.result
    if weight ~= job.weight then
      count_kept(job.lane, 0, 0, weight - job.weight)
      job.weight = weight
    end
    job.raw = packed(job)
    job.body, job.stop = false, #job.raw - #job.worker - #job.extra - #job.result
    set(job.lane.j, job.id, job.raw)
  end
  unsaved = {}
  commit_arrivals()
end

-- Take a job from the state it is in to another; `change` sets what goes with it.
local function move(job, state, change)
  stand(job, job.state, false)
  job.state = state
  change(job)
  stand(job, state, true)
  save(job)
  if state < LEASED then
    arrive(job.lane, job.visible_at)
  elseif state > LEASED then
    hints.done[#hints.done + 1] = job.lane.name
    hints.done[#hints.done + 1] = job.id
  end
end

-- The order is part of the log. New kinds go to the end.
local KINDS = {
  enqueued = 0, claimed = 1, extended = 2, progressed = 3, retried = 4, released = 5, expired = 6, completed = 7,
  failed = 8, canceled = 9, replayed = 10, purged = 11, released_for = 12, -- Released, with a reason.
}

-- Log the next event of a job. The record counts it: whoever calls this saves the job or forgets it. [EVENT-1]
local function note_of(job, kind, a, b, c, d)
  job.events = job.events + 1
  note(KINDS[kind], job.lane.name, job.id, job.type, job.attempts, job.token, job.worker, job.events, a, b, c, d)
end

-- Remove an ended job for good. [KEEP-1]
local function forget(job)
  stand(job, job.state, false)
  unsaved[job] = nil
  set(job.lane.j, job.id, false)
  local payload = job.payload_size
  if has(job, PAYLOAD_ELSEWHERE) then
    payload = call('HSTRLEN', job.lane.p, job.id)
    set(job.lane.p, job.id, false)
  end
  count_kept(job.lane, -1, 0, -RECORD_BYTES - payload - job.weight)
  if has(job, RESULT_IN_BLOB) then
    blobs[#blobs + 1] = job.result
  end
  job.lane.jobs[job.id] = false
end

-- What most jobs do not have: replays, progress (fraction and message), errors, why the last worker released it and since
-- when every worker has given that reason. ----------------------------------------------------------------------------

local function extra_of(job)
  if job.extra == '' then
    return { 0, false, '', {} }
  end
  return cmsgpack.unpack(job.extra)
end

local function drop_progress(job)
  if job.extra ~= '' then
    local extra = extra_of(job)
    if extra[2] then
      extra[2], extra[3] = false, ''
      job.extra = cmsgpack.pack(extra)
    end
  end
end

-- Why the last worker released the job, and since when that is so. [RETRY-6]
local function released_for(job)
  if job.extra == '' then
    return nil, nil
  end
  local extra = extra_of(job)
  return extra[5], extra[6]
end

local function set_released_for(job, reason, since)
  local extra = extra_of(job)
  extra[5], extra[6] = reason, since
  job.extra = cmsgpack.pack(extra)
end

local function remember(job, error)
  local extra = extra_of(job)
  local errors = extra[4]
  errors[#errors + 1] = { error[1], error[2], error[3], job.attempts, now }
  while #errors > ERRORS_KEPT do
    table.remove(errors, 1)
  end
  job.extra = cmsgpack.pack(extra)
end

-- Idempotency keys. [ENQ-3] -------------------------------------------------------------------------------------

-- A binding is a policy (1 until terminal, 2 until started, 3 ttl, 4 forever), when it ends, and the job's id.
local function binding_of(lane, field)
  local found = lane.keys[field]
  if found == nil then
    local raw = call('HGET', lane.k, field)
    found = false
    if raw then
      local policy, ends_at = struct.unpack('<BI8', raw)
      found = { policy = policy, ends_at = ends_at, id = sub(raw, 10) }
    end
    lane.keys[field] = found
  end
  return found
end

-- Keys that outlive their job count by themselves. [TENANT-5]
local function count_key(lane, field, by)
  local binding = binding_of(lane, field)
  if binding and binding.policy >= 3 then
    count_kept(lane, 0, by, by * RECORD_BYTES)
  end
end

local function bind(lane, field, policy, ends_at, id)
  count_key(lane, field, -1)
  lane.keys[field] = { policy = policy, ends_at = ends_at, id = id }
  set(lane.k, field, struct.pack('<BI8', policy, ends_at) .. id)
  rank(shard .. 'y', lane.name .. field, policy == 3 and ends_at)
  count_key(lane, field, 1)
end

local function unbind(lane, field)
  count_key(lane, field, -1)
  lane.keys[field] = false
  set(lane.k, field, false)
  rank(shard .. 'y', lane.name .. field, false)
end

-- The policy of a job's key and the field it is bound under, if it has one.
local function key_of(job)
  if job.key_size == 0 then
    return nil
  end
  local key = part(job, job.type_size + job.static_size + job.request_size, job.key_size)
  return string.byte(key), job.type_size .. ':' .. job.type .. sub(key, 10)
end

local function drop_key(job, ended)
  local policy, field = key_of(job)
  if policy == 2 or (policy == 1 and ended) then
    local binding = binding_of(job.lane, field)
    if binding and binding.id == job.id then
      unbind(job.lane, field)
    end
  end
end

-- The moves. ----------------------------------------------------------------------------------------------------

-- A step of a flow is kept at least as long as its result would be: its record is what the flow knows about itself.
local function end_at(job, keep_ms)
  keep_ms = has(job, IS_STEP) and max(keep_ms, job.ttl) or keep_ms
  job.finished_at, job.expires_at, job.deadline = now, now + keep_ms, 0
  drop_key(job, true)
end

local function end_dead(job, reason, error)
  move(job, FAILED, function()
    job.reason = reason
    end_at(job, keep_failed)
  end)
  note_of(job, 'failed', reason, error[1], error[4], error[5])
end

local function wait_again(job, state, delay)
  move(job, state, function()
    job.visible_at, job.deadline = now + delay, 0
    drop_progress(job)
    if released_for(job) then
      set_released_for(job)
    end
  end)
end

-- The wait after a failed attempt, by the policy that travels with the job. [RETRY-3]
local function backoff(job, random)
  local policy = cmsgpack.unpack(part(job, job.type_size, job.static_size))[3]
  local full = min(policy[3], policy[1] * policy[2] ^ (job.attempts - 1))
  if policy[4] == 'none' then
    return floor(full)
  elseif policy[4] == 'equal' then
    return floor(full / 2 + full / 2 * random)
  end
  return floor(full * random)
end

-- End a lease whose deadline has passed. It counts as an attempt. [RETRY-2, LEASE-3]
local function expire(job, random)
  local message = 'the lease of worker ' .. job.worker .. ' ran out'
  local error = { 'LeaseExpired', message, '', message, expired_print }
  remember(job, error)
  if job.attempts >= job.max_attempts then
    end_dead(job, LEASE_EXPIRED, error)
  else
    wait_again(job, RETRYING, backoff(job, random))
    note_of(job, 'expired', job.visible_at, error[1], error[4], error[5])
  end
end

local LANES_AT_ONCE, LANES_IN_FULL = 100, 10

-- Set the bound of a lane to what it should be, and say what that is.
local function set_right(index, set_name, name, known)
  local earliest = call('ZRANGE', lane_of(name)[set_name], 0, 0, 'WITHSCORES')[2]
  if not earliest then
    call('ZREM', shard .. index, name)
  elseif earliest ~= known then
    call('ZADD', shard .. index, earliest, name)
  end
  return earliest
end

-- What is over by now, of all lanes: up to `limit` { moment, member, lane }, oldest first; and what to call once that
-- has been dealt with, to set the bounds of these lanes right.
local function overdue(index, set_name, limit)
  local names = call('ZRANGEBYSCORE', shard .. index, '-inf', now, 'LIMIT', 0, LANES_AT_ONCE)
  local found = {}
  local share = #names <= LANES_IN_FULL and limit or math.ceil(limit * LANES_IN_FULL / #names)
  for _, name in ipairs(names) do
    local lane = lane_of(name)
    local members = call('ZRANGEBYSCORE', lane[set_name], '-inf', now, 'WITHSCORES', 'LIMIT', 0, share)
    for n = 1, #members, 2 do
      found[#found + 1] = { tonumber(members[n + 1]), members[n], lane }
    end
  end
  if #names > 1 then
    table.sort(found, function(a, b)
      return a[1] < b[1] or (a[1] == b[1] and bytes_before(a[2], b[2]))
    end)
  end
  return found, function()
    for _, name in ipairs(names) do
      set_right(index, set_name, name)
    end
  end
end

-- End up to `limit` expired leases, oldest deadline first, from the index of deadlines. [LEASE-3]
local function reap(limit, random)
  local found, settle = overdue('L', 'l', limit)
  local ended = {}
  for n = 1, min(limit, #found) do
    local lane, id = found[n][3], sub(found[n][2], 8)
    local job = find_any(lane, id)
    if job and job.state == LEASED then
      expire(job, (random + (n - 1) * 0.6180339887498949) % 1)
      ended[#ended + 1] = lane.name
      ended[#ended + 1] = id
    else
      rank(lane.l, found[n][2], false)
    end
  end
  finish_call()
  settle()
  return ended
end

-- When the next lease runs out, or nil. Each bound that has to be set right on the way was left by an earlier call.
local function next_deadline()
  for _ = 1, LANES_AT_ONCE do
    local head = call('ZRANGE', shard .. 'L', 0, 0, 'WITHSCORES')
    if not head[1] or set_right('L', 'l', head[1], head[2]) == head[2] then
      return tonumber(head[2])
    end
  end
  return now + 1
end

-- Judge an acknowledgement by the first line of the rule that fits; nil means: go ahead. [LEASE-1]
local NOT_FOUND, LOST, IS_CANCELED, EXPIRED = -1, -2, -3, -4

-- Whether there is a job, and it is the life of its id that is meant; -1 means whichever is there.
local function is_life(job, seq)
  return job and (seq < 0 or seq == job.seq)
end

local function judge(job, token, outcome)
  if not job then
    return NOT_FOUND
  elseif token == job.token and job.spent ~= 0 and job.spent == outcome then
    return job.spent_state
  elseif token ~= job.token or token <= 0 then
    return LOST
  elseif job.state == CANCELED then
    return IS_CANCELED
  elseif job.spent ~= 0 then
    return LOST
  elseif job.state ~= LEASED or now >= job.deadline then
    return EXPIRED
  end
  return nil
end

-- The refusal of a call that is made under a lease, { lane, id, token } or false, for each of `count` items; nil if the
-- lease is live or there is none.
local function refused_under(under, count)
  local refusal = under and judge(find(lane_of(under[1]), under[2]), under[3])
  if not refusal then
    return nil
  end
  local answers = {}
  for n = 1, count do
    answers[n] = { 'u', refusal }
  end
  return answers
end
