-- Changes how long finished jobs are kept, counted from now. [RESULT-1]   uses: jobs once
--
-- request: the number of the request; the items, each { lane, id, ttl_ms, sequence or -1 }
-- Answers each with 1, 0 if it has not ended, -1 for none. Safe to repeat: see `once.lua`.

local number, items = unpack(request)
local answers = answered(number)
if answers then
  return answers
end
load_all(items)
answers = {}
for n, item in ipairs(items) do
  local job = find(lane_of(item[1]), item[2])
  if not is_life(job, item[4]) then
    answers[n] = NOT_FOUND
  elseif job.state <= LEASED then
    answers[n] = 0
  else
    job.ttl, job.expires_at = item[3], now + item[3]
    stand(job, job.state, true)
    save(job)
    answers[n] = 1
  end
end
finish_call()
return answer(number, answers)
