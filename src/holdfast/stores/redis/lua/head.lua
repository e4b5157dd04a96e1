-- The beginning of every script: the shard, the request and the store's clock.
--
-- KEYS[1] is the hash of the shard's counters, "PREFIX:{SHARD}:c". All other keys are made from it, under the same hash
-- tag. Names in keys come with their length: "4:acme6:emails" is the lane of a tenant's queue, and an id may follow it.
-- [TENANT-3]
-- On a cluster, KEYS[2] is a key that never exists: it keeps a script from starting while its slot moves (`client.py`).
-- ARGV[1] has the client's settings and ARGV[2] the request, both as msgpack.
-- Names in capitals that are not defined here come from `layout.py`.

local call, sub, floor = redis.call, string.sub, math.floor
local min, max = math.min, math.max
local shard = sub(KEYS[1], 1, -2)
local keep_failed, keep_canceled, all_events, expired_fingerprint = unpack(cmsgpack.unpack(ARGV[1]))
local request = ARGV[2] and cmsgpack.unpack(ARGV[2])

-- The last number given out; the shift of the clock and, if it is frozen, its instant; the number of the last event and
-- how many events were ever logged; whether any queue is paused, any tenant has settings, any a quota for all its
-- queues; until when there may be waiters for all tenants, and for one.
local last, shift, frozen, log_end, logged_total, any_paused, any_settings, any_quotas, waiters_until,
  own_waiters_until = unpack(call(
    'HMGET', KEYS[1], 'last', 'shift', 'frozen', 'log', 'logged', 'paused', 'settings', 'quotas', 'waiters',
    'own_waiters'
  ))
last, shift = tonumber(last) or 0, tonumber(shift) or 0
log_end, logged_total = tonumber(log_end) or 0, tonumber(logged_total) or 0
local micros
if frozen then
  micros = (tonumber(frozen) + shift) * 1000
else
  local time = call('TIME')
  micros = time[1] * 1000000 + time[2] + shift * 1000
end
local now = floor(micros / 1000)
