-- Records of jobs: packing, unpacking, reading. `layout.py` has the layout.

local function unpack_record(lane, id, raw)
  local state, attempts, spent, spent_state, events, reason, flags, worker_size, priority, extra_size,
    visible_at, token, deadline, claimed_at, finished_at, expires_at, ttl,
    max_attempts, type_size, key_size, static_size, request_size, payload_size, seq, enqueued_at =
    struct.unpack(RECORD_FORMAT, raw)
  local stop = RECORD_SIZE + type_size + static_size + request_size + key_size + payload_size
  return {
    lane = lane, id = id, state = state, priority = priority, attempts = attempts, max_attempts = max_attempts,
    spent = spent, spent_state = spent_state, events = events, reason = reason, flags = flags, type_size = type_size,
    static_size = static_size, request_size = request_size, key_size = key_size, payload_size = payload_size,
    seq = seq, visible_at = visible_at, enqueued_at = enqueued_at, token = token, deadline = deadline,
    claimed_at = claimed_at, finished_at = finished_at, expires_at = expires_at, ttl = ttl,
    raw = raw, stop = stop, type = sub(raw, RECORD_SIZE + 1, RECORD_SIZE + type_size),
    worker = sub(raw, stop + 1, stop + worker_size),
    extra = sub(raw, stop + worker_size + 1, stop + worker_size + extra_size),
    result = sub(raw, stop + worker_size + extra_size + 1),
    member = struct.pack('>I7', seq) .. id, weight = #raw - stop - worker_size,
  }
end

local function pack_record(job)
  return struct.pack(
    RECORD_FORMAT, job.state, job.attempts, job.spent, job.spent_state, job.events, job.reason, job.flags, #job.worker,
    job.priority, #job.extra, job.visible_at, job.token, job.deadline, job.claimed_at, job.finished_at, job.expires_at,
    job.ttl, job.max_attempts, job.type_size, job.key_size, job.static_size, job.request_size, job.payload_size,
    job.seq, job.enqueued_at
  ) .. sub(job.raw, RECORD_SIZE + 1, job.stop) .. job.worker .. job.extra .. job.result
end

local function has_flag(job, flag)
  return bit.band(job.flags, flag) ~= 0
end

-- Some bytes of the part of a record that never changes, `first` bytes after its beginning.
local function body_part(job, first, size)
  return sub(job.raw, RECORD_SIZE + first + 1, RECORD_SIZE + first + size)
end

-- Read the records of jobs into `raws`, with one command for each lane. `lanes_of[n]` is the lane of `ids[n]`. Lanes
-- with a single job are noted in `alone`, if that is given.
local function fetch_records(lanes_of, ids, raws, alone)
  local one = true
  for n = 2, #ids do
    one = one and lanes_of[n] == lanes_of[1]
  end
  if one then
    for first = 1, #ids, MAX_ARGUMENTS do
      local stop = min(first + MAX_ARGUMENTS - 1, #ids)
      local some = call('HMGET', lanes_of[1].j, unpack(ids, first, stop))
      for n = first, stop do
        raws[n] = some[n - first + 1]
      end
    end
    return
  end
  local positions = {}
  for n = 1, #ids do
    local lane = lanes_of[n]
    local known = positions[lane]
    if not known then
      positions[lane] = n
    elseif type(known) == 'number' then
      positions[lane] = { known, n }
    else
      known[#known + 1] = n
    end
  end
  for lane, known in pairs(positions) do
    if type(known) == 'number' then
      raws[known] = call('HGET', lane.j, ids[known])
      if alone then
        alone[lane] = true
      end
    else
      local some = {}
      for n, position in ipairs(known) do
        some[n] = ids[position]
      end
      for n, raw in ipairs(call('HMGET', lane.j, unpack(some))) do
        raws[known[n]] = raw
      end
    end
  end
end

-- Read jobs of one lane.
local function load_jobs(lane, ids)
  for first = 1, #ids, MAX_ARGUMENTS do
    local stop = min(first + MAX_ARGUMENTS - 1, #ids)
    local raws = call('HMGET', lane.j, unpack(ids, first, stop))
    for n = first, stop do
      local raw = raws[n - first + 1]
      lane.jobs[ids[n]] = raw and unpack_record(lane, ids[n], raw) or false
    end
  end
end

-- Read the jobs of a batch. The first two values of an item are lane and id.
local function load_items(items)
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
    load_jobs(lane_of(name), wanted[name])
  end
end

-- The job with this id, even if it is past its retention and waits to be pruned.
local function find_any(lane, id)
  if lane.jobs[id] == nil then
    load_jobs(lane, { id })
  end
  return lane.jobs[id]
end

local function is_forgotten(job)
  return job.expires_at > 0 and job.expires_at <= now
end

-- The job with this id, or nil.
local function find(lane, id)
  local job = find_any(lane, id)
  return job and not is_forgotten(job) and job or nil
end

-- The state to show: a scheduled or retrying job whose time has come is ready.
local function shown_state(job)
  if (job.state == STATE_SCHEDULED or job.state == STATE_RETRYING) and job.visible_at <= now then
    return STATE_READY
  end
  return job.state
end

-- Whether there is a job, and it has this sequence number. NONE fits any. An id that is used again has another number.
local function is_same_life(job, seq)
  return job and (seq == NONE or seq == job.seq)
end
