-- Jobs, lanes, settings and waiters. {s} is the schema, {state:leased} the code of a state in core/codes.py. Codes below
-- {state:leased} are waiting states, codes above it are terminal ones.

CREATE TABLE {s}.meta (
    one           int PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    shift         bigint NOT NULL DEFAULT 0,     -- milliseconds that tests have added to the clock
    frozen_at     bigint,                        -- the clock is stopped here (tests); NULL: it runs
    id            uuid NOT NULL DEFAULT gen_random_uuid(),
    epoch         int NOT NULL DEFAULT 1,        -- of the log; grows with each generation
    base          bigint NOT NULL DEFAULT 0,     -- added to transaction ids, so that they grow across epochs
    slot          smallint NOT NULL DEFAULT 0    -- the partition of the log in use
);
INSERT INTO {s}.meta DEFAULT VALUES;

-- Sequences without a cache (CACHE 1): numbers grow in the order in which they are drawn.
CREATE SEQUENCE {s}.seqs;    -- jobs
CREATE SEQUENCE {s}.tokens;  -- leases [LEASE-5]
CREATE SEQUENCE {s}.events_n;

-- A lane is one tenant's jobs in one queue name. Lanes and queue names are few and are never removed. A lane is committed
-- before the first job that names it, so that a caller's open transaction blocks no other caller. [ENQ-7]
CREATE TABLE {s}.queues (
    queue_id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue    text COLLATE "C" NOT NULL UNIQUE
);
CREATE TABLE {s}.lanes (
    lane     int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id int NOT NULL,
    ranks    int NOT NULL DEFAULT 0,             -- the priorities that were ever used here: bit 9 - priority
    paused   boolean NOT NULL DEFAULT false,
    tenant   text COLLATE "C" NOT NULL,
    queue    text COLLATE "C" NOT NULL,
    UNIQUE (tenant, queue)
);
CREATE INDEX lanes_queue ON {s}.lanes (queue_id);
CREATE INDEX lanes_paused ON {s}.lanes (tenant) WHERE paused;

-- One row with a random value: the generation of the data. Acknowledged changes may be lost between two generations, so
-- nothing that a process has cached is valid in the next one. An unlogged table is empty after a crash and after a
-- promotion. The other columns detect a row that was brought back: by a dump (another transaction writes it, and `lanes` is
-- another table), or by a copy of the files (the server was started since).
CREATE UNLOGGED TABLE {s}.generation (
    value   text COLLATE "C" NOT NULL,
    made_by xid NOT NULL,
    lanes   oid NOT NULL,
    started timestamptz NOT NULL
);
CREATE VIEW {s}.current_generation AS SELECT value FROM {s}.generation
WHERE xmin = made_by AND lanes = '{s}.lanes'::regclass AND started = pg_postmaster_start_time();

-- Waiting and leased jobs only. The statement that finishes a job moves it to `done`.
CREATE TABLE {s}.jobs (
    seq         bigint NOT NULL,
    visible_at  bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    result_ttl  bigint NOT NULL,
    logged      bigint NOT NULL,                 -- the transaction (xid) that its last event is filed under
    token       bigint NOT NULL DEFAULT 0,
    deadline    bigint NOT NULL DEFAULT 0,
    claimed_at  bigint,
    queue_id    int NOT NULL,
    lane        int NOT NULL,
    attempts    int NOT NULL DEFAULT 0,
    events      int NOT NULL DEFAULT 1,          -- the number of its last event
    state       smallint NOT NULL,
    rank        smallint NOT NULL,               -- 9 - priority
    id          text COLLATE "C" NOT NULL,
    type        text COLLATE "C" NOT NULL,
    request_id  text COLLATE "C" NOT NULL,
    worker      text COLLATE "C" NOT NULL DEFAULT '',
    key         text COLLATE "C",                -- idempotency key
    head        bytea NOT NULL,                  -- the envelope without type, payload, request id and key
    payload     bytea NOT NULL,
    extra       bytea,                           -- fields that most jobs do not have: errors, progress, replays ...
    PRIMARY KEY (seq)
) WITH (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 5000, autovacuum_vacuum_cost_delay = 1
);
ALTER TABLE {s}.jobs ALTER head SET STORAGE MAIN;
CREATE INDEX jobs_waiting ON {s}.jobs (queue_id, lane, rank, visible_at, seq) WHERE state < {state:leased};
CREATE INDEX jobs_leased ON {s}.jobs (deadline, seq) WHERE state = {state:leased};

