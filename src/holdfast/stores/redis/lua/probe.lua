-- Says whether a claim over all tenants may find something here, and how much of it is this shard's fair share, without
-- claiming.   uses: lanes
--
-- request: { queues }
-- Answers { now, 1 if it may, when to look again or -1, weight of the tenants that may have visible work, in turns of
--   weight 0.0001 }.

local LANES_WEIGHED = 100
local may, next_at, weight = 0, nil, 0

local function look_at(moment)
  if moment and moment <= now then
    may = 1
  elseif moment and (not next_at or moment < next_at) then
    next_at = moment
  end
end

-- The weight of some tenants of a queue; where there are many, that of the first stands for all.
local function weigh(queue, tenants, count)
  local sum = 0
  for _, tenant in ipairs(tenants) do
    sum = sum + 10000 * 10000 / cost_of(lane_named(tenant, queue))
  end
  return #tenants > 0 and sum * count / #tenants or 0
end

look_at(tonumber(call('ZRANGE', shard .. 'L', 0, 0, 'WITHSCORES')[2]))
for _, queue in ipairs(request[1]) do
  local turns, next_up = shard .. 'T:' .. queue, shard .. 'N:' .. queue
  look_at(tonumber(call('ZRANGE', next_up, 0, 0, 'WITHSCORES')[2]))
  local present = call('ZCARD', turns)
  if present > 0 then
    may = 1
  end
  weight = weight + weigh(queue, call('ZRANGE', turns, 0, LANES_WEIGHED - 1), present)
  local due = call('ZRANGEBYSCORE', next_up, '-inf', now, 'LIMIT', 0, LANES_WEIGHED)
  local entering = {}
  for _, tenant in ipairs(due) do
    if not call('ZSCORE', turns, tenant) then
      entering[#entering + 1] = tenant
    end
  end
  weight = weight + weigh(queue, entering, #entering * call('ZCOUNT', next_up, '-inf', now) / max(1, #due))
end
return { now, may, next_at or -1, math.ceil(weight) }
