-- Ends expired leases, oldest deadline first. [LEASE-3, RETRY-2]   uses: records keys jobs leases
--
-- request: { limit, random }
-- Answers { now, next deadline or NONE, lane, id, lane, id, ... }. Sent once. Writes the lanes of the jobs and the log.

local ended = reap_expired(request[1], request[2])
return { now, next_deadline() or NONE, unpack(ended) }
