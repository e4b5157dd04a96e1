-- Pages of a lane's jobs.

-- How many members of a set come before a place: those with a lower score, and those with this score of which `precedes`
-- is true. By bisection: the member at the place may be gone by now.
local function count_before(key, score, precedes)
  local low = call('ZCOUNT', key, '-inf', '(' .. int_text(score))
  local high = call('ZCOUNT', key, '-inf', int_text(score))
  while low < high do
    local middle = floor((low + high) / 2)
    if precedes(call('ZRANGE', key, middle, middle)[1]) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

-- The first of the found { number, member }, with their records: { now, 1 if there may be more, number, member, record,
-- ... }. At least one, and no more than `count` or `max_bytes`.
local function page_of(lane, found, count, max_bytes)
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
end
