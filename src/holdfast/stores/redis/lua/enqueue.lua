-- Takes in new jobs. [ENQ-1 to ENQ-8, TENANT-5]   uses: jobs lanes
--
-- request: the items, each { lane, id, sizes of type, settings, request id, key and payload, size of a payload that
--   stands elsewhere, priority, max_attempts, delay_ms, run_at or -1, result_ttl_ms, replace_failed, request id is the id }
-- ARGV[3]: what never changes of each, one after another; ARGV[4]: the large payloads likewise.
-- Answers each with its state if it is queued, else { 'd', id, state or -1 } for a duplicate, { 'c', id, result } for
--   one that ran already, { 'q', 1 for the queue's quota or 0 for the tenant's, waiting, limit }.
-- Safe to repeat where each item has a request id. [ENQ-8]

local bodies, large = ARGV[3], ARGV[4]

-- What the job that is already there answers.
local function answer_of(job)
  if job.state == COMPLETED then
    return { 'c', job.id, job.result }
  end
  return { 'd', job.id, shown(job) }
end

local function by_id(existing, request_id, replace_failed)
  if not existing or forgotten(existing) then
    return nil
  end
  local its_request = existing.id
  if not has(existing, REQUEST_IS_ID) then
    its_request = part(existing, existing.type_size + existing.static_size, existing.request_size)
  end
  if request_id ~= '' and request_id == its_request then
    return shown(existing)
  elseif existing.state == CANCELED or (existing.state == FAILED and replace_failed) then
    return nil
  end
  return answer_of(existing)
end

local function by_key(lane, binding)
  if not binding then
    return nil
  end
  local holder = find(lane, binding.id)
  if binding.policy < 3 then
    -- These are dropped as the job ends or starts; a job that is gone holds nothing.
    return holder and holder.state <= LEASED and answer_of(holder) or nil
  elseif binding.policy == 3 and binding.ends_at <= now then
    return nil
  end
  return holder and answer_of(holder) or { 'd', binding.id, -1 }
end

local function fresh(lane, item, id, body, key_field)
  local visible_at = max(now, item[12] < 0 and now + item[11] or item[12])
  local job = {
    lane = lane, id = id, state = visible_at > now and SCHEDULED or READY, priority = item[9], attempts = 0,
    max_attempts = item[10], spent = 0, spent_state = 0, reason = 0, 
    flags = (item[8] > 0 and PAYLOAD_ELSEWHERE or 0) + (item[15] and REQUEST_IS_ID or 0),
    type_size = item[3], static_size = item[4], request_size = item[5], key_size = item[6], payload_size = item[7],
    seq = tick(1), visible_at = visible_at, enqueued_at = now, token = 0, deadline = 0, claimed_at = 0,
    finished_at = 0, expires_at = 0, ttl = item[13], type = sub(body, 1, item[3]), worker = '', extra = '',
    result = '', body = body,
  }
  job.member = struct.pack('>I7', job.seq) .. id
  lane.jobs[id] = job
  stand(job, job.state, true)
  save(job)
  arrive(lane, visible_at)
  if key_field then
    local policy, ttl = struct.unpack('<BI8', body, item[3] + item[4] + item[5] + 1)
    bind(lane, key_field, policy, policy == 3 and now + ttl or 0, id)
  end
  note('enqueued', job, job.priority, job.max_attempts, visible_at)
  lane.waiting = lane.waiting and lane.waiting + 1
  return job.state
end

load_all(request)
local answers, at, large_at = {}, 1, 1
for n, item in ipairs(request) do
  local lane, id = lane_of(item[1]), item[2]
  local stop = at + item[3] + item[4] + item[5] + item[6] + item[7]
  local body = sub(bodies, at, stop - 1)
  local request_id = item[15] and id or sub(body, item[3] + item[4] + 1, item[3] + item[4] + item[5])
  local key_field = nil
  if item[6] > 0 then
    local first = item[3] + item[4] + item[5]
    key_field = item[3] .. ':' .. sub(body, 1, item[3]) .. sub(body, first + 10, first + item[6])
  end
  local existing = find_any(lane, id)
  local answer = by_id(existing, request_id, item[14])
  if answer == nil and key_field then
    local binding = binding_of(lane, key_field)
    -- A key that is held by the very job which this one takes the place of is free.
    if not (existing and binding and binding.id == id and not forgotten(existing)) then
      answer = by_key(lane, binding)
    end
  end
  if answer == nil then
    answer = over_quota(lane)
  end
  if answer == nil then
    if existing then
      forget(existing)
    end
    answer = fresh(lane, item, id, body, key_field)
    if item[8] > 0 then
      set(lane.p, id, sub(large, large_at, large_at + item[8] - 1))
    end
  end
  answers[n] = answer
  at, large_at = stop, large_at + item[8]
end
register_lanes()
finish_call()
return answers
