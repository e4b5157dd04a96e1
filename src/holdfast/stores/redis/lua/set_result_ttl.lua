-- Changes how long finished jobs are kept, counted from now. [RESULT-1]   uses: jobs
--
-- request: the items, each { lane, id, ttl_ms, sequence or -1 }
-- Answers each with 1, 0 if it has not ended, -1 for none. Safe to repeat.

load_all(request)
local answers = {}
for n, item in ipairs(request) do
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
return answers
