-- Says whether a claim over all tenants may find jobs in this shard, and what its fair share is, without claiming.
--   uses: lanes
--
-- request: { queues }
-- Answers { now, 1 if it may find jobs, when to ask again or NONE, weight of the tenants that may have visible work, in
--   units of 0.0001 }. Safe to repeat. Reads the indexes of leases and turns.

local MAX_LANES_WEIGHED = 100
local may_have_work, next_at, weight = 0, nil, 0

local function consider(moment)
  if moment and moment <= now then
    may_have_work = 1
  elseif moment and (not next_at or moment < next_at) then
    next_at = moment
  end
end

-- The weight of `count` tenants of a queue, estimated from the first of them.
local function weigh(queue, tenants, count)
  local sum = 0
  for _, tenant in ipairs(tenants) do
    sum = sum + TURN_COST * TURN_COST / cost_of(lane_named(tenant, queue))
  end
  return #tenants > 0 and sum * count / #tenants or 0
end

consider(tonumber(call('ZRANGE', shard .. 'L', 0, 0, 'WITHSCORES')[2]))
for _, queue in ipairs(request[1]) do
  local turns, next_up = shard .. 'T:' .. queue, shard .. 'N:' .. queue
  consider(tonumber(call('ZRANGE', next_up, 0, 0, 'WITHSCORES')[2]))
  local present = call('ZCARD', turns)
  if present > 0 then
    may_have_work = 1
  end
  weight = weight + weigh(queue, call('ZRANGE', turns, 0, MAX_LANES_WEIGHED - 1), present)
  local due = call('ZRANGEBYSCORE', next_up, '-inf', now, 'LIMIT', 0, MAX_LANES_WEIGHED)
  local entering = {}
  for _, tenant in ipairs(due) do
    if not call('ZSCORE', turns, tenant) then
      entering[#entering + 1] = tenant
    end
  end
  weight = weight + weigh(queue, entering, #entering * call('ZCOUNT', next_up, '-inf', now) / max(1, #due))
end
return { now, may_have_work, next_at or NONE, math.ceil(weight) }
