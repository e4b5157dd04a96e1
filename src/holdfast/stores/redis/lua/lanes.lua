-- What is known of tenants and their queues: which there are, who is paused, weights and quotas.

-- The settings of a lane and of its tenant, each { cost of a turn, weight, max_waiting } with false for what is not set.
local any_settings, any_paused = counters[7], counters[6]

local function settings_of(lane)
  if not any_settings then
    return nil
  end
  if lane.settings == nil then
    local tenant, queue = names_of(lane)
    lane.settings = {}
    for n, raw in ipairs(call('HMGET', shard .. 's:' .. tenant, 'q' .. queue, 't')) do
      lane.settings[n] = raw and cmsgpack.unpack(raw) or {}
    end
  end
  return lane.settings
end

-- What a turn costs this lane: its own weight, else its tenant's, else 1. [TENANT-4]
local function cost_of(lane)
  local settings = settings_of(lane)
  return settings and (settings[1][1] or settings[2][1]) or 10000
end

local function has_quota(lane)
  local settings = settings_of(lane)
  return settings and (settings[1][3] or settings[2][3])
end

-- How many jobs of a lane wait, what this call adds included.
local function waiting_in(lane)
  if not lane.waiting then
    lane.waiting = call('ZCARD', lane.w)
  end
  return lane.waiting
end

-- The names behind one in a sorted set that has them in the order of their bytes.
local function names_behind(key, name, limit)
  return call('ZRANGEBYLEX', key, name == '' and '-' or '(' .. name, '+', 'LIMIT', 0, limit)
end

-- Go on with the count of a tenant's waiting jobs, by some of its queues: whether it has come to its end.
local function count_more(tenant)
  local most = 500
  local counted_to = call('HGET', shard .. 'U', tenant)
  if not counted_to then
    return true
  end
  local queues, sum = names_behind(shard .. 'Q:' .. tenant, counted_to, most), 0
  for _, queue in ipairs(queues) do
    sum = sum + call('ZCARD', lane_named(tenant, queue).w)
  end
  call('HINCRBY', shard .. 'W', tenant, sum)
  if #queues < most then
    call('HDEL', shard .. 'U', tenant)
    return true
  end
  call('HSET', shard .. 'U', tenant, queues[#queues])
  return false
end

-- How many jobs of a tenant wait, in all its queues, what this call adds included.
local tenants_waiting = {}

local function waiting_of(tenant)
  if not tenants_waiting[tenant] then
    count_more(tenant)
    tenants_waiting[tenant] = tonumber(call('HGET', shard .. 'W', tenant)) or 0
  end
  return tenants_waiting[tenant]
end

-- A job was added to a lane.
local function count_one(lane)
  if lane.waiting then
    lane.waiting = lane.waiting + 1
    local tenant = names_of(lane)
    tenants_waiting[tenant] = tenants_waiting[tenant] and tenants_waiting[tenant] + 1
  end
end

-- The refusal, if the lane or the tenant has all the waiting jobs that it may. [TENANT-5]
local function over_quota(lane)
  local settings = settings_of(lane)
  if not settings then
    return nil
  end
  local most = settings[1][3]
  if most and waiting_in(lane) >= most then
    return { 'q', 1, waiting_in(lane), most }
  end
  most = settings[2][3]
  waiting_in(lane)
  if most then
    local waiting = waiting_of(names_of(lane))
    if waiting >= most then
      return { 'q', 0, waiting, most }
    end
  end
  return nil
end

local function is_paused(lane)
  return any_paused and call('SISMEMBER', shard .. 'P', lane.name) == 1
end

local function register(lane)
  local tenant, queue = names_of(lane)
  if call('ZADD', shard .. 'Q:' .. tenant, 0, queue) == 1 then
    call('ZADD', shard .. 'T', 0, tenant)
  end
end

-- Note the lanes that got jobs in this call.
local function register_lanes()
  for _, lane in ipairs(arrivals) do
    register(lane)
  end
end
