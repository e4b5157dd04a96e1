-- Adds up what tenants keep, from what log entries state, continuing where the last call ended. [TENANT-5, EVENT-2]
--   uses: log
--
-- request: { greatest age of an entry in ms }
-- Answers { events kept in all, 1 if entries are left to count, 1 if the oldest entry is too old }.
-- Safe to repeat. Reads the log; writes the counts n:* and the counter `counted`.

local MAX_ENTRIES, ENTRIES_PER_READ = 1000, 50
local counted, left = tonumber(call('HGET', KEYS[1], 'counted')) or 0, true
local sums = {}
for _ = 1, MAX_ENTRIES / ENTRIES_PER_READ do
  local entries = call('XRANGE', shard .. 'e', int_text(counted + 1) .. '-0', '+', 'COUNT', ENTRIES_PER_READ)
  for _, entry in ipairs(entries) do
    for tenant, events, jobs, keys, bytes in string.gmatch(entry[2][ENTRY_USAGE], '(%S+) (%S+) (%S+) (%S+) (%S+)') do
      local sum = sums[tenant]
      if not sum then
        sum = { 0, 0, 0, 0 }
        sums[tenant] = sum
      end
      sum[USAGE_EVENTS], sum[USAGE_JOBS] = sum[USAGE_EVENTS] + events, sum[USAGE_JOBS] + jobs
      sum[USAGE_KEYS], sum[USAGE_BYTES] = sum[USAGE_KEYS] + keys, sum[USAGE_BYTES] + bytes
    end
    counted = tonumber(string.match(entry[1], '^%d+'))
  end
  if #entries < ENTRIES_PER_READ then
    left = false
    break
  end
end
for tenant, sum in pairs(sums) do
  store_usage(tenant, sum)
end
if next(sums) then
  call('HSET', KEYS[1], 'counted', int_text(counted))
end
local _, oldest = entry_after(0)
local old = oldest and tonumber(oldest[ENTRY_AT]) <= now - request[1]
local total = logged_total - (tonumber(call('HGET', KEYS[1], 'cut')) or 0)
return { total, left and 1 or 0, old and 1 or 0 }
