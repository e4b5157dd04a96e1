-- Records progress of running jobs. [LEASE-1]   uses: jobs
--
-- request: the items, each { lane, id, token, fraction, message }
-- Answers each with 0 or the refusal. Safe to repeat.

load_all(request)
local answers = {}
for n, item in ipairs(request) do
  local job = find(lane_of(item[1]), item[2])
  local answer = judge(job, item[3])
  if answer == nil then
    local extra = extra_of(job)
    extra[2], extra[3] = item[4], item[5]
    job.extra = cmsgpack.pack(extra)
    save(job)
    if all_events then
      note_of(job, 'progressed', item[4], item[5])
    end
    answer = 0
  end
  answers[n] = answer
end
finish_call()
return answers
