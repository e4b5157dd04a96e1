-- Reads a part of the log. [EVENT-2, EVENT-3]   uses: log
--
-- request: { number to start after or NONE for the oldest kept, wanted events, most bytes, tenant of the reader or
--   false for all tenants }
-- Answers { last number that is gone, number that the answer starts after, number of the last event, greatest number
--   that can be an offset, { tenant, last number of its events that is gone, ... } for a reader of all tenants, then of
--   each chunk its last number, count, time and events }. Safe to repeat. Reads the log.

local after, wanted, max_bytes, tenant = unpack(request)
local gone = trimmed_for(tenant)
if after < 0 then
  after = max(trimmed, gone)
end
local gaps = {}
if not tenant and wanted > 0 and after >= gone then
  gaps = call('ZRANGEBYSCORE', shard .. 'G', '(' .. int_text(after), '+inf', 'WITHSCORES')
end
local answer = { gone, after, log_end, max(last, micros), gaps }
local found, bytes = 0, 0
while after >= gone and found < wanted and bytes < max_bytes do
  local number, fields = entry_after(after)
  if not number then
    break
  end
  found, bytes = found + min(tonumber(fields[ENTRY_COUNT]), number - after), bytes + #fields[ENTRY_EVENTS]
  answer[#answer + 1] = number
  answer[#answer + 1] = tonumber(fields[ENTRY_COUNT])
  answer[#answer + 1] = tonumber(fields[ENTRY_AT])
  answer[#answer + 1] = fields[ENTRY_EVENTS]
  after = number
end
return answer
