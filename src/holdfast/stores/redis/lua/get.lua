-- Reads jobs as they are. [TENANT-2]   uses: nothing
--
-- request: the keys, each { lane, id }
-- Answers each with { now, record or false }.

local answer = {}
for n, key in ipairs(request) do
  answer[n] = { now, call('HGET', lane_of(key[1]).j, key[2]) }
end
return answer
