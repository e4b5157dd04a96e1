-- Reads jobs. [TENANT-2]   uses: nothing
--
-- request: keys, each { lane, id }
-- Answers each key with { now, record or false }. Safe to repeat.

local answer = {}
for n, key in ipairs(request) do
  answer[n] = { now, call('HGET', lane_of(key[1]).j, key[2]) }
end
return answer
