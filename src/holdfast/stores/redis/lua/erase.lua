-- Removes every key of a shard, for tests.   uses: nothing
--
-- request: { cursor }
-- Answers the cursor of the next call, '0' after the last. Safe to repeat.

local cursor, keys = unpack(call('SCAN', request[1], 'MATCH', shard .. '*', 'COUNT', 1000))
for _, key in ipairs(keys) do
  call('UNLINK', key)
end
return cursor
