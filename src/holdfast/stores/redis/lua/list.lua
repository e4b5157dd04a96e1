-- Reads some of a lane's jobs in one of the three orders of a list.   uses: nothing
--
-- request: { lane, names of the sorted sets (see LANE_KEYS), score to start after or false, count, most bytes }
-- ARGV[3]: the member to start after.
-- Answers { now, 1 if there may be more, score, member, record, ... }: waiting jobs in claim order, leased ones by
--   deadline, ended ones by time. Several sets are merged. Safe to repeat.

local name, sets, after_score, count, max_bytes = unpack(request)
local after_member = ARGV[3]
local lane = lane_of(name)

-- How many members of a set come up to the one to start after. By bisection: that one may be gone by now.
local function passed(key)
  if not after_score then
    return 0
  end
  local low = call('ZCOUNT', key, '-inf', '(' .. int_text(after_score))
  local high = call('ZCOUNT', key, '-inf', int_text(after_score))
  while low < high do
    local middle = floor((low + high) / 2)
    if not bytes_before(after_member, call('ZRANGE', key, middle, middle)[1]) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local found = {}
for _, set_name in ipairs(sets) do
  local key = lane[set_name]
  local first = passed(key)
  local members = call('ZRANGE', key, first, first + count - 1, 'WITHSCORES')
  for n = 1, #members, 2 do
    found[#found + 1] = { tonumber(members[n + 1]), members[n] }
  end
end
if #sets > 1 then
  table.sort(found, function(a, b)
    return a[1] < b[1] or (a[1] == b[1] and bytes_before(a[2], b[2]))
  end)
end

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
