-- Counts the events of a range of the log and finds where it can be split. [EVENT-2]   uses: log
--
-- request: { number to start after or NONE for the oldest kept, last number or NONE for the end, events to a piece,
--   most pieces }
-- Answers { last number that is gone, number of the last event, greatest number that can be an offset, events ever
--   logged in the range, last number of a piece, ... }. Safe to repeat. Reads the log.

local after, upto, size, max_splits = unpack(request)
local gone, log = trimmed_for(false), log_end
local answer = { gone, log, max(last, micros), 0 }
after = max(after, gone)
if upto < 0 or upto > log then
  upto = log
end

-- The first chunk that ends at a number or later: its last number, the events ever logged up to its end, its own
-- events.
local function chunk_at(number)
  local chunk, fields = entry_after(number - 1)
  if chunk then
    return chunk, tonumber(fields[ENTRY_TOTAL]), tonumber(fields[ENTRY_COUNT])
  end
  return log, logged_total, 0 -- After the last chunk.
end

-- The events ever logged up to a number, which is in or before this chunk.
local function logged_at(number, chunk, total, count)
  return total - min(count, chunk - number)
end

local chunk, total, count = chunk_at(after + 1)
if after < upto then
  local passed = logged_at(after, chunk, total, count)
  local stop = logged_at(upto, chunk_at(upto))
  answer[4] = stop - passed
  local from, goal = after + 1, passed + size
  while goal < stop and max_splits > 0 do
    -- Numbers follow the clock and have gaps: find the place by bisection.
    local to = upto
    while from < to do
      local middle = floor((from + to) / 2)
      chunk, total = chunk_at(middle)
      if total >= goal then
        to = middle
      else
        from = chunk + 1
      end
    end
    chunk, total = chunk_at(from)
    if chunk >= upto then
      break
    end
    answer[#answer + 1] = chunk
    from, goal, max_splits = chunk + 1, total + size, max_splits - 1
  end
end
return answer
