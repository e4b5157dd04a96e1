-- Part of `trim.lua`: chooses the events to remove, and moves the others to the next stream. [EVENT-2]
--
-- A tenant loses only its oldest events: none after one that stays.

local event_sizes = EVENT_SIZES
local mode, soft, hard, names = unpack(request)
local counted, waste = unpack(call('HMGET', KEYS[1], 'counted', 'waste'))
counted, waste = tonumber(counted) or 0, tonumber(waste) or 0
local by_age, source, target = mode == 'age', mode, mode == 'e' and 'a' or 'A'
local total_gone, passed_by_all = 0, tonumber(call('ZRANGE', shard .. 'd', 0, 0, 'WITHSCORES')[2]) or math.huge

-- Whether everything before the current entry is gone.
local at_head = by_age or (call('XLEN', shard .. 'A') == 0 and (mode == 'a' or call('XLEN', shard .. 'a') == 0))

-- What is known of a tenant: events kept, how many of them are in `a` and `A` (`aside`) and the last of those, its cut,
-- the number that all its readers have passed, whether events of it are still to be removed (`pending`), whether it has
-- events in `A` (`fixed`).
local tenants = {}

local function tenant_named(name)
  local owner = tenants[name]
  if not owner then
    local own = tonumber(call('ZRANGE', shard .. 'd:' .. name, 0, 0, 'WITHSCORES')[2]) or math.huge
    owner = {
      name = name, kept = tonumber(call('HGET', shard .. 'n:e', name)) or 0,
      aside = tonumber(call('HGET', shard .. 'n:a', name)) or 0,
      last = tonumber(call('HGET', shard .. 'n:l', name)) or 0,
      cut = tonumber(call('ZSCORE', shard .. 'G', name)) or 0, passed = min(passed_by_all, own), pending = false,
      fixed = mode == 'a' and call('SISMEMBER', shard .. 'z', name) == 1,
    }
    tenants[name] = owner
  end
  return owner
end

-- The number of a tenant's excess events up to a number.
local function too_many(owner, upto)
  return max(owner.kept - hard, upto <= owner.passed and owner.kept - soft or 0)
end

-- Remove the next `count` events of a tenant, up to a number.
local function remove(owner, count, number)
  owner.kept, owner.cut, owner.changed = owner.kept - count, number, true
  total_gone = total_gone + count
end

-- Whether the current stream has the tenant's oldest events.
local function can_lose(owner)
  return by_age or (source == 'e' and owner.aside == 0) or (source == 'a' and not owner.fixed)
end

local pending, not_cut, blocked = 0, {}, 0

local function done_with(owner)
  if owner.pending then
    owner.pending, pending = false, pending - 1
  end
end

for _, name in ipairs(names or {}) do
  local owner = tenant_named(name)
  if owner.aside > 0 and too_many(owner, owner.last) >= owner.aside then
    waste = waste + owner.aside
    remove(owner, owner.aside, max(owner.cut, owner.last))
    owner.aside = 0
  end
  if owner.aside > 0 then
    not_cut[#not_cut + 1] = name
    blocked = blocked + max(0, too_many(owner, owner.last))
  elseif owner.kept > soft then
    owner.pending, pending = true, pending + 1
  end
end

-- Whether the event of a tenant at a number is removed, now or before.
local function is_removed(owner, number)
  if number <= owner.cut then
    waste = waste - (source == 'e' and 0 or 1)
    return true
  elseif by_age or (can_lose(owner) and too_many(owner, number) > 0) then
    remove(owner, 1, number)
    owner.aside = owner.aside - (source == 'e' and 0 or 1)
    if owner.kept <= soft then
      done_with(owner)
    end
    return true
  end
  done_with(owner)
  return false
end

-- The events of an entry that stay, in runs, each { first number, last number, position of its first and last value };
-- and the tenants that have them, with count and last number.
local function survivors_of(number, fields)
  local count = tonumber(fields[ENTRY_COUNT])
  local first = number - count + 1
  local only = string.match(fields[ENTRY_USAGE], '^(%S+) %S+ %S+ %S+ %S+$')
  local owner = only and tenant_named(only)
  if owner and owner.cut < first and not by_age and (not can_lose(owner) or too_many(owner, first) <= 0) then
    done_with(owner)
    at_head = false
    return { { first, number } }, { [owner] = { count, number } }, nil
  elseif owner and owner.cut < first and (by_age or (can_lose(owner) and too_many(owner, number) >= count)) then
    remove(owner, count, number)
    owner.aside = owner.aside - (source == 'e' and 0 or count)
    if owner.kept <= soft then
      done_with(owner)
    end
    trimmed = at_head and number or trimmed
    return {}, {}, nil
  end
  local words, values = unpack(cmsgpack.unpack(fields[ENTRY_EVENTS]))
  local runs, staying, position, by_lane = {}, {}, 1, {}
  for n = first, number do
    local lane, size = values[position + 1], EVENT_COMMON + event_sizes[values[position]]
    owner = by_lane[lane]
    if not owner then
      owner = tenant_named((split_name(words[lane])))
      by_lane[lane] = owner
    end
    if is_removed(owner, n) then
      trimmed = at_head and n or trimmed
    else
      at_head = false
      local run = runs[#runs]
      if run and run[2] == n - 1 then
        run[2], run[4] = n, position + size - 1
      else
        runs[#runs + 1] = { n, n, position, position + size - 1 }
      end
      local kept = staying[owner] or { 0, 0 }
      kept[1], kept[2] = kept[1] + 1, n
      staying[owner] = kept
    end
    position = position + size
  end
  return runs, staying, words, values
end

-- A run as an entry of its own: its chunk, and the events that it adds to each tenant.
local function entry_of(run, words, values)
  clear_writes()
  local chunk, counts, sums, position = {}, {}, {}, run[3]
  while position <= run[4] do
    local size, at = EVENT_COMMON + event_sizes[values[position]], #chunk
    for n = 0, size - 1 do
      chunk[at + 1 + n] = values[position + n]
    end
    for _, n in ipairs({ 2, 4, 7 }) do
      chunk[at + n] = word_number(words[chunk[at + n]])
    end
    local tenant = split_name(words[values[position + 1]])
    counts[tenant] = (counts[tenant] or 0) + 1
    position = position + size
  end
  for tenant, count in pairs(counts) do
    sums[#sums + 1] = tenant .. ' ' .. count .. ' 0 0 0'
  end
  return cmsgpack.pack({ dictionary, chunk }), table.concat(sums, ' ')
end

local fixed = {} -- Tenants that have events in `A` after this call.

-- Append the runs of an entry to the next stream.
local function move_survivors(number, fields, runs, staying, words, values)
  for _, run in ipairs(runs) do
    local chunk, sums = fields[ENTRY_EVENTS], fields[ENTRY_USAGE]
    local size = run[2] - run[1] + 1
    if size < tonumber(fields[ENTRY_COUNT]) then
      chunk, sums = entry_of(run, words, values)
    end
    call(
      'XADD', shard .. target, int_text(run[2]) .. '-0', 'k', size,
      'n', int_text(fields[ENTRY_TOTAL] - (number - run[2])), 'a', fields[ENTRY_AT], 'e', chunk, 's', sums
    )
  end
  for owner, kept in pairs(staying) do
    if source == 'e' then
      owner.aside, owner.last, owner.changed = owner.aside + kept[1], kept[2], true
    elseif not owner.fixed then
      owner.fixed, fixed[#fixed + 1] = true, owner.name
    end
  end
  moved = max(moved, number)
end
