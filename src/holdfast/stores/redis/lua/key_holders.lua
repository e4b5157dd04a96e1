-- Reads which jobs hold idempotency keys. [ENQ-3]   uses: nothing
--
-- request: keys, each { lane, field of the lane's hash of keys }
-- Answers each key with the id of the job that holds it, or false. Safe to repeat.

local answer = {}
for n, key in ipairs(request) do
  local raw = call('HGET', lane_of(key[1]).k, key[2])
  if raw then
    local _, ends_at = struct.unpack('<BI8', raw) -- 0: at no fixed time.
    raw = (ends_at == 0 or ends_at > now) and sub(raw, 10)
  end
  answer[n] = raw
end
return answer
