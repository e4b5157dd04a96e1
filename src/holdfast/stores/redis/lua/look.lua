-- Says whether a claim over all tenants may find something here, without claiming.   uses: nothing
--
-- request: { queues }
-- Answers { now, 1 if it may, when to look again or -1 }.

local may, next_at = 0, nil

local function look_at(moment)
  if moment and moment <= now then
    may = 1
  elseif moment and (not next_at or moment < next_at) then
    next_at = moment
  end
end

look_at(tonumber(call('ZRANGE', shard .. 'L', 0, 0, 'WITHSCORES')[2]))
for _, queue in ipairs(request[1]) do
  look_at(tonumber(call('ZRANGE', shard .. 'N:' .. queue, 0, 0, 'WITHSCORES')[2]))
  if call('EXISTS', shard .. 'T:' .. queue) == 1 then
    may = 1
  end
end
return { now, may, next_at or -1 }
