-- Replays failed jobs. Of concurrent replays one wins. [DEAD-1, STATE-3]   uses: records keys jobs leases lanes
--
-- request: { keys, parent lease { lane, id, token } or false, by }; each key { lane, id }
-- Answers each key with DONE, REFUSED_NOT_FOUND, { NOT_FAILED, state }, { KEY_HELD, id } if that job holds its
--   idempotency key, { OVER_QUOTA, ... } or { PARENT_REFUSED, ... } as an enqueue does.
-- Sent once. Reads and writes the lanes of the jobs and the log.

-- The id of the job that holds this job's key by now, if there is one. [ENQ-3]
local function key_holder(job, field)
  local binding = binding_of(job.lane, field)
  local holder = binding and find(job.lane, binding.id)
  if not binding then
    return nil
  elseif binding.policy < POLICY_TTL then
    return holder and holder.state <= STATE_LEASED and binding.id
  elseif binding.policy == POLICY_TTL and binding.ends_at <= now then
    return nil
  end
  return binding.id
end

local keys, parent_lease, by = unpack(request)
local refused = refused_by_parent(parent_lease, #keys)
if refused then
  return refused
end
load_items(keys)
local answers = {}
for n, item in ipairs(keys) do
  local lane = lane_of(item[1])
  local job = find(lane, item[2])
  if not job then
    answers[n] = REFUSED_NOT_FOUND
  elseif job.state ~= STATE_FAILED then
    answers[n] = { NOT_FAILED, shown_state(job) }
  else
    local policy, field = key_of_job(job)
    local holder = policy == POLICY_UNTIL_TERMINAL and key_holder(job, field)
    answers[n] = holder and { KEY_HELD, holder } or over_quota(lane)
    if answers[n] == nil then
      if policy == POLICY_UNTIL_TERMINAL then
        bind(lane, field, POLICY_UNTIL_TERMINAL, 0, job.id)
      end
      transition(job, STATE_READY, function()
        local extra = extra_of(job)
        extra[EXTRA_REPLAYS] = extra[EXTRA_REPLAYS] + 1
        extra[EXTRA_FRACTION], extra[EXTRA_MESSAGE] = false, ''
        extra[EXTRA_RELEASED_FOR], extra[EXTRA_FIRST_RELEASED_AT] = nil, nil
        job.extra = cmsgpack.pack(extra)
        job.attempts, job.visible_at, job.finished_at, job.expires_at, job.reason = 0, now, 0, 0, 0
      end)
      count_added(lane)
      log_job_event(job, EVENT_REPLAYED, now, extra_of(job)[EXTRA_REPLAYS], by)
      answers[n] = DONE
    end
  end
end
register_lanes()
save_and_commit()
return answers
