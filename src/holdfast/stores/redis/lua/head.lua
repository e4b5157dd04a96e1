-- What every script begins with: the shard's keys, the call, and the store's clock.
--
-- KEYS[1] is the shard's counters, "PREFIX:{SHARD}:c". Every other key is made here, under the same hash tag, from
-- names that came length-prefixed through ARGV: a lane is "4:acme6:emails", and what follows it is an id. [TENANT-3]
-- On a cluster KEYS[2] is a key that never exists: a script does not begin while its slot is on its way, see `link.py`.
-- ARGV[1] has the settings of the client, ARGV[2] the call itself, both as msgpack.

local call, sub, floor = redis.call, string.sub, math.floor
local min, max = math.min, math.max
local shard = sub(KEYS[1], 1, -2)
local keep_failed, keep_canceled, all_events, expired_print = unpack(cmsgpack.unpack(ARGV[1]))
local request = ARGV[2] and cmsgpack.unpack(ARGV[2])

local counters = call(
  'HMGET', KEYS[1], 'last', 'shift', 'frozen', 'log', 'logged', 'paused', 'settings', 'offers', 'own_offers', 'quotas'
)
local last = tonumber(counters[1]) or 0
local shift = tonumber(counters[2]) or 0
local micros
if counters[3] then
  micros = (tonumber(counters[3]) + shift) * 1000
else
  local time = call('TIME')
  micros = time[1] * 1000000 + time[2] + shift * 1000
end
local now = floor(micros / 1000)
