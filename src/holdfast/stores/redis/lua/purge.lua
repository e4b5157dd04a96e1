-- Forgets finished jobs now, with an event. [KEEP-1]   uses: jobs
--
-- request: the items, each { lane, id, finished_at or -1, sequence or -1 }
-- Answers each with 1 if it was purged, 0 if it is not at that end, -1 for none. Sent once.

load_all(request)
local answers = {}
for n, item in ipairs(request) do
  local job = find(lane_of(item[1]), item[2])
  if not is_life(job, item[4]) then
    answers[n] = NOT_FOUND
  elseif job.state <= LEASED or (item[3] >= 0 and item[3] ~= job.finished_at) then
    answers[n] = 0
  else
    note_of(job, 'purged')
    forget(job)
    answers[n] = 1
  end
end
finish_call()
return answers
