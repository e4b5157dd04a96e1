-- The log: three streams, one after the other, and what has been trimmed. [EVENT-2]
--
-- Calls append to the stream `e`, one entry each. Where one tenant's events are trimmed, those of other tenants move to
-- `a`, in order and under the same ids. Where `a` is trimmed in turn, its remaining events move to `A`, which then
-- replaces `a`. So everything in `A` comes before everything in `a`, and that before everything in `e`.
--
-- The sorted set `G` has tenants by cut: all events of the tenant up to its cut are gone, even if an entry still has
-- them.
-- The counters have `trimmed`: everything up to it is gone; `moved`: events up to it may be in `a` or `A`; and `lost`:
-- up to it, cuts of tenants may have been forgotten.

local STREAMS, NEWEST = { 'A', 'a', 'e' }, { 'e' }
local MAX_GAPS = 1000 -- The most tenants whose gaps a reader of all tenants gets one by one.

local trimmed, moved, lost = unpack(call('HMGET', KEYS[1], 'trimmed', 'moved', 'lost'))
trimmed, moved, lost = tonumber(trimmed) or 0, tonumber(moved) or 0, tonumber(lost) or 0

-- The first entry with events after a number: its last number, its fields, its stream and its id; nil if there is none.
local function entry_after(number)
  for _, stream in ipairs(number < moved and STREAMS or NEWEST) do
    local entry = call('XRANGE', shard .. stream, int_text(number + 1) .. '-0', '+', 'COUNT', 1)[1]
    if entry then
      return tonumber(string.match(entry[1], '^%d+')), entry[2], stream, entry[1]
    end
  end
  return nil
end

-- The last number that is gone for a reader of one tenant or, with `false`, of all tenants. If more than MAX_GAPS
-- tenants have a cut, a reader of all tenants gets one gap for all of them.
local function trimmed_for(tenant)
  if tenant then
    return tonumber(call('ZSCORE', shard .. 'G', tenant)) or lost
  end
  return max(trimmed, tonumber(call('ZREVRANGE', shard .. 'G', MAX_GAPS, MAX_GAPS, 'WITHSCORES')[2]) or 0)
end
