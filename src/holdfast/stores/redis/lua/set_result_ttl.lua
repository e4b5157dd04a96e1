-- Changes how long finished jobs are kept, counted from now. [RESULT-1]   uses: records keys jobs replies
--
-- request: { number of the request, items }; each item { lane, id, ttl_ms, sequence number or NONE }
-- Answers each item with DONE, NOT_TERMINAL or REFUSED_NOT_FOUND. Safe to repeat: see `replies.lua`.
-- Writes the records of the jobs and the index `E`.

local request_number, items = unpack(request)
local answers = stored_answers(request_number)
if answers then
  return answers
end
load_items(items)
answers = {}
for n, item in ipairs(items) do
  local job = find(lane_of(item[1]), item[2])
  if not is_same_life(job, item[4]) then
    answers[n] = REFUSED_NOT_FOUND
  elseif job.state <= STATE_LEASED then
    answers[n] = NOT_TERMINAL
  else
    job.ttl, job.expires_at = item[3], now + item[3]
    set_indexed(job, job.state, true)
    save(job)
    answers[n] = DONE
  end
end
save_and_commit()
return store_answers(request_number, answers)
