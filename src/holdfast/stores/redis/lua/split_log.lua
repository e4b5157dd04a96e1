-- Counts a part of the log and finds where it can be cut into pieces. [EVENT-2]   uses: log
--
-- request: { number to go on after or -1 for the oldest kept, number of the last event or -1 for the end, how many events
--   to a piece, how many cuts at most }
-- Answers { number up to which the log is gone, number of the last event, greatest number that can be an offset, how many
--   events were ever logged there, number of the last event of a piece, ... }.

local after, upto, size, most = unpack(request)
local gone, log = gone_for(false), tonumber(counters[4]) or 0
local answer = { gone, log, max(last, micros), 0 }
after = max(after, gone)
if upto < 0 or upto > log then
  upto = log
end

-- The first chunk that ends at a number or behind it: its last number, the events ever logged up to there, its own.
local function chunk_at(number)
  local chunk, fields = entry_behind(number - 1)
  if chunk then
    return chunk, tonumber(fields[4]), tonumber(fields[2])
  end
  return log, tonumber(counters[5]) or 0, 0 -- Behind the last one, or its place, if it is missing.
end

-- How many events were ever logged up to a number.
local function logged_at(number, chunk, total, count)
  return total - min(count, chunk - number)
end

local chunk, total, count = chunk_at(after + 1)
if after < upto then
  local passed = logged_at(after, chunk, total, count)
  local stop = logged_at(upto, chunk_at(upto))
  answer[4] = stop - passed
  local from, goal = after + 1, passed + size
  while goal < stop and most > 0 do
    -- Numbers follow the clock and have holes: look for the place by halves.
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
    from, goal, most = chunk + 1, total + size, most - 1
  end
end
return answer
