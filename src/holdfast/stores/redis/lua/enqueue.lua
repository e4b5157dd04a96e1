-- Takes in new jobs. [ENQ-1 to ENQ-8, TENANT-5]   uses: jobs lanes, after lone_enqueue
--
-- request: columns, one value for each item: lanes (or one for all), ids, sizes of type, settings, request id, key and
--   payload, size of a payload that stands elsewhere, priority, max_attempts, delay_ms, run_at or -1, result_ttl_ms,
--   replace_failed, request id is the id; then, once: no id stands twice, and none has a key; { lane, id, token } of the
--   lease that this is done under, or false; by place, 1 for a step of a flow, or false for none
-- ARGV[3]: what never changes of each, one after another; ARGV[4]: the large payloads likewise.
-- Answers each with its state if it is queued, else { 'd', id, state or -1 } for a duplicate, { 'c', id, result } for
--   one that ran already, { 'q', 1 for the queue's quota or 0 for the tenant's, waiting, limit }; all with { 'u', refusal }
--   if that lease is over.
-- Safe to repeat where each item has a request id. [ENQ-8]

local names, ids, types, statics, requests, keys, payloads, larges, priorities, attempts, delays, run_ats, ttls,
  replaces, sames, plain, under, steps = unpack(request)
local refused = refused_under(under, #ids)
if refused then
  return refused
end
local bodies, large = ARGV[3], ARGV[4]
local answers, at, large_at = {}, 1, 1

-- Put a new job in its place: the record, the order it is claimed in, the event.
local function put(lane, n, body, seq)
  local id, priority = ids[n], priorities[n]
  local visible_at = max(now, run_ats[n] < 0 and now + delays[n] or run_ats[n])
  local state = visible_at > now and SCHEDULED or READY
  local flags = (larges[n] > 0 and PAYLOAD_ELSEWHERE or 0) + (sames[n] and REQUEST_IS_ID or 0)
    + (steps and steps[n] and IS_STEP or 0)
  local raw = struct.pack(
    HEAD, state, 0, 0, 0, 1, 0, flags, 0, priority, 0, visible_at, 0, 0, 0, 0, 0, ttls[n],
    attempts[n], types[n], keys[n], statics[n], requests[n], payloads[n], seq, now
  ) .. body
  set(lane.j, id, raw)
  rank(lane.w, struct.pack('>I7', seq) .. id, (9 - priority) * BAND + visible_at)
  arrive(lane, visible_at)
  note(KINDS.enqueued, lane.name, id, sub(body, 1, types[n]), 0, 0, '', 1, priority, attempts[n], visible_at)
  local tally = tallies[lane.name]
  tally[2], tally[4] = tally[2] + 1, tally[4] + RECORD_BYTES + payloads[n] + larges[n]
  if larges[n] > 0 then
    set(lane.p, id, sub(large, large_at, large_at + larges[n] - 1))
  end
  return state, raw
end

local function body_of(n)
  local size = types[n] + statics[n] + requests[n] + keys[n] + payloads[n]
  at = at + size
  return sub(bodies, at - size, at - 1)
end

-- The common case: ids that are all new and different, no keys, no quotas. Else nothing is done.
local function put_all()
  if not plain then
    return false
  end
  local lanes_of, found = {}, {}
  for n = 1, #ids do
    lanes_of[n] = lane_of(names[n] or names[1])
    if lanes_of[n] ~= lanes_of[n - 1] and has_quota(lanes_of[n]) then
      return false
    end
  end
  fetch(lanes_of, ids, found)
  for n = 1, #ids do
    if found[n] then
      return false
    end
  end
  local seq = tick(#ids)
  for n = 1, #ids do
    answers[n] = put(lanes_of[n], n, body_of(n), seq + n - 1)
    large_at = large_at + larges[n]
  end
  return true
end

-- What the job that is already there answers.
local function answer_of(job)
  if job.state == COMPLETED then
    return { 'c', job.id, job.result }
  end
  return { 'd', job.id, shown(job) }
end

local function by_id(existing, request_id, replace_failed)
  if not existing then
    return nil
  end
  local its_request = existing.id
  if not has(existing, REQUEST_IS_ID) then
    its_request = part(existing, existing.type_size + existing.static_size, existing.request_size)
  end
  if request_id ~= '' and request_id == its_request then
    -- Also past its retention, while there is a trace of it: a repetition must not run the job again. [ENQ-8]
    return shown(existing)
  elseif forgotten(existing) then
    return nil
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

local function put_one(n)
  local lane, id, body = lane_of(names[n] or names[1]), ids[n], body_of(n)
  local key_at = types[n] + statics[n] + requests[n]
  local request_id = sames[n] and id or sub(body, types[n] + statics[n] + 1, key_at)
  local existing = find_any(lane, id)
  local answer = by_id(existing, request_id, replaces[n])
  local field
  if keys[n] > 0 then
    field = types[n] .. ':' .. sub(body, 1, types[n]) .. sub(body, key_at + 10, key_at + keys[n])
  end
  if answer == nil and field then
    local binding = binding_of(lane, field)
    -- A key that is held by the very job which this one takes the place of is free.
    if not (existing and binding and binding.id == id and not forgotten(existing)) then
      answer = by_key(lane, binding)
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
  local state, raw = put(lane, n, body, tick(1))
  lane.jobs[id] = parse(lane, id, raw)
  count_one(lane)
  if field then
    local policy, ttl = struct.unpack('<BI8', body, key_at + 1)
    bind(lane, field, policy, policy == 3 and now + ttl or 0, id)
  end
  return state
end

if not put_all() then
  for n = 1, #ids do
    answers[n] = put_one(n)
    large_at = large_at + larges[n]
  end
end
register_lanes()
finish_call()
return answers
