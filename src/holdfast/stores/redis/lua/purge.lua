-- Forgets finished jobs now, with an event. [KEEP-1]   uses: jobs
--
-- request: the items, each { lane, id, finished_at or -1, sequence or -1 }
-- Answers each with 1 if it was purged, 0 if it is not at that end, -1 for none. Sent once.

local COUNT_MS, DROPPED = 30 * 86400000, 100 -- `PURGE_COUNT_MS` and `PURGE_COUNTS_DROPPED` of `core/job.py`.
local counts = {}

-- The number of a purge among those of its tenant, and which count it belongs to: hash `M`. [EVENT-1]
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

-- Counts are dropped some time after the last purge, which `K` has.
local function save_counts()
  if not next(counts) then
    return
  end
  for _, tenant in ipairs(call('ZRANGEBYSCORE', shard .. 'K', '-inf', '(' .. whole(now - COUNT_MS), 'LIMIT', 0, DROPPED)) do
    set(shard .. 'M', tenant, false)
    rank(shard .. 'K', tenant, false)
  end
  for tenant, counted in pairs(counts) do
    set(shard .. 'M', tenant, struct.pack('<I8I8', counted[1], counted[2]))
    rank(shard .. 'K', tenant, now)
  end
end

load_all(request)
local answers = {}
for n, item in ipairs(request) do
  local job = find(lane_of(item[1]), item[2])
  if not is_life(job, item[4]) then
    answers[n] = NOT_FOUND
  elseif job.state <= LEASED or (item[3] >= 0 and item[3] ~= job.finished_at) then
    answers[n] = 0
  else
    note_of(job, 'purged', count_purge(job))
    forget(job)
    answers[n] = 1
  end
end
save_counts()
finish_call()
return answers
