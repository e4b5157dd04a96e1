-- Reads a stretch of the log. [EVENT-2, EVENT-3]   uses: log
--
-- request: { number to go on after or -1 for the oldest kept, how many events are wanted, how many bytes at most,
--   tenant that reads or false for a reader of all }
-- Answers { number up to which the log is gone, number that was gone on from, number of the last event, greatest number
--   that can be an offset, { tenant, number up to which its events are gone, ... } for a reader of all,
--   number of its last event, how many, when, events, ... }.

local after, wanted, most_bytes, tenant = unpack(request)
local gone = gone_for(tenant)
if after < 0 then
  after = max(trimmed, gone)
end
local gaps = {}
if not tenant and wanted > 0 and after >= gone then
  gaps = call('ZRANGEBYSCORE', shard .. 'G', '(' .. whole(after), '+inf', 'WITHSCORES')
end
local answer = { gone, after, tonumber(counters[4]) or 0, max(last, micros), gaps }
local found, bytes = 0, 0
while after >= gone and found < wanted and bytes < most_bytes do
  local number, fields = entry_behind(after)
  if not number then
    break
  end
  found, bytes = found + min(tonumber(fields[2]), number - after), bytes + #fields[8]
  answer[#answer + 1] = number
  answer[#answer + 1] = tonumber(fields[2])
  answer[#answer + 1] = tonumber(fields[6])
  answer[#answer + 1] = fields[8]
  after = number
end
return answer
