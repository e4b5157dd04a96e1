-- Part of `claim.lua`: the leases of the picked jobs. [CLAIM-1, RETRY-1]

local deadline = now + lease_ms
local deadline_text = int_text(deadline)
local worker_size, times = string.char(#worker), struct.pack('<I8I8', deadline, now)
local new_records = {} -- By position among the picked jobs, for those leased in place.
local alone, batches_of, starts = {}, {}, {}

-- Lease a job: a fresh token, a deadline, one more attempt.
local function lease_in_full(job, token)
  transition(job, STATE_LEASED, function()
    job.attempts, job.token, job.deadline = job.attempts + 1, token, deadline
    job.worker, job.claimed_at, job.spent, job.spent_state = worker, now, 0, 0
    clear_progress(job)
    release_key(job, false)
  end)
  log_job_event(job, EVENT_CLAIMED, job.visible_at, deadline)
end

-- The same for most jobs, which have no key, no errors and no replays: it makes only the changed bytes of the record.
local function lease_in_place(n, id, raw, token)
  local lane, member = lanes_of[n], members[n]
  if not raw then -- There is no record for this index entry: remove the entry.
    return zset_put(lane.w, member, false)
  end
  local state, attempts, events, extra_size, visible_at, type_size, key_size, static_size, request_size, payload_size =
    struct.unpack(CLAIM_FORMAT, raw)
  if key_size > 0 or extra_size > 0 or state == STATE_RETRYING then
    local job = unpack_record(lane, id, raw)
    lane.jobs[id] = job
    return lease_in_full(job, token)
  end
  local start = starts[256 * events + attempts]
  if not start then
    start = struct.pack('<BBBBI4', STATE_LEASED, attempts + 1, 0, 0, events + 1)
    starts[256 * events + attempts] = start
  end
  local stop = RECORD_SIZE + type_size + static_size + request_size + payload_size
  local record = start .. sub(raw, AT_REASON, AT_WORKER_SIZE - 1) .. worker_size .. sub(raw, AT_PRIORITY, AT_TOKEN - 1)
    .. struct.pack('<I8', token) .. times .. sub(raw, AT_FINISHED_AT, stop) .. worker
  new_records[n] = record
  if popped[n] or alone[lane] then
    -- The lane's only job in this claim: collecting its writes would take longer than it saves.
    call('HSET', lane.j, id, record)
    if not popped[n] and call('ZREM', lane.w, member) == 1 then
      count_waiting(lane, -1)
    end
    call('ZADD', lane.l, deadline_text, member)
  else
    -- The same as `hash_put` and `zset_put`, with the batches looked up once for each lane.
    local batches = batches_of[lane]
    if not batches then
      batches = { batch_of(hashes, lane.j, 'HSET'), batch_of(zsets, lane.w, 'ZREM'), batch_of(zsets, lane.l, 'ZADD') }
      batches_of[lane] = batches
    end
    local records, gone, leased = batches[1], batches[2], batches[3]
    local at = records.n
    records[at + 1], records[at + 2], records.n = id, record, at + 2
    at = gone.n + 1
    gone[at], gone.n = member, at
    at = leased.n
    leased[at + 1], leased[at + 2], leased.n = deadline_text, member, at + 2
  end
  add_bound('L', lane, deadline)
  local type = sub(raw, RECORD_SIZE + 1, RECORD_SIZE + type_size)
  log_event(EVENT_CLAIMED, lane.name, id, type, attempts + 1, token, worker, events + 1, visible_at, deadline)
end

-- Records are read lane by lane. Leases are granted in the order of the turns.
local function lease_all()
  if not all_popped then
    fetch_records(lanes_of, ids, found, alone)
  end
  local token = next_numbers(picked)
  for n = 1, picked do
    lease_in_place(n, ids[n], found[n], token + n - 1)
  end
end
