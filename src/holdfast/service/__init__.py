"""The HTTP service: `holdfast serve`. Needs `pip install 'holdfast[service]'`.

    app        the ASGI application: one table of routes, each with its scope, its body and its answers
    edge       what is around every request: paths, ids, the access log, metrics
    routes/    what the routes do: jobs, work, queues, schedules, flows, events, health
    call       one request on its way: who calls, what was sent, how it is answered
    bodies     reading a body, bounded in every way
    intake     jobs from the wire to the store      views   jobs and events on their way out
    tokens     who calls: JSON Web Tokens           keys    the keys they are checked with; signing: making some
    proofs     tokens of leases                     records what an operator keeps in the store
    revoked    tokens that are taken no more
    limits     requests and bad tokens              errors  problems and their codes
    fair       calls to the store, in turns between tenants
    tails      the ends of logs that are followed
    openapi    the document, made from the table    protocol, server   uvicorn, bounded; several processes
    context        what all requests of a process share: the store, waiting claims, one queue for each tenant

The wire format is in `holdfast.protocol.requests` and `holdfast.protocol.answers`.
"""
