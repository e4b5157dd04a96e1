-- Idempotency keys. [ENQ-3]
--
-- The hash k:LANE has a binding for each key that is held: its policy, when it ends (0: at no fixed time), and the
-- job's id. `y` has keys with a time to live by its end.

-- The binding of a key, or false.
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

-- Keys that outlive their job are counted. [TENANT-5]
local function count_lasting_key(lane, field, by)
  local binding = binding_of(lane, field)
  if binding and binding.policy >= POLICY_TTL then
    add_usage(lane, 0, by, by * RECORD_BYTES)
  end
end

local function bind(lane, field, policy, ends_at, id)
  count_lasting_key(lane, field, -1)
  lane.keys[field] = { policy = policy, ends_at = ends_at, id = id }
  hash_put(lane.k, field, struct.pack('<BI8', policy, ends_at) .. id)
  zset_put(shard .. 'y', lane.name .. field, policy == POLICY_TTL and ends_at)
  count_lasting_key(lane, field, 1)
end

local function unbind(lane, field)
  count_lasting_key(lane, field, -1)
  lane.keys[field] = false
  hash_put(lane.k, field, false)
  zset_put(shard .. 'y', lane.name .. field, false)
end

-- The policy of a job's key and its field in k:LANE, if the job has a key.
local function key_of_job(job)
  if job.key_size == 0 then
    return nil
  end
  local key = body_part(job, job.type_size + job.static_size + job.request_size, job.key_size)
  return string.byte(key), job.type_size .. ':' .. job.type .. sub(key, 10)
end

-- Release the key of a job that starts or has ended, if its policy says so.
local function release_key(job, ended)
  local policy, field = key_of_job(job)
  if policy == POLICY_UNTIL_STARTED or (policy == POLICY_UNTIL_TERMINAL and ended) then
    local binding = binding_of(job.lane, field)
    if binding and binding.id == job.id then
      unbind(job.lane, field)
    end
  end
end
