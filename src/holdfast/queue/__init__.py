"""A store bound to one tenant.

`queue` has the class, with thin methods. The work is done by subject: connection (open, close, shared round trips),
enqueue, inspect, results, cancel, dead_letters, events, settings. `ticket` and `records` are what callers get.
`coalesce` lets concurrent calls share a round trip, `waiting` waits for jobs to end, `claims` waits for jobs to claim.
"""
