-- Lists some of the tenants that have jobs or settings, by name.   uses: lanes
--
-- request: { tenant to start after, or to continue in if a queue is named; queue to start after or ''; most tenants;
--   most queues to read }
-- Answers { tenant, queue: where the next call continues, both '' at the end; tenant, ... }. Safe to repeat.

local after, after_queue, max_tenants, queues_left = unpack(request)

local function first_of(key)
  local low = after == '' and '-' or (after_queue == '' and '(' or '[') .. after
  return call('ZRANGEBYLEX', key, low, '+', 'LIMIT', 0, max_tenants)
end

-- Whether a tenant has jobs. Returns nil if that is not known yet: then `after_queue` is the last queue read.
local function has_jobs(tenant)
  after_queue = tenant == after and after_queue or ''
  while queues_left > 0 do
    local queues = names_after(shard .. 'Q:' .. tenant, after_queue, min(queues_left, 100))
    for _, queue in ipairs(queues) do
      queues_left, after_queue = queues_left - 1, queue
      if call('EXISTS', lane_named(tenant, queue).j) == 1 then
        return true
      end
    end
    if not queues[1] then
      return false
    end
  end
  return nil
end

local with_queues, with_settings = first_of(shard .. 'T'), first_of(shard .. 'S')
local a, b, answer, last_one = 1, 1, { '', '' }, ''
for _ = 1, max_tenants do
  local tenant, other = with_queues[a], with_settings[b]
  if not tenant and not other then
    return answer
  elseif other and (not tenant or not text_before(tenant, other)) then
    a, b, last_one = a + (tenant == other and 1 or 0), b + 1, other
    answer[#answer + 1] = other
  else
    a, last_one = a + 1, tenant
    local has_any = has_jobs(tenant)
    if has_any == nil then
      answer[1], answer[2] = tenant, after_queue
      return answer
    elseif has_any then
      answer[#answer + 1] = tenant
    end
  end
end
answer[1] = last_one
return answer
