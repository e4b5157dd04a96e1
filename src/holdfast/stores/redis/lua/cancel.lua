-- Cancels jobs. Cancel wins over any state that is not terminal. [CANCEL-1 to CANCEL-3]
--   uses: records keys jobs replies
--
-- request: { number of the request, items }; each item { lane, id, only_waiting, sequence number or NONE, by }
-- Answers each item with the job's state after the call, or REFUSED_NOT_FOUND. A leased job that `only_waiting` leaves alone
-- stays leased.
-- Safe to repeat: see `replies.lua`. Reads and writes the lanes of the jobs and the log.

local request_number, items = unpack(request)
local answers = stored_answers(request_number)
if answers then
  return answers
end
load_items(items)
answers = {}
for n, item in ipairs(items) do
  local lane = lane_of(item[1])
  local job = find(lane, item[2])
  if not is_same_life(job, item[4]) then
    answers[n] = REFUSED_NOT_FOUND
  elseif job.state > STATE_LEASED or (job.state == STATE_LEASED and item[3]) then
    answers[n] = job.state
  else
    if job.state == STATE_LEASED then
      hints.canceled[#hints.canceled + 1] = lane.name
      hints.canceled[#hints.canceled + 1] = job.id
    end
    transition(job, STATE_CANCELED, function()
      set_ended(job, keep_canceled)
    end)
    log_job_event(job, EVENT_CANCELED, item[5])
    answers[n] = STATE_CANCELED
  end
end
save_and_commit()
return store_answers(request_number, answers)
