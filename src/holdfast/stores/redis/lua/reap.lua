-- Ends expired leases, oldest deadline first. [LEASE-3, RETRY-2]   uses: jobs
--
-- request: { limit, random }
-- Answers { now, the next deadline or -1, lane, id, lane, id, ... }. Sent once.

local ended = reap(request[1], request[2])
return { now, next_deadline() or -1, unpack(ended) }
