-- Cuts the log: by age, or tenants that keep more than their share. [EVENT-2]   uses: log
--
-- request: { 'age', milliseconds }: what is older goes, of all tenants, from the oldest on.
--   { 'e', soft level, hard level, tenants }: of these tenants, and of others that come in between, the oldest events go:
--   those that all readers of the tenant have passed while it keeps more than the soft level, any while it keeps more than
--   the hard one. What stays of the entries on the way moves to `a`. A tenant with events there is not cut here, unless
--   all of them go.
--   { 'a', soft level, hard level }: the same for all of `a`, into `A`.
-- Answers { events gone, 1 if it goes on, entries in `a` and `A`, events there that are gone, events too many of tenants that were
--   not cut because they have some there, tenants not done with, tenants not cut }. Sent once.

local ENTRIES, EVENTS, CUTS_KEPT = 500, 5000, 10000
local SIZES = { [0] = 3, 2, 1, 2, 4, 1, 4, 0, 4, 0, 2, 2, 2 } -- As in `records.py`.
local mode, soft, hard, names = unpack(request)
local counted, waste = unpack(call('HMGET', KEYS[1], 'counted', 'waste'))
counted, waste = tonumber(counted) or 0, tonumber(waste) or 0
local by_age, source, target = mode == 'age', mode, mode == 'e' and 'a' or 'A'
local total_gone, passed_by_all = 0, tonumber(call('ZRANGE', shard .. 'd', 0, 0, 'WITHSCORES')[2]) or math.huge

-- Whether all that is before what is looked at is gone.
local at_head = by_age or (call('XLEN', shard .. 'A') == 0 and (mode == 'a' or call('XLEN', shard .. 'a') == 0))

local tenants = {}

local function tenant_named(name)
  local it = tenants[name]
  if not it then
    local own = tonumber(call('ZRANGE', shard .. 'd:' .. name, 0, 0, 'WITHSCORES')[2]) or math.huge
    it = {
      name = name, kept = tonumber(call('HGET', shard .. 'n:e', name)) or 0,
      aside = tonumber(call('HGET', shard .. 'n:a', name)) or 0, last = tonumber(call('HGET', shard .. 'n:l', name)) or 0,
      cut = tonumber(call('ZSCORE', shard .. 'G', name)) or 0, passed = min(passed_by_all, own), pending = false,
      fixed = mode == 'a' and call('SISMEMBER', shard .. 'z', name) == 1,
    }
    tenants[name] = it
  end
  return it
end

-- How many of a tenant's events up to a number would go.
local function too_many(it, upto)
  return max(it.kept - hard, upto <= it.passed and it.kept - soft or 0)
end

-- Take the next `count` events of a tenant, up to a number.
local function take(it, count, number)
  it.kept, it.cut, it.changed = it.kept - count, number, true
  total_gone = total_gone + count
end

-- Only the oldest events of a tenant go: none behind one that stays.
local function can_lose(it)
  return by_age or (source == 'e' and it.aside == 0) or (source == 'a' and not it.fixed)
end

local pending, not_cut, blocked = 0, {}, 0

local function done_with(it)
  if it.pending then
    it.pending, pending = false, pending - 1
  end
end

