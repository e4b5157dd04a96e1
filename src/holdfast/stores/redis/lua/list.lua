-- Reads some of a lane's jobs in one of the three orders of a list.   uses: reading
--
-- request: { lane, names of the sorted sets (see LANE_KEYS), score to start after or false, count, most bytes }
-- ARGV[3]: the member to start after.
-- Answers { now, 1 if there may be more, score, member, record, ... }: waiting jobs in claim order, leased ones by
--   deadline, ended ones by time. Several sets are merged. Safe to repeat.

local name, sets, after_score, count, max_bytes = unpack(request)
local after_member = ARGV[3]
local lane = lane_of(name)

local function passed(member)
  return not bytes_before(after_member, member)
end

local found = {}
for _, set_name in ipairs(sets) do
  local key = lane[set_name]
  local first = after_score and count_before(key, after_score, passed) or 0
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

return page_of(lane, found, count, max_bytes)
