-- Lists some of the tenants that have jobs or settings, by name.   uses: lanes
--
-- request: { tenant to go on behind, or to go on in if a queue is named, queue to go on behind or '', how many tenants to
--   look at, how many queues }
-- Answers { tenant, queue: where the next call goes on, both '' after the last; tenant, ... }.

local after, behind, most, looks = unpack(request)

local function first_of(key)
  local low = after == '' and '-' or (behind == '' and '(' or '[') .. after
  return call('ZRANGEBYLEX', key, low, '+', 'LIMIT', 0, most)
end

-- Whether a tenant has jobs; nil if that is not known yet: the last queue that was looked at is then in `behind`.
local function has_jobs(tenant)
  behind = tenant == after and behind or ''
  while looks > 0 do
    local queues = names_behind(shard .. 'Q:' .. tenant, behind, min(looks, 100))
    for _, queue in ipairs(queues) do
      looks, behind = looks - 1, queue
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
for _ = 1, most do
  local tenant, other = with_queues[a], with_settings[b]
  if not tenant and not other then
    return answer
  elseif other and (not tenant or not text_before(tenant, other)) then
    a, b, last_one = a + (tenant == other and 1 or 0), b + 1, other
    answer[#answer + 1] = other
  else
    a, last_one = a + 1, tenant
    local has = has_jobs(tenant)
    if has == nil then
      answer[1], answer[2] = tenant, behind
      return answer
    elseif has then
      answer[#answer + 1] = tenant
    end
  end
end
answer[1] = last_one
return answer
