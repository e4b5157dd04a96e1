-- Cancels jobs; cancel wins. [CANCEL-1 to CANCEL-3]   uses: jobs once
--
-- request: the number of the request; the items, each { lane, id, only_waiting, sequence or -1 }
-- Answers each with the state it found (or led to), 4 for a running one that was left alone, -1 for none.
-- Safe to repeat: see `once.lua`.

local number, items = unpack(request)
local answers = answered(number)
if answers then
  return answers
end
load_all(items)
answers = {}
for n, item in ipairs(items) do
  local lane = lane_of(item[1])
  local job = find(lane, item[2])
  if not is_life(job, item[4]) then
    answers[n] = NOT_FOUND
  elseif job.state > LEASED or (job.state == LEASED and item[3]) then
    answers[n] = job.state
  else
    if job.state == LEASED then
      hints.canceled[#hints.canceled + 1] = lane.name
      hints.canceled[#hints.canceled + 1] = job.id
    end
    move(job, CANCELED, function()
      end_at(job, keep_canceled)
    end)
    note_of(job, 'canceled')
    answers[n] = CANCELED
  end
end
finish_call()
return answer(number, answers)
