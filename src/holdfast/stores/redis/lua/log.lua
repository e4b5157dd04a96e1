-- The log as it is kept: three streams, one behind the other, and what is gone of them. [EVENT-2]
--
-- Calls append to `e`. Where one tenant is cut, what the others have there moves to `a`, in order and under the same ids;
-- where `a` is cut in turn, what is left of it moves to `A`, which then takes its place. So all of `A` is before all of
-- `a`, and that is before all of `e`.
--
-- `G` has tenants by their cut: all events of the tenant up to it are gone, whether an entry still has them or not.
-- Of the counters, up to `trimmed` everything is gone, and up to `lost` cuts may have been forgotten.

local STREAMS, NEWEST = { 'A', 'a', 'e' }, { 'e' }
local GAPS = 1000 -- The most tenants with a gap that a reader of all has to hear of.

local trimmed, moved, lost = unpack(call('HMGET', KEYS[1], 'trimmed', 'moved', 'lost'))
trimmed, moved, lost = tonumber(trimmed) or 0, tonumber(moved) or 0, tonumber(lost) or 0

-- The first entry that ends behind a number: its last number, its fields, its stream and id; nil behind the last.
local function entry_behind(number)
  for _, stream in ipairs(number < moved and STREAMS or NEWEST) do
    local entry = call('XRANGE', shard .. stream, whole(number + 1) .. '-0', '+', 'COUNT', 1)[1]
    if entry then
      return tonumber(string.match(entry[1], '^%d+')), entry[2], stream, entry[1]
    end
  end
  return nil
end

-- Up to where the log is gone for a reader of one tenant or, with `false`, of all. Where very many tenants are cut, a
-- reader of all is told once for all of them.
local function gone_for(tenant)
  if tenant then
    return tonumber(call('ZSCORE', shard .. 'G', tenant)) or lost
  end
  return max(trimmed, tonumber(call('ZREVRANGE', shard .. 'G', GAPS, GAPS, 'WITHSCORES')[2]) or 0)
end
