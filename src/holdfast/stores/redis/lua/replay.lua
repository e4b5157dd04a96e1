-- Starts dead letters again. Of concurrent replays one wins. [DEAD-1, STATE-3]   uses: jobs lanes
--
-- request: the keys, each { lane, id }; { lane, id, token } of the lease that this is done under, or false
-- Answers each with 1, -1 for none, { 's', state } for one that is not failed, { 'k', id } if that job holds its key by
--   now, { 'q', ... } and { 'u', ... } as an enqueue does. Sent once.

-- Whether another job holds the key that this one would take again. [ENQ-3]
local function taken(job, field)
  local binding = binding_of(job.lane, field)
  local holder = binding and find(job.lane, binding.id)
  if not binding then
    return nil
  elseif binding.policy < 3 then
    return holder and holder.state <= LEASED and binding.id
  elseif binding.policy == 3 and binding.ends_at <= now then
    return nil
  end
  return binding.id
end

local keys, under = unpack(request)
local refused = refused_under(under, #keys)
if refused then
  return refused
end
load_all(keys)
local answers = {}
for n, item in ipairs(keys) do
  local lane = lane_of(item[1])
  local job = find(lane, item[2])
  if not job then
    answers[n] = NOT_FOUND
  elseif job.state ~= FAILED then
    answers[n] = { 's', shown(job) }
  else
    local policy, field = key_of(job)
    local holder = policy == 1 and taken(job, field)
    answers[n] = holder and { 'k', holder } or over_quota(lane)
    if answers[n] == nil then
      if policy == 1 then
        bind(lane, field, 1, 0, job.id)
      end
      move(job, READY, function()
        local extra = extra_of(job)
        extra[1], extra[2], extra[3], extra[5], extra[6] = extra[1] + 1, false, '', nil, nil
        job.extra = cmsgpack.pack(extra)
        job.attempts, job.visible_at, job.finished_at, job.expires_at, job.reason = 0, now, 0, 0, 0
      end)
      count_one(lane)
      note_of(job, 'replayed', now, extra_of(job)[1])
      answers[n] = 1
    end
  end
end
register_lanes()
finish_call()
return answers
