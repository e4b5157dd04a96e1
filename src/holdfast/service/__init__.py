"""The HTTP service: `holdfast serve`. Needs `pip install 'holdfast[service]'`.

    app          the ASGI application: the table of routes, and the checks before each of them
    middleware   around every request: path, request id, trace, access log, metrics
    routes/      the routes by subject: jobs, work, queues, schedules, flows, events, health
    call         one request: its caller, body, query and answer
    bodies       reads a body within its limits; `scan` checks large values without decoding them
    parsing      requests as the store takes them        views       jobs and events as answers
    tokens       checks JSON Web Tokens                  keys        their public keys; `signing` makes tokens
    proofs       signs and verifies leases               revoked     revoked tokens
    records      an operator's records in the store      audit       the audit trail
    limits       rates of tenants and tokens             shares      bytes and connections in use
    turns        work in each turn of the event loop     fair        calls to the store, fair between tenants
    event_cache  shared reads of event streams           types       the job types that workers run
    openapi      the OpenAPI document                    errors      problems and their codes
    context      what all requests of a process share    answer_size keeps answers under 8 MiB
    protocol     uvicorn's HTTP protocol, with limits    listening   sockets, and uvicorn as we run it
    server       the service as a process, or several

Requests and answers are defined in `holdfast.protocol`.
"""
