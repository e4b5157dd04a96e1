-- Reads some of a lane's jobs by time, the latest first.   uses: reading
--
-- request: { lane, ranges, time and, in ARGV[3], sequence number to start before, count, most bytes, time to stop at }
--   A range is { name of a sorted set (see LANE_KEYS), what its scores have beyond the time }.
-- Answers { now, 1 if there may be more, time, member, record, ... }. Safe to repeat.

local name, ranges, time, count, max_bytes, since = unpack(request)
local before = ARGV[3]
local lane = lane_of(name)

local function precedes(member)
  return bytes_before(member, before)
end

local found = {}
for _, range in ipairs(ranges) do
  local key, beyond = lane[range[1]], range[2]
  local first = call('ZCOUNT', key, '-inf', '(' .. int_text(beyond + since))
  local stop = count_before(key, beyond + time, precedes)
  if stop > first then
    local members = call('ZRANGE', key, max(first, stop - count), stop - 1, 'WITHSCORES')
    for n = 1, #members, 2 do
      found[#found + 1] = { tonumber(members[n + 1]) - beyond, members[n] }
    end
  end
end
table.sort(found, function(a, b)
  return a[1] > b[1] or (a[1] == b[1] and bytes_before(b[2], a[2]))
end)

return page_of(lane, found, count, max_bytes)
