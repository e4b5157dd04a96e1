-- Extends leases. [LEASE-1, LEASE-2]   uses: records keys jobs leases
--
-- request: items, each { lane, id, token, lease_ms }
-- Answers each item with { deadline, now } or a refusal. Safe to repeat. Reads and writes the lanes of the jobs.

load_items(request)
local answers = {}
for n, item in ipairs(request) do
  local job = find(lane_of(item[1]), item[2])
  local answer = judge_lease(job, item[3])
  if answer == nil then
    job.deadline = max(job.deadline, now + item[4])
    set_indexed(job, STATE_LEASED, true)
    save(job)
    if all_events then
      log_job_event(job, EVENT_EXTENDED, job.deadline)
    end
    answer = { job.deadline, now }
  end
  answers[n] = answer
end
save_and_commit()
return answers