for _, name in ipairs(names or {}) do
  local it = tenant_named(name)
  if it.aside > 0 and too_many(it, it.last) >= it.aside then
    waste = waste + it.aside
    take(it, it.aside, max(it.cut, it.last))
    it.aside = 0
  end
  if it.aside > 0 then
    not_cut[#not_cut + 1] = name
    blocked = blocked + max(0, too_many(it, it.last))
  elseif it.kept > soft then
    it.pending, pending = true, pending + 1
  end
end

-- Whether the event of a tenant at a number goes, or is gone.
local function goes(it, number)
  if number <= it.cut then
    waste = waste - (source == 'e' and 0 or 1)
    return true
  elseif by_age or (can_lose(it) and too_many(it, number) > 0) then
    take(it, 1, number)
    it.aside = it.aside - (source == 'e' and 0 or 1)
    if it.kept <= soft then
      done_with(it)
    end
    return true
  end
  done_with(it)
  return false
end

-- The runs of events of an entry that stay, each { first number, last number, place of the first value, of the last }; and the tenants
-- that have them.
local function what_stays(number, fields)
  local count = tonumber(fields[2])
  local first = number - count + 1
  local only = string.match(fields[10], '^(%S+) %S+ %S+ %S+ %S+$')
  local it = only and tenant_named(only)
  if it and it.cut < first and not by_age and (not can_lose(it) or too_many(it, first) <= 0) then
    done_with(it)
    at_head = false
    return { { first, number } }, { [it] = { count, number } }, nil
  elseif it and it.cut < first and (by_age or (can_lose(it) and too_many(it, number) >= count)) then
    take(it, count, number)
    it.aside = it.aside - (source == 'e' and 0 or count)
    if it.kept <= soft then
      done_with(it)
    end
    trimmed = at_head and number or trimmed
    return {}, {}, nil
  end
  local words, values = unpack(cmsgpack.unpack(fields[8]))
  local runs, staying, place, by_lane = {}, {}, 1, {}
  for n = first, number do
    local lane, size = values[place + 1], 8 + SIZES[values[place]]
    it = by_lane[lane]
    if not it then
      it = tenant_named((split(words[lane])))
      by_lane[lane] = it
    end
    if goes(it, n) then
      trimmed = at_head and n or trimmed
    else
      at_head = false
      local run = runs[#runs]
      if run and run[2] == n - 1 then
        run[2], run[4] = n, place + size - 1
      else
        runs[#runs + 1] = { n, n, place, place + size - 1 }
      end
      local kept = staying[it] or { 0, 0 }
      kept[1], kept[2] = kept[1] + 1, n
      staying[it] = kept
    end
    place = place + size
  end
  return runs, staying, words, values
end

-- A run as an entry of its own: its values, with the words they name, and whose they are.
local function entry_of(run, words, values)
  clear()
  local chunk, counts, sums, place = {}, {}, {}, run[3]
  while place <= run[4] do
    local size, at = 8 + SIZES[values[place]], #chunk
    for n = 0, size - 1 do
      chunk[at + 1 + n] = values[place + n]
    end
    for _, n in ipairs({ 2, 4, 7 }) do
      chunk[at + n] = word(words[chunk[at + n]])
    end
    local tenant = split(words[values[place + 1]])
    counts[tenant] = (counts[tenant] or 0) + 1
    place = place + size
  end
  for tenant, count in pairs(counts) do
    sums[#sums + 1] = tenant .. ' ' .. count .. ' 0 0 0'
  end
  return cmsgpack.pack({ dictionary, chunk }), table.concat(sums, ' ')
end

local fixed = {}

local function move_on(number, fields, runs, staying, words, values)
  for _, run in ipairs(runs) do
    local chunk, sums = fields[8], fields[10]
    local size = run[2] - run[1] + 1
    if size < tonumber(fields[2]) then
      chunk, sums = entry_of(run, words, values)
    end
    call(
      'XADD', shard .. target, whole(run[2]) .. '-0', 'k', size, 'n', whole(fields[4] - (number - run[2])), 'a', fields[6],
      'e', chunk, 's', sums
    )
  end
  for it, kept in pairs(staying) do
    if source == 'e' then
      it.aside, it.last, it.changed = it.aside + kept[1], kept[2], true
    elseif not it.fixed then
      it.fixed, fixed[#fixed + 1] = true, it.name
    end
  end
  moved = max(moved, number)
end

local entries, events, more = 0, 0, by_age or mode == 'a' or pending > 0
while more and entries < ENTRIES and events < EVENTS do
  local number, fields, stream, id
  if by_age then
    number, fields, stream, id = entry_behind(0)
    source = stream
  else
    local entry = call('XRANGE', shard .. source, '-', '+', 'COUNT', 1)[1]
    if entry then
      number, fields, id = tonumber(string.match(entry[1], '^%d+')), entry[2], entry[1]
    end
  end
  if not number or number > counted or (by_age and tonumber(fields[6]) > now - soft) then
    more = false
    break
  end
  entries, events = entries + 1, events + tonumber(fields[2])
  local runs, staying, words, values = what_stays(number, fields)
  more = by_age or mode == 'a' or pending > 0
  if runs[1] and not more then
    break -- Nothing behind it has to go: it stays where it is.
  end
  move_on(number, fields, runs, staying, words, values)
  call('XDEL', shard .. source, id)
end

-- Write down what has changed.
send('SADD', shard .. 'z', fixed)
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

local function write_down(kind, name, value)
  if value > 0 then
    call('HSET', shard .. kind, name, whole(value))
  else
    call('HDEL', shard .. kind, name)
  end
end

local still = {}
for name, it in pairs(tenants) do
  if it.changed then
    write_down('n:e', name, it.kept)
    write_down('n:a', name, it.aside)
    write_down('n:l', name, it.aside > 0 and it.last or 0)
    if it.cut > 0 then
      call('ZADD', shard .. 'G', whole(it.cut), name)
    end
  end
  if it.pending then
    still[#still + 1] = name
  end
end
local spare = call('ZCARD', shard .. 'G') - CUTS_KEPT
if spare > 0 then
  local old = call('ZRANGEBYSCORE', shard .. 'G', '-inf', whole(trimmed), 'WITHSCORES', 'LIMIT', 0, min(spare, ENTRIES))
  for n = 1, #old, 2 do
    call('ZREM', shard .. 'G', old[n])
    lost = max(lost, tonumber(old[n + 1]))
  end
end
local cut = (tonumber(call('HGET', KEYS[1], 'cut')) or 0) + total_gone
call(
  'HSET', KEYS[1], 'trimmed', whole(trimmed), 'moved', whole(moved), 'lost', whole(lost), 'waste', whole(waste), 'cut',
  whole(cut)
)
local aside = call('XLEN', shard .. 'a') + call('XLEN', shard .. 'A')
return { total_gone, more and 1 or 0, aside, waste, blocked, still, not_cut }
