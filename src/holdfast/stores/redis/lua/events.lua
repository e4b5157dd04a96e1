-- Reads a stretch of the log. [EVENT-2]   uses: nothing
--
-- request: { number to go on after or -1 for the oldest kept, how many events are wanted, how many bytes at most }
-- Answers { number read up to is trimmed, number of the last event, greatest number that can be an offset,
--   number of its last event, how many, when, events, ... }.

local after, wanted, most_bytes = unpack(request)
local trimmed = tonumber(call('HGET', KEYS[1], 'trimmed')) or 0
local answer = { trimmed, tonumber(counters[4]) or 0, max(last, micros) }
if after < 0 then
  after = trimmed
end
local found, bytes = 0, 0
while after >= trimmed and found < wanted and bytes < most_bytes do
  local entry = call('XRANGE', shard .. 'e', whole(after + 1) .. '-0', '+', 'COUNT', 1)[1]
  if not entry then
    break
  end
  local number, fields = tonumber(string.match(entry[1], '^%d+')), entry[2]
  found, bytes = found + min(tonumber(fields[2]), number - after), bytes + #fields[8]
  answer[#answer + 1] = number
  answer[#answer + 1] = tonumber(fields[2])
  answer[#answer + 1] = tonumber(fields[6])
  answer[#answer + 1] = fields[8]
  after = number
end
return answer
