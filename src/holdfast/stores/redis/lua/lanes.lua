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

-- How many jobs of a tenant wait, in all its queues; added up once for a call.
local tenants_waiting = {}

local function waiting_of(tenant)
  if not tenants_waiting[tenant] then
    local sum = 0
    for _, queue in ipairs(call('SMEMBERS', shard .. 'Q:' .. tenant)) do
      sum = sum + call('ZCARD', lane_named(tenant, queue).w)
    end
    tenants_waiting[tenant] = sum
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
  if call('SADD', shard .. 'Q:' .. tenant, queue) == 1 then
    call('SADD', shard .. 'T', tenant)
  end
end

-- Note the lanes that got jobs in this call.
local function register_lanes()
  for _, lane in ipairs(arrivals) do
    register(lane)
  end
end
