-- Tenants and their queues: their names, pauses, weights and quotas.

-- The settings of a lane and of its tenant, each { cost of a turn, weight, max_waiting }, false for what is not set.
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

-- The cost of a turn: by the weight of the lane, else of its tenant, else for weight 1. [TENANT-4]
local function cost_of(lane)
  local settings = settings_of(lane)
  return settings and (settings[1][SETTING_COST] or settings[2][SETTING_COST]) or TURN_COST
end

local function has_quota(lane)
  local settings = settings_of(lane)
  return settings and (settings[1][SETTING_MAX_WAITING] or settings[2][SETTING_MAX_WAITING])
end

-- The waiting jobs of a lane, including those that this call adds.
local function waiting_in_lane(lane)
  if not lane.waiting then
    lane.waiting = call('ZCARD', lane.w)
  end
  return lane.waiting
end

-- Up to `limit` names after a name, from a sorted set in the order of their bytes.
local function names_after(key, name, limit)
  return call('ZRANGEBYLEX', key, name == '' and '-' or '(' .. name, '+', 'LIMIT', 0, limit)
end

local MAX_QUEUES_COUNTED = 500

-- Continue the count of a tenant's waiting jobs with some of its queues. Returns whether it is complete.
local function continue_count(tenant)
  local counted_to = call('HGET', shard .. 'U', tenant)
  if not counted_to then
    return true
  end
  local queues, sum = names_after(shard .. 'Q:' .. tenant, counted_to, MAX_QUEUES_COUNTED), 0
  for _, queue in ipairs(queues) do
    sum = sum + call('ZCARD', lane_named(tenant, queue).w)
  end
  call('HINCRBY', shard .. 'W', tenant, sum)
  if #queues < MAX_QUEUES_COUNTED then
    call('HDEL', shard .. 'U', tenant)
    return true
  end
  call('HSET', shard .. 'U', tenant, queues[#queues])
  return false
end

-- The waiting jobs of a tenant in all its queues, including those that this call adds.
local tenants_waiting = {}

local function waiting_of_tenant(tenant)
  if not tenants_waiting[tenant] then
    continue_count(tenant)
    tenants_waiting[tenant] = tonumber(call('HGET', shard .. 'W', tenant)) or 0
  end
  return tenants_waiting[tenant]
end

-- Count a job that this call adds to a lane.
local function count_added(lane)
  if lane.waiting then
    lane.waiting = lane.waiting + 1
    local tenant = names_of(lane)
    tenants_waiting[tenant] = tenants_waiting[tenant] and tenants_waiting[tenant] + 1
  end
end

-- The refusal, if the lane or its tenant has reached its quota of waiting jobs; else nil. [TENANT-5]
local function over_quota(lane)
  local settings = settings_of(lane)
  if not settings then
    return nil
  end
  local quota = settings[1][SETTING_MAX_WAITING]
  if quota and waiting_in_lane(lane) >= quota then
    return { OVER_QUOTA, 1, waiting_in_lane(lane), quota }
  end
  quota = settings[2][SETTING_MAX_WAITING]
  waiting_in_lane(lane)
  if quota then
    local waiting = waiting_of_tenant(names_of(lane))
    if waiting >= quota then
      return { OVER_QUOTA, 0, waiting, quota }
    end
  end
  return nil
end

local function is_paused(lane)
  return any_paused and call('SISMEMBER', shard .. 'P', lane.name) == 1
end

-- Note that a tenant has this queue.
local function register_lane(lane)
  local tenant, queue = names_of(lane)
  if call('ZADD', shard .. 'Q:' .. tenant, 0, queue) == 1 then
    call('ZADD', shard .. 'T', 0, tenant)
  end
end

-- Note the queues that got jobs in this call.
local function register_lanes()
  for _, lane in ipairs(arrivals) do
    register_lane(lane)
  end
end
