-- Records the progress of running jobs. [LEASE-1]   uses: records keys jobs leases
--
-- request: items, each { lane, id, token, fraction, message }
-- Answers each item with DONE or a refusal. Safe to repeat. Writes the records of the jobs.

load_items(request)
local answers = {}
for n, item in ipairs(request) do
  local job = find(lane_of(item[1]), item[2])
  local answer = judge_lease(job, item[3])
  if answer == nil then
    local extra = extra_of(job)
    extra[EXTRA_FRACTION], extra[EXTRA_MESSAGE] = item[4], item[5]
    job.extra = cmsgpack.pack(extra)
    save(job)
    if all_events then
      log_job_event(job, EVENT_PROGRESSED, item[4], item[5])
    end
    answer = DONE
  end
  answers[n] = answer
end
save_and_commit()
return answers
