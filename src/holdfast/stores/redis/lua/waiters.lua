-- Offers: an idle worker leaves word of what it would take, and an enqueue hands it the job at once. [CLAIM-3]
--
-- O:QUEUE has the offers to take from any tenant, o:LANE those of workers of one tenant: hashes of
-- channel -> { until, how many more, how many at first, number, lease_ms, worker, tenant or false, queues }. `offers` and
-- `own_offers` of the counters say until when there are any. Not on a cluster, where nobody knows who hears a channel.
-- i:CHANNEL names what was handed to a worker, lane and id by token, until the worker has learned of it: a message may be
-- lost on its way.

local function places_of(tenant, queues)
  local places = {}
  for n, queue in ipairs(queues) do
    places[n] = shard .. (tenant and 'o:' .. lane_named(tenant, queue).name or 'O:' .. queue)
  end
  return places
end

-- Write an offer down wherever it counts; one that is used up, or `false`, goes.
local function write_offer(channel, places, offer)
  local raw = offer and offer[2] > 0 and cmsgpack.pack(offer)
  for _, place in ipairs(places) do
    if raw then
      call('HSET', place, channel, raw)
    else
      call('HDEL', place, channel)
    end
  end
end

-- Take a worker's offer back before it claims: how many jobs are on their way to it that it does not know of yet.
local function take_back(channel, places, number, given, got)
  local raw
  for _, place in ipairs(places) do
    raw = raw or call('HGET', place, channel) -- Not in the first where it was taken for one of the dead.
  end
  if not raw then
    return max(0, given - got) -- All used, as far as the worker knows what it offered.
  end
  local offer = cmsgpack.unpack(raw)
  write_offer(channel, places, false)
  return offer[4] == number and max(0, offer[3] - offer[2] - got) or 0
end

-- What was handed to a worker, as { lane and id, token, ... }, but for what it has learned of before, up to a token.
local function handed_to(channel, learned)
  local key = shard .. 'i:' .. channel
  if learned > 0 then
    call('ZREMRANGEBYSCORE', key, '-inf', whole(learned))
  end
  return call('ZRANGE', key, 0, -1, 'WITHSCORES')
end

-- Leave an offer; on the way, two others are looked at, so that those of the dead do not pile up. Where nobody comes any
-- more they go by themselves, after ten minutes at least, whatever lease the last one had.
local OFFERS_KEPT_MS = 600000

local function make_offer(channel, places, offer, lasts_ms)
  for _, place in ipairs(places) do
    local some = call('HRANDFIELD', place, 2, 'WITHVALUES')
    for n = 1, #some, 2 do
      if cmsgpack.unpack(some[n + 1])[1] <= now then
        call('HDEL', place, some[n])
      end
    end
  end
  write_offer(channel, places, offer)
  for _, place in ipairs(places) do
    call('PEXPIRE', place, max(OFFERS_KEPT_MS, 2 * lasts_ms))
  end
  local known = tonumber(counters[offer[7] and 9 or 8]) or 0
  call('HSET', KEYS[1], offer[7] and 'own_offers' or 'offers', whole(max(known, offer[1])))
end
