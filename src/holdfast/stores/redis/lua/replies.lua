-- Stored answers: a request that is repeated after a lost reply gets its first answer and changes nothing. By then its
-- id may belong to a new job. a:NUMBER has the answer to a request, for longer than it takes to notice a lost
-- connection.

local ANSWERS_KEPT_MS = 60000

local function stored_answers(number)
  local answers = call('GET', shard .. 'a:' .. number)
  return answers and cmsgpack.unpack(answers)
end

local function store_answers(number, answers)
  call('SET', shard .. 'a:' .. number, cmsgpack.pack(answers), 'PX', ANSWERS_KEPT_MS)
  return answers
end
