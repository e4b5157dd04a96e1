-- Renews leases. [LEASE-1, LEASE-2]   uses: jobs
--
-- request: the items, each { lane, id, token, lease_ms }
-- Answers each with { deadline, now } or the refusal. Safe to repeat.

load_all(request)
local answers = {}
for n, item in ipairs(request) do
  local job = find(lane_of(item[1]), item[2])
  local answer = judge(job, item[3])
  if answer == nil then
    job.deadline = max(job.deadline, now + item[4])
    stand(job, LEASED, true)
    save(job)
    if all_events then
      note_of(job, 'extended', job.deadline)
    end
    answer = { job.deadline, now }
  end
  answers[n] = answer
end
finish_call()
return answers
