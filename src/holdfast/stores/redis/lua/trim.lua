-- Trims the log: by age, or tenants that keep more than their share. [EVENT-2]   uses: log trimming
--
-- request: { 'age', ms }: removes everything older, of all tenants
--   { 'e', soft level, hard level, tenants }: removes the oldest events of these tenants, and of others that it meets,
--     from the stream `e`. While a tenant keeps more than the soft level, it loses events that all its readers have
--     passed; while it keeps more than the hard level, any. Events that stay move to `a`. A tenant with events in `a`
--     is trimmed here only if it loses all of those.
--   { 'a', soft level, hard level }: does the same for all of `a`, into `A`
-- Answers { events removed, 1 if there is more to do, entries in `a` and `A`, removed events that these still hold,
--   excess events of tenants that were not trimmed because of events in `a`, tenants not finished, tenants not
--   trimmed }.
-- Sent once. Reads and writes the log, its counters, and the tenants' counts and cuts.

local MAX_ENTRIES, MAX_EVENTS, CUTS_KEPT = 500, 5000, 10000
local entries, events, more = 0, 0, by_age or mode == 'a' or pending > 0
while more and entries < MAX_ENTRIES and events < MAX_EVENTS do
  local number, fields, stream, id
  if by_age then
    number, fields, stream, id = entry_after(0)
    source = stream
  else
    local entry = call('XRANGE', shard .. source, '-', '+', 'COUNT', 1)[1]
    if entry then
      number, fields, id = tonumber(string.match(entry[1], '^%d+')), entry[2], entry[1]
    end
  end
  if not number or number > counted or (by_age and tonumber(fields[ENTRY_AT]) > now - soft) then
    more = false
    break
  end
  entries, events = entries + 1, events + tonumber(fields[ENTRY_COUNT])
  local runs, staying, words, values = survivors_of(number, fields)
  more = by_age or mode == 'a' or pending > 0
  if runs[1] and not more then
    break -- Nothing after it has to be removed: the entry stays in its stream.
  end
  move_survivors(number, fields, runs, staying, words, values)
  call('XDEL', shard .. source, id)
end

-- Write what has changed.
call_in_pieces('SADD', shard .. 'z', fixed)
if mode == 'a' and not more then
  if call('EXISTS', shard .. 'A') == 1 then
    call('RENAME', shard .. 'A', shard .. 'a')
  end
  call('UNLINK', shard .. 'z')
end
for _, stream in ipairs({ 'A', 'a' }) do
  if call('XLEN', shard .. stream) == 0 then
    call('UNLINK', shard .. stream)
  end
end

local function write_count(kind, name, value)
  if value > 0 then
    call('HSET', shard .. kind, name, int_text(value))
  else
    call('HDEL', shard .. kind, name)
  end
end

local unfinished = {}
for name, owner in pairs(tenants) do
  if owner.changed then
    write_count('n:e', name, owner.kept)
    write_count('n:a', name, owner.aside)
    write_count('n:l', name, owner.aside > 0 and owner.last or 0)
    if owner.cut > 0 then
      call('ZADD', shard .. 'G', int_text(owner.cut), name)
    end
  end
  if owner.pending then
    unfinished[#unfinished + 1] = name
  end
end
local spare = call('ZCARD', shard .. 'G') - CUTS_KEPT
if spare > 0 then
  local count = min(spare, MAX_ENTRIES)
  local old = call('ZRANGEBYSCORE', shard .. 'G', '-inf', int_text(trimmed), 'WITHSCORES', 'LIMIT', 0, count)
  for n = 1, #old, 2 do
    call('ZREM', shard .. 'G', old[n])
    lost = max(lost, tonumber(old[n + 1]))
  end
end
local cut = (tonumber(call('HGET', KEYS[1], 'cut')) or 0) + total_gone
call(
  'HSET', KEYS[1], 'trimmed', int_text(trimmed), 'moved', int_text(moved), 'lost', int_text(lost),
  'waste', int_text(waste), 'cut', int_text(cut)
)
local aside = call('XLEN', shard .. 'a') + call('XLEN', shard .. 'A')
return { total_gone, more and 1 or 0, aside, waste, blocked, unfinished, not_cut }
