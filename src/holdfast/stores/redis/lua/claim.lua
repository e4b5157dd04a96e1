-- Leases visible jobs, in order and in fair turns. [CLAIM-1 to CLAIM-5, TENANT-4, LEASE-3]
--   uses: records keys jobs leases lanes turns waiters picking granting
--
-- request: { tenant or false, queues, limit, lease_ms, worker, random, most expired leases to end first, registration
--   }. The registration of a worker with an inbox, else false: { inbox channel, number of the new registration, number
--   of the last one, its room, jobs received under it, how many jobs could start at once, most room, how long it lasts
--   in ms, whether jobs may have been handed off under the last one, last token that the worker knows of }
-- Answers { now, when to claim again or NONE, room of the registration or minus the jobs in flight, { lane and id,
--   token, ... } of jobs that were handed off, lane, id, record, lane, id, record, ... }.
-- Sent once: a lost reply costs a lease. [ENQ-8]
-- Reads and writes the lanes of the queues, their turns, the worker's registration, and the log.

local RECHECK_MS = 20 -- When to claim again if room was kept for jobs in flight: they may be lost.
local channel, number, last_number, last_room, last_received, free, max_room, lasts_ms, may_have_jobs, known_token =
  unpack(registration or {})
local tables, in_flight, handed_off = registration and waiter_tables(tenant, queues), 0, {}
if registration then
  in_flight = end_registration(channel, tables, last_number, last_room, last_received)
  limit = limit - in_flight
  handed_off = may_have_jobs and handed_off_to(channel, known_token) or handed_off
end

reap_expired(max_repairs, random)
pick_all()
lease_all()
save_and_commit()
for _, write_turns in ipairs(turn_writers) do
  write_turns()
end

local next_at = needs_rescan and now or nil

local function consider(moment)
  if moment and (not next_at or moment < next_at) then
    next_at = moment
  end
end

-- When to claim again, if there were fewer jobs than asked for. [CLAIM-3]
if picked < limit then
  consider(next_deadline())
  for _, queue in ipairs(queues) do
    if not tenant then
      consider(tonumber(call('ZRANGE', shard .. 'N:' .. queue, 0, 0, 'WITHSCORES')[2]))
    elseif not is_paused(lane_named(tenant, queue)) then
      consider(earliest_visible(lane_named(tenant, queue)))
    end
  end
end

local room = registration and max(0, min(limit - picked, free - in_flight - picked, max_room)) or 0
if room > 0 then
  local waiter = { now + lasts_ms, room, room, number, lease_ms, worker, tenant, queues }
  register_waiter(channel, tables, waiter, lasts_ms)
elseif in_flight > 0 then
  consider(now + RECHECK_MS)
end

local answer = { now, next_at or NONE, room > 0 and room or -in_flight, handed_off }
for n = 1, picked do
  if found[n] then
    local size = #answer
    answer[size + 1], answer[size + 2] = lanes_of[n].name, ids[n]
    answer[size + 3] = new_records[n] or lanes_of[n].jobs[ids[n]].raw
  end
end
return answer
