-- What a job waits for in its queue. [TENANT-2, CLAIM-2, TENANT-4]   uses: records lanes turns
--
-- request: { tenant, queue, id }
-- Answers { now, record or false, paused, jobs ahead, other tenants with visible work }. A shard that does not have the
-- tenant counts the other tenants alone. Safe to repeat. Writes nothing.
-- Reads the record, up to 12 ranges of the lane's sorted set, and up to 10 of each tenant that may have work, which are
-- OTHERS_SCAN at most.

local tenant, queue, id = unpack(request)
local own = lane_named(tenant, queue)

-- The jobs that come before a visible one: of each higher priority those that are due, of its own all before it.
local function jobs_ahead(job)
  local band = (MAX_PRIORITY - job.priority) * PRIORITY_BAND
  local rank = call('ZRANK', own.w, job.member) or 0
  local count = rank - call('ZCOUNT', own.w, '-inf', '(' .. int_text(band))
  for low = 0, band - 1, PRIORITY_BAND do
    count = count + call('ZCOUNT', own.w, low, low + now)
  end
  return min(count, AHEAD_LIMIT + 1)
end

local function count_others()
  local seen, count = { [tenant] = true }, 0
  local maybe = call('ZRANGE', shard .. 'T:' .. queue, 0, OTHERS_SCAN - 1)
  for _, name in ipairs(call('ZRANGEBYSCORE', shard .. 'N:' .. queue, '-inf', now, 'LIMIT', 0, OTHERS_SCAN)) do
    maybe[#maybe + 1] = name
  end
  for n = 1, min(#maybe, OTHERS_SCAN) do
    local name = maybe[n]
    local lane = lane_named(name, queue)
    if not seen[name] and count <= OTHERS_LIMIT and not is_paused(lane) and next_visible(new_scan(lane, 1)) then
      count = count + 1
    end
    seen[name] = true
  end
  return count
end

local raw = call('HGET', own.j, id)
local job = raw and unpack_record(own, id, raw)
local paused = is_paused(own) and 1 or 0
if job and (job.state >= STATE_LEASED or job.visible_at > now) then
  return { now, raw, paused, 0, 0 }
end
return { now, raw, paused, job and jobs_ahead(job) or 0, count_others() }