CREATE TABLE {s}.done (
    seq         bigint NOT NULL,
    visible_at  bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    result_ttl  bigint NOT NULL,
    logged      bigint NOT NULL,
    token       bigint NOT NULL,
    claimed_at  bigint,
    finished_at bigint NOT NULL,
    expires_at  bigint NOT NULL,
    queue_id    int NOT NULL,
    lane        int NOT NULL,
    attempts    int NOT NULL,
    events      int NOT NULL,
    state       smallint NOT NULL,
    rank        smallint NOT NULL,
    id          text COLLATE "C" NOT NULL,
    type        text COLLATE "C" NOT NULL,
    request_id  text COLLATE "C" NOT NULL,
    worker      text COLLATE "C" NOT NULL,
    key         text COLLATE "C",
    head        bytea NOT NULL,
    payload     bytea NOT NULL,
    extra       bytea,
    result      bytea,
    PRIMARY KEY (seq)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 1
);
ALTER TABLE {s}.done ALTER head SET STORAGE MAIN;
CREATE INDEX done_ended ON {s}.done (lane, finished_at, seq);
CREATE INDEX done_dead ON {s}.done (lane, finished_at, seq) WHERE state = {state:failed};
CREATE INDEX done_expires ON {s}.done (expires_at, seq);

-- Decides whether an id is taken. Written at enqueue, deleted when the job is forgotten. [ENQ-2]
CREATE TABLE {s}.ids (
    seq  bigint NOT NULL,
    lane int NOT NULL,
    id   text COLLATE "C" NOT NULL,
    PRIMARY KEY (lane, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 1);

-- The number of purged jobs of each tenant, since which job, and the time of the last purge. [EVENT-1]
CREATE TABLE {s}.purges (
    series bigint NOT NULL,                      -- the number of the first job in this count
    count  bigint NOT NULL,
    at     bigint NOT NULL,
    logged bigint NOT NULL,                      -- the transaction that the last purge is filed under
    tenant text COLLATE "C" PRIMARY KEY
);
CREATE INDEX purges_at ON {s}.purges (at);

CREATE TABLE {s}.keys (
    expires_at bigint,
    lane       int NOT NULL,
    type       text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    job_id     text COLLATE "C" NOT NULL,
    policy     text COLLATE "C" NOT NULL,
    PRIMARY KEY (lane, type, key)
);
CREATE INDEX keys_expired ON {s}.keys (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE {s}.settings (
    tenant      text COLLATE "C" NOT NULL,
    queue       text COLLATE "C" NOT NULL,       -- '': the tenant as a whole
    weight      double precision,
    max_waiting bigint,
    budgets     jsonb,
    PRIMARY KEY (tenant, queue)
);

CREATE TABLE {s}.workers (
    worker_id  text COLLATE "C" PRIMARY KEY,
    expires_at bigint NOT NULL,
    started_at bigint NOT NULL,
    seen_at    bigint NOT NULL,
    info       bytea NOT NULL
) WITH (fillfactor = 50);

-- Large results of forgotten jobs, by name: prune returns them for the caller to delete from the blob store.
CREATE TABLE {s}.dropped_blobs (name text COLLATE "C" PRIMARY KEY);

-- Idle workers that wait for jobs, see 7_handoff.sql. Unlogged: a waiter that is lost costs a claim.
CREATE UNLOGGED TABLE {s}.waiters (
    inbox      bigint PRIMARY KEY,               -- the listening worker holds the advisory lock of this number
    expires_at bigint NOT NULL,                  -- negative: withdrawn at this time
    number     bigint NOT NULL,                  -- of the registration
    lease      bigint NOT NULL,
    room       int NOT NULL,                     -- how many jobs the worker takes
    sent       int NOT NULL,                     -- how many jobs were handed off
    slow_scan  boolean NOT NULL,                 -- it takes long to see that no other job waits
    channel    text COLLATE "C" NOT NULL,
    worker     text COLLATE "C" NOT NULL,
    handed_off text[] NOT NULL DEFAULT '{}'      -- the jobs that were handed off, each as seq:token
) WITH (fillfactor = 25, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
CREATE UNLOGGED TABLE {s}.waiter_queues (
    queue_id int NOT NULL,
    lane     int NOT NULL,                       -- 0: of any tenant
    inbox    bigint NOT NULL,
    PRIMARY KEY (queue_id, lane, inbox)
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
