-- What is sent again after a lost reply is answered as at first, and does nothing: the id may have a new life by then. The
-- answers are kept by the number of the request, in a:NUMBER, for longer than it takes to find a line broken.

local ANSWERS_KEPT_MS = 60000

local function answered(number)
  local answers = call('GET', shard .. 'a:' .. number)
  return answers and cmsgpack.unpack(answers)
end

local function answer(number, answers)
  call('SET', shard .. 'a:' .. number, cmsgpack.pack(answers), 'PX', ANSWERS_KEPT_MS)
  return answers
end
