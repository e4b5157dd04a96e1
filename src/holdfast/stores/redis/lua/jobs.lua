-- Jobs: their indexes and transitions, as in `core/lifecycle.py`.

-- Add a job to the indexes of a state, or remove it.
local function set_indexed(job, state, present)
  local lane, member = job.lane, job.member
  if state < STATE_LEASED then
    zset_put(lane.w, member, present and (MAX_PRIORITY - job.priority) * PRIORITY_BAND + job.visible_at)
    if state == STATE_RETRYING then
      zset_put(lane.r, member, present and job.visible_at)
    end
  elseif state == STATE_LEASED then
    zset_put(lane.l, member, present and job.deadline)
    if present then
      add_bound('L', lane, job.deadline)
    end
  else
    zset_put(lane[state], member, present and job.finished_at)
    zset_put(lane.e, member, present and job.expires_at)
    if present then
      add_bound('E', lane, job.expires_at)
    end
  end
end

-- Records are packed by `save_and_commit`: a call may change a job more than once.
local unsaved = {}

local function save(job)
  unsaved[job] = true
end

local function save_and_commit()
  for job in pairs(unsaved) do
    local weight = #job.extra + #job.result
    if weight ~= job.weight then
      add_usage(job.lane, 0, 0, weight - job.weight)
      job.weight = weight
    end
    job.raw = pack_record(job)
    job.stop = #job.raw - #job.worker - #job.extra - #job.result
    hash_put(job.lane.j, job.id, job.raw)
  end
  unsaved = {}
  commit_call()
end

-- Change a job's state. `change` sets the fields that change with it.
local function transition(job, state, change)
  set_indexed(job, job.state, false)
  job.state = state
  change(job)
  set_indexed(job, state, true)
  save(job)
  if state < STATE_LEASED then
    note_arrival(job.lane, job.visible_at)
  elseif state > STATE_LEASED then
    hints.done[#hints.done + 1] = job.lane.name
    hints.done[#hints.done + 1] = job.id
  end
end

-- Log the next event of a job. The record counts it: the caller saves or forgets the job. [EVENT-1]
local function log_job_event(job, kind, a, b, c, d)
  job.events = job.events + 1
  log_event(kind, job.lane.name, job.id, job.type, job.attempts, job.token, job.worker, job.events, a, b, c, d)
end

-- Remove an ended job for good. [KEEP-1]
local function forget(job)
  set_indexed(job, job.state, false)
  unsaved[job] = nil
  hash_put(job.lane.j, job.id, false)
  local payload = job.payload_size
  if has_flag(job, FLAG_SEPARATE_PAYLOAD) then
    payload = call('HSTRLEN', job.lane.p, job.id)
    hash_put(job.lane.p, job.id, false)
  end
  add_usage(job.lane, -1, 0, -RECORD_BYTES - payload - job.weight)
  if has_flag(job, FLAG_RESULT_IN_BLOB) then
    blobs[#blobs + 1] = job.result
  end
  job.lane.jobs[job.id] = false
end

-- Fields that most jobs do not have: replays, progress, errors, and why they were released (`RecordExtra` in `layout.py`).
-- ----------

local function extra_of(job)
  if job.extra == '' then
    return { 0, false, '', {} }
  end
  return cmsgpack.unpack(job.extra)
end

local function clear_progress(job)
  if job.extra ~= '' then
    local extra = extra_of(job)
    if extra[EXTRA_FRACTION] then
      extra[EXTRA_FRACTION], extra[EXTRA_MESSAGE] = false, ''
      job.extra = cmsgpack.pack(extra)
    end
  end
end

-- Why the last worker released the job, and since when every worker has given that reason. [RETRY-6]
local function release_reason(job)
  if job.extra == '' then
    return nil, nil
  end
  local extra = extra_of(job)
  return extra[EXTRA_RELEASED_FOR], extra[EXTRA_FIRST_RELEASED_AT]
end

local function set_release_reason(job, reason, since)
  local extra = extra_of(job)
  extra[EXTRA_RELEASED_FOR], extra[EXTRA_FIRST_RELEASED_AT] = reason, since
  job.extra = cmsgpack.pack(extra)
end

local function add_error(job, error)
  local extra = extra_of(job)
  local errors = extra[EXTRA_ERRORS]
  errors[#errors + 1] = { error[ERROR_TYPE], error[ERROR_MESSAGE], error[ERROR_TRACEBACK], job.attempts, now }
  while #errors > ERRORS_KEPT do
    table.remove(errors, 1)
  end
  job.extra = cmsgpack.pack(extra)
end

-- Endings and retries. --------------------------------------------------------------------------------------------

-- The record of a flow's step is kept at least as long as its result would be: the flow reads it.
local function set_ended(job, keep_ms)
  keep_ms = has_flag(job, FLAG_FLOW_STEP) and max(keep_ms, job.ttl) or keep_ms
  job.finished_at, job.expires_at, job.deadline = now, now + keep_ms, 0
  release_key(job, true)
end

-- The values of an event that has an error.
local function error_data(error)
  return error[ERROR_TYPE], error[ERROR_SHORT_MESSAGE], error[ERROR_FINGERPRINT]
end

local function end_failed(job, reason, error)
  transition(job, STATE_FAILED, function()
    job.reason = reason
    set_ended(job, keep_failed)
  end)
  log_job_event(job, EVENT_FAILED, reason, error_data(error))
end

local function requeue(job, state, delay)
  transition(job, state, function()
    job.visible_at, job.deadline = now + delay, 0
    clear_progress(job)
    if release_reason(job) then
      set_release_reason(job)
    end
  end)
end

-- The wait after a failed attempt, by the policy of the job. [RETRY-3]
local function backoff_delay(job, random)
  local policy = cmsgpack.unpack(body_part(job, job.type_size, job.static_size))[STATIC_BACKOFF]
  local full = min(policy[BACKOFF_CAP_MS], policy[BACKOFF_BASE_MS] * policy[BACKOFF_FACTOR] ^ (job.attempts - 1))
  if policy[BACKOFF_JITTER] == 'none' then
    return floor(full)
  elseif policy[BACKOFF_JITTER] == 'equal' then
    return floor(full / 2 + full / 2 * random)
  end
  return floor(full * random)
end
