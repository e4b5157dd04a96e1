-- Reads some of a lane's jobs by time, the latest first.   uses: nothing
--
-- request: { lane, ranges, time and, in ARGV[3], sequence number to start before, count, most bytes, time to stop at }
--   A range is { name of a sorted set (see LANE_KEYS), what its scores have beyond the time }.
-- Answers { now, 1 if there may be more, time, member, record, ... }. Safe to repeat.

local name, ranges, time, count, max_bytes, since = unpack(request)
local before = ARGV[3]
local lane = lane_of(name)

-- How many members of a set come before the place to start before. By bisection among those of its time.
local function preceding(key, score)
  local low = call('ZCOUNT', key, '-inf', '(' .. int_text(score))
  local high = call('ZCOUNT', key, '-inf', int_text(score))
  while low < high do
    local middle = floor((low + high) / 2)
    if bytes_before(call('ZRANGE', key, middle, middle)[1], before) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local found = {}
for _, range in ipairs(ranges) do
  local key, beyond = lane[range[1]], range[2]
  local first = call('ZCOUNT', key, '-inf', '(' .. int_text(beyond + since))
  local stop = preceding(key, beyond + time)
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

local answer, bytes = { now, #found >= count and 1 or 0 }, 0
for n = 1, min(#found, count) do
  local raw = call('HGET', lane.j, sub(found[n][2], 8)) or ''
  bytes = bytes + #raw
  if bytes > max_bytes and n > 1 then
    answer[2] = 1
    break
  end
  answer[#answer + 1] = int_text(found[n][1])
  answer[#answer + 1] = found[n][2]
  answer[#answer + 1] = raw
end
return answer
