-- Adds up what entries of the log say about what tenants keep, from where the last call ended. [TENANT-5, EVENT-2]
--   uses: log
--
-- request: { how old an entry may be, in milliseconds }
-- Answers { events kept in all, 1 if some are left to count, 1 if the oldest entry is too old }. Safe to repeat.

local ENTRIES, AT_ONCE = 1000, 50
local counted, left = tonumber(call('HGET', KEYS[1], 'counted')) or 0, true
local sums = {}
for _ = 1, ENTRIES / AT_ONCE do
  local entries = call('XRANGE', shard .. 'e', whole(counted + 1) .. '-0', '+', 'COUNT', AT_ONCE)
  for _, entry in ipairs(entries) do
    for tenant, events, jobs, keys, bytes in string.gmatch(entry[2][10], '(%S+) (%S+) (%S+) (%S+) (%S+)') do
      local sum = sums[tenant]
      if not sum then
        sum = { 0, 0, 0, 0 }
        sums[tenant] = sum
      end
      sum[1], sum[2], sum[3], sum[4] = sum[1] + events, sum[2] + jobs, sum[3] + keys, sum[4] + bytes
    end
    counted = tonumber(string.match(entry[1], '^%d+'))
  end
  if #entries < AT_ONCE then
    left = false
    break
  end
end
for tenant, sum in pairs(sums) do
  add_kept(tenant, sum)
end
if next(sums) then
  call('HSET', KEYS[1], 'counted', whole(counted))
end
local _, oldest = entry_behind(0)
local old = oldest and tonumber(oldest[6]) <= now - request[1]
local total = (tonumber(counters[5]) or 0) - (tonumber(call('HGET', KEYS[1], 'cut')) or 0)
return { total, left and 1 or 0, old and 1 or 0 }
