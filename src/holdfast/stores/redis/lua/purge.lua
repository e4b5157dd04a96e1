-- Forgets finished jobs now, with an event. [KEEP-1]   uses: records keys jobs
--
-- request: items, each { lane, id, finished_at or NONE, sequence number or NONE, by }
-- Answers each item with DONE, NOT_TERMINAL if the job has not ended at that time, or REFUSED_NOT_FOUND.
-- Sent once. Reads and writes the lanes of the jobs, the purge counts and the log.
--
-- The hash `M` has the count of each tenant's purges and the series that it belongs to; `K` has tenants by their last
-- purge.

local counts = {}

-- The number of a purge among those of its tenant, and its series: a new one begins when a count was dropped. [EVENT-1]
local function count_purge(job)
  local tenant = names_of(job.lane)
  local counted = counts[tenant]
  if not counted then
    local raw = call('HGET', shard .. 'M', tenant)
    counted = raw and { struct.unpack('<I8I8', raw) } or { job.seq, 0 }
    counts[tenant] = counted
  end
  counted[2] = counted[2] + 1
  return counted[2], counted[1]
end

-- Save the counts, and drop those whose last purge was long ago.
local function save_counts()
  if not next(counts) then
    return
  end
  local before = '(' .. int_text(now - PURGE_COUNT_MS)
  local old = call('ZRANGEBYSCORE', shard .. 'K', '-inf', before, 'LIMIT', 0, PURGE_COUNTS_DROPPED)
  for _, tenant in ipairs(old) do
    hash_put(shard .. 'M', tenant, false)
    zset_put(shard .. 'K', tenant, false)
  end
  for tenant, counted in pairs(counts) do
    hash_put(shard .. 'M', tenant, struct.pack('<I8I8', counted[1], counted[2]))
    zset_put(shard .. 'K', tenant, now)
  end
end

load_items(request)
local answers = {}
for n, item in ipairs(request) do
  local job = find(lane_of(item[1]), item[2])
  if not is_same_life(job, item[4]) then
    answers[n] = REFUSED_NOT_FOUND
  elseif job.state <= STATE_LEASED or (item[3] ~= NONE and item[3] ~= job.finished_at) then
    answers[n] = NOT_TERMINAL
  else
    local number, series = count_purge(job)
    log_job_event(job, EVENT_PURGED, number, series, item[5])
    forget(job)
    answers[n] = DONE
  end
end
save_counts()
save_and_commit()
return answers
