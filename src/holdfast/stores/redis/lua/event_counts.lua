-- Some of the tenants that have events in the log, and how many. [EVENT-2]   uses: nothing
--
-- request: { cursor }
-- Answers { cursor of the next call, '0' after the last; { tenant, events, ... } }. A tenant may come twice. Safe to repeat.

local cursor, found = unpack(call('HSCAN', shard .. 'n:e', request[1], 'COUNT', 500))
return { cursor, found }
