-- Enqueues jobs. [ENQ-1 to ENQ-8, TENANT-5]
--   uses: records keys jobs leases lanes, after single_enqueue
--
-- request: { lanes (one for each item, or one for all), ids, sizes of type, settings, request id, key and payload, size
--   of a separate payload or 0, priorities, max_attempts, delay_ms, run_at or NONE, result_ttl_ms, replace_failed,
--   whether the request id is the id; and, once: whether no id is named twice and none has a key, the parent lease {
--   lane, id, token } or false, { position = 1 } for steps of a flow or false }
-- ARGV[3]: type, settings, request id, key and payload of each item, joined. ARGV[4]: the separate payloads, joined.
-- Answers each item with its state if it is queued, else { DUPLICATE, id, state or NONE }, { ALREADY_COMPLETED, id,
--   result } or { OVER_QUOTA, 1 for the queue's quota or 0 for the tenant's, waiting, limit }; all of them with {
--   PARENT_REFUSED, refusal } if the parent lease is over.
-- Safe to repeat if each item has a request id. [ENQ-8]
-- Reads and writes the lanes of the jobs, the tenants' queues and counts, and the log.

local refused = refused_by_parent(parent_lease, #ids)
if refused then
  return refused
end
local bodies, large = ARGV[3], ARGV[4]
local answers, at, large_at = {}, 1, 1

-- Add a new job: its record, its place in claim order, its event.
local function put(lane, n, body, seq)
  local id, priority = ids[n], priorities[n]
  local visible_at = max(now, run_ats[n] < 0 and now + delays[n] or run_ats[n])
  local state = visible_at > now and STATE_SCHEDULED or STATE_READY
  local flags = (large_sizes[n] > 0 and FLAG_SEPARATE_PAYLOAD or 0) + (request_is_id[n] and FLAG_REQUEST_IS_ID or 0)
    + (steps and steps[n] and FLAG_FLOW_STEP or 0)
  local raw = struct.pack(
    RECORD_FORMAT, state, 0, 0, 0, 1, 0, flags, 0, priority, 0, visible_at, 0, 0, 0, 0, 0, ttls[n],
    max_attempts[n], type_sizes[n], key_sizes[n], static_sizes[n], request_sizes[n], payload_sizes[n], seq, now
  ) .. body
  hash_put(lane.j, id, raw)
  zset_put(lane.w, struct.pack('>I7', seq) .. id, (MAX_PRIORITY - priority) * PRIORITY_BAND + visible_at)
  note_arrival(lane, visible_at)
  local type = sub(body, 1, type_sizes[n])
  log_event(EVENT_ENQUEUED, lane.name, id, type, 0, 0, '', 1, priority, max_attempts[n], visible_at)
  local usage = usage_changes[lane.name]
  usage[USAGE_JOBS] = usage[USAGE_JOBS] + 1
  usage[USAGE_BYTES] = usage[USAGE_BYTES] + RECORD_BYTES + payload_sizes[n] + large_sizes[n]
  if large_sizes[n] > 0 then
    hash_put(lane.p, id, sub(large, large_at, large_at + large_sizes[n] - 1))
  end
  return state, raw
end

local function body_of(n)
  local size = type_sizes[n] + static_sizes[n] + request_sizes[n] + key_sizes[n] + payload_sizes[n]
  at = at + size
  return sub(bodies, at - size, at - 1)
end

-- The common case: all ids are new and different, without keys and quotas. Returns false, and does nothing, otherwise.
local function put_all()
  if not plain then
    return false
  end
  local lanes_of, found = {}, {}
  for n = 1, #ids do
    lanes_of[n] = lane_of(lane_names[n] or lane_names[1])
    if lanes_of[n] ~= lanes_of[n - 1] and has_quota(lanes_of[n]) then
      return false
    end
  end
  fetch_records(lanes_of, ids, found)
  for n = 1, #ids do
    if found[n] then
      return false
    end
  end
  local seq = next_numbers(#ids)
  for n = 1, #ids do
    answers[n] = put(lanes_of[n], n, body_of(n), seq + n - 1)
    large_at = large_at + large_sizes[n]
  end
  return true
end

-- The answer if this job exists already.
local function answer_of(job)
  if job.state == STATE_COMPLETED then
    return { ALREADY_COMPLETED, job.id, job.result }
  end
  return { DUPLICATE, job.id, shown_state(job) }
end

local function answer_by_id(existing, request_id, replace_failed)
  if not existing then
    return nil
  end
  local its_request = existing.id
  if not has_flag(existing, FLAG_REQUEST_IS_ID) then
    its_request = body_part(existing, existing.type_size + existing.static_size, existing.request_size)
  end
  if request_id ~= '' and request_id == its_request then
    -- Also past its retention, as long as the record exists: a repeated request must not run the job again. [ENQ-8]
    return shown_state(existing)
  elseif is_forgotten(existing) then
    return nil
  elseif existing.state == STATE_CANCELED or (existing.state == STATE_FAILED and replace_failed) then
    return nil
  end
  return answer_of(existing)
end

local function answer_by_key(lane, binding)
  if not binding then
    return nil
  end
  local holder = find(lane, binding.id)
  if binding.policy < POLICY_TTL then
    -- These keys are released when the job ends or starts; a job that is gone holds none.
    return holder and holder.state <= STATE_LEASED and answer_of(holder) or nil
  elseif binding.policy == POLICY_TTL and binding.ends_at <= now then
    return nil
  end
  return holder and answer_of(holder) or { DUPLICATE, binding.id, NONE }
end

local function put_one(n)
  local lane, id, body = lane_of(lane_names[n] or lane_names[1]), ids[n], body_of(n)
  local key_at = type_sizes[n] + static_sizes[n] + request_sizes[n]
  local request_id = request_is_id[n] and id or sub(body, type_sizes[n] + static_sizes[n] + 1, key_at)
  local existing = find_any(lane, id)
  local answer = answer_by_id(existing, request_id, replace_failed_flags[n])
  local field
  if key_sizes[n] > 0 then
    field = type_sizes[n] .. ':' .. sub(body, 1, type_sizes[n]) .. sub(body, key_at + 10, key_at + key_sizes[n])
  end
  if answer == nil and field then
    local binding = binding_of(lane, field)
    -- A key held by the job that this one replaces is free.
    if not (existing and binding and binding.id == id and not is_forgotten(existing)) then
      answer = answer_by_key(lane, binding)
    end
  end
  if answer == nil then
    answer = over_quota(lane)
  end
  if answer ~= nil then
    return answer
  end
  if existing then
    forget(existing)
  end
  local state, raw = put(lane, n, body, next_numbers(1))
  lane.jobs[id] = unpack_record(lane, id, raw)
  count_added(lane)
  if field then
    local policy, ttl = struct.unpack('<BI8', body, key_at + 1)
    bind(lane, field, policy, policy == POLICY_TTL and now + ttl or 0, id)
  end
  return state
end

if not put_all() then
  for n = 1, #ids do
    answers[n] = put_one(n)
    large_at = large_at + large_sizes[n]
  end
end
register_lanes()
save_and_commit()
return answers
