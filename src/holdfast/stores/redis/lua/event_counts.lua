-- Reads how many events some tenants have in the log. [EVENT-2]   uses: nothing
--
-- request: { cursor }
-- Answers { cursor of the next call, '0' after the last; { tenant, events, ... } }. A tenant may appear twice.
-- Safe to repeat. Reads the hash n:e.

local cursor, found = unpack(call('HSCAN', shard .. 'n:e', request[1], 'COUNT', 500))
return { cursor, found }
