-- The tables. {s} stands for the schema. States are numbers: < 4 waiting, = 4 leased, > 4 ended (see rows.py).

CREATE TABLE {s}.meta (
    one           int PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    shift         bigint NOT NULL DEFAULT 0,     -- milliseconds that tests added to the clock
    frozen_at     bigint,                        -- the clock stands here (tests), or NULL: it runs
    place         uuid NOT NULL DEFAULT gen_random_uuid(),
    epoch         int NOT NULL DEFAULT 1,        -- of the log; grows with each generation of the data
    base          bigint NOT NULL DEFAULT 0,     -- added to transaction ids, so that they grow from epoch to epoch
    slot          smallint NOT NULL DEFAULT 0    -- the partition of the log that is written to
);
INSERT INTO {s}.meta DEFAULT VALUES;

CREATE SEQUENCE {s}.seqs;    -- jobs, in the order they came; CACHE 1 each, so that the order is that of the draws
CREATE SEQUENCE {s}.tokens;  -- leases [LEASE-5]
CREATE SEQUENCE {s}.events_n;

-- A lane is one tenant's jobs in one queue name, a line all lanes of a queue name. Both are few and never go; a lane is
-- committed before the first job that names it, so that an open transaction of a caller's holds up nobody. [ENQ-7]
CREATE TABLE {s}.lines (
    line  int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text COLLATE "C" NOT NULL UNIQUE
);
CREATE TABLE {s}.lanes (
    lane   int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    line   int NOT NULL,
    ranks  int NOT NULL DEFAULT 0,               -- which priorities were ever used here: bit 9 - priority
    paused boolean NOT NULL DEFAULT false,
    tenant text COLLATE "C" NOT NULL,
    queue  text COLLATE "C" NOT NULL,
    UNIQUE (tenant, queue)
);
CREATE INDEX lanes_line ON {s}.lanes (line);
CREATE INDEX lanes_paused ON {s}.lanes (tenant) WHERE paused;

-- One row with a random value: the generation of the data. Acknowledged changes may be lost between two generations, so
-- nothing that a process remembers is valid in the next one. The table is empty after a crash and after a promotion, as an
-- unlogged table is. The other columns tell a row that was brought back: by a dump (another transaction writes it, and
-- `lanes` is another table), or by a copy of the files (the server was started since).
CREATE UNLOGGED TABLE {s}.generation (
    value   text COLLATE "C" NOT NULL,
    made_by xid NOT NULL,
    lanes   oid NOT NULL,
    started timestamptz NOT NULL
);
CREATE VIEW {s}.current_generation AS SELECT value FROM {s}.generation
WHERE xmin = made_by AND lanes = '{s}.lanes'::regclass AND started = pg_postmaster_start_time();

-- Hot rows only: waiting and leased jobs. Finished ones move to `done` in the statement that finishes them.
CREATE TABLE {s}.jobs (
    seq         bigint NOT NULL,
    visible_at  bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    result_ttl  bigint NOT NULL,
    logged      bigint NOT NULL,                 -- the transaction (xid) that this job's last event is filed under
    token       bigint NOT NULL DEFAULT 0,
    deadline    bigint NOT NULL DEFAULT 0,
    claimed_at  bigint,
    line        int NOT NULL,
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
    head        bytea NOT NULL,                  -- the envelope but for type, payload, request id and key
    payload     bytea NOT NULL,
    extra       bytea,                           -- what most jobs do not have: errors, progress, replays ...
    PRIMARY KEY (seq)
) WITH (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.1,
    autovacuum_analyze_threshold = 5000, autovacuum_vacuum_cost_delay = 1
);
ALTER TABLE {s}.jobs ALTER head SET STORAGE MAIN;
CREATE INDEX jobs_waiting ON {s}.jobs (line, lane, rank, visible_at, seq) WHERE state < 4;
CREATE INDEX jobs_leased ON {s}.jobs (deadline, seq) WHERE state = 4;

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
    line        int NOT NULL,
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
CREATE INDEX done_dead ON {s}.done (lane, finished_at, seq) WHERE state = 6;
CREATE INDEX done_expires ON {s}.done (expires_at, seq);

-- Alone decides whether an id is taken: written at enqueue, removed when the job is forgotten. [ENQ-2]
CREATE TABLE {s}.ids (
    seq  bigint NOT NULL,
    lane int NOT NULL,
    id   text COLLATE "C" NOT NULL,
    PRIMARY KEY (lane, id)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_cost_delay = 1);

-- How many jobs of a tenant were purged, from which job on, and when the last one was. [EVENT-1]
CREATE TABLE {s}.purges (
    series bigint NOT NULL,                      -- the first job in this count
    count  bigint NOT NULL,
    at     bigint NOT NULL,
    logged bigint NOT NULL,                      -- the transaction that the last one is filed under
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

-- The log: one row for each call, with all its events in columns. An array of one stands for as many as there are.
-- It is written to one of eight partitions, which `meta` names. The pruner goes on to an empty one when that is large,
-- and truncates those that hold nothing but what is past: never row by row, and never what is not past.
CREATE TABLE {s}.events (
    xid      bigint NOT NULL,                    -- the transaction, plus the base of its epoch
    n        bigint NOT NULL,
    at       bigint NOT NULL,
    epoch    int NOT NULL,
    count    int NOT NULL,
    slot     smallint NOT NULL,
    kinds    smallint[] NOT NULL,
    lanes    int[] NOT NULL,
    attempts int[] NOT NULL,
    tokens   bigint[] NOT NULL,
    numbers  int[] NOT NULL,                     -- of each event within its job, from 1
    xs       bigint[],
    ys       bigint[],
    zs       bigint[],
    ids      text[] NOT NULL,
    types    text[] NOT NULL,
    workers  text[] NOT NULL,
    more     bytea[],
    usage    int[]                               -- changes of the counts, see usage_rows()
) PARTITION BY LIST (slot);
ALTER TABLE {s}.events ALTER ids SET STORAGE EXTERNAL, ALTER tokens SET STORAGE EXTERNAL,
    ALTER xs SET STORAGE EXTERNAL, ALTER ys SET STORAGE EXTERNAL, ALTER zs SET STORAGE EXTERNAL;
CREATE TABLE {s}.events_0 PARTITION OF {s}.events FOR VALUES IN (0);
CREATE TABLE {s}.events_1 PARTITION OF {s}.events FOR VALUES IN (1);
CREATE TABLE {s}.events_2 PARTITION OF {s}.events FOR VALUES IN (2);
CREATE TABLE {s}.events_3 PARTITION OF {s}.events FOR VALUES IN (3);
CREATE TABLE {s}.events_4 PARTITION OF {s}.events FOR VALUES IN (4);
CREATE TABLE {s}.events_5 PARTITION OF {s}.events FOR VALUES IN (5);
CREATE TABLE {s}.events_6 PARTITION OF {s}.events FOR VALUES IN (6);
CREATE TABLE {s}.events_7 PARTITION OF {s}.events FOR VALUES IN (7);
CREATE INDEX events_place ON {s}.events (epoch, xid, n);

-- Events up to the place in `trimming` that are kept: those of tenants below the level. A row has consecutive events of one
-- tenant in one call, after the first `first` events of that call. The partitions have all later events.
CREATE TABLE {s}.kept_events (
    xid      bigint NOT NULL,
    n        bigint NOT NULL,
    at       bigint NOT NULL,
    epoch    int NOT NULL,
    first    int NOT NULL,
    count    int NOT NULL,
    tenant   text COLLATE "C" NOT NULL,
    kinds    smallint[] NOT NULL,
    lanes    int[] NOT NULL,
    attempts int[] NOT NULL,
    tokens   bigint[] NOT NULL,
    numbers  int[] NOT NULL,
    xs       bigint[],
    ys       bigint[],
    zs       bigint[],
    ids      text[] NOT NULL,
    types    text[] NOT NULL,
    workers  text[] NOT NULL,
    more     bytea[],
    PRIMARY KEY (epoch, xid, n, first)
);
CREATE UNIQUE INDEX kept_events_tenant ON {s}.kept_events (tenant, epoch, xid, n, first);

-- The last removed event of each tenant: all later ones are kept. Rows are never deleted: there is one for each tenant.
CREATE TABLE {s}.cuts (
    tenant text COLLATE "C" PRIMARY KEY,
    epoch  int NOT NULL,
    xid    bigint NOT NULL,
    n      bigint NOT NULL,
    k      int NOT NULL
);
CREATE INDEX cuts_place ON {s}.cuts (epoch, xid, n, k);

-- What tenants keep, and the jobs of each lane by their stored state, up to the last counted row of the log. A call puts its
-- changes into its row of the log, or into `usage_changes` if it makes no event. Only `count_stretch` writes to these two
-- tables. Exact counts are these plus the rows of the log that are not counted yet, see count_jobs(). [TENANT-5]
CREATE TABLE {s}.usage (
    tenant text COLLATE "C" PRIMARY KEY,
    jobs   bigint NOT NULL,
    keys   bigint NOT NULL,
    bytes  bigint NOT NULL,
    queues bigint NOT NULL,
    events bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE {s}.lane_counts (
    lane      int PRIMARY KEY,
    blocked   bigint NOT NULL,
    scheduled bigint NOT NULL,
    ready     bigint NOT NULL,
    retrying  bigint NOT NULL,
    leased    bigint NOT NULL,
    completed bigint NOT NULL,
    failed    bigint NOT NULL,
    canceled  bigint NOT NULL,
    jobs      bigint NOT NULL GENERATED ALWAYS AS
        (blocked + scheduled + ready + retrying + leased + completed + failed + canceled) STORED
) WITH (fillfactor = 50);
CREATE TABLE {s}.usage_changes (
    usage int[] NOT NULL
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

-- Where each epoch but the first begins, and where the log ended then. An offset in between belongs to events that are lost.
CREATE TABLE {s}.epochs (
    epoch      int PRIMARY KEY,
    xid        bigint NOT NULL,
    last_epoch int NOT NULL,
    last_xid   bigint NOT NULL,
    last_n     bigint NOT NULL,
    last_k     int NOT NULL
);

-- How far the log is trimmed. Not in `meta`: every call reads that, past what old transactions keep of its former self.
CREATE TABLE {s}.trimming (
    one           int PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    version       bigint NOT NULL DEFAULT 0,     -- grows with every step of trimming
    trimmed_epoch int NOT NULL DEFAULT 0,        -- what is kept of events up to this row is in `kept_events`
    trimmed_xid   bigint NOT NULL DEFAULT 0,
    trimmed_n     bigint NOT NULL DEFAULT 0,
    trimmed_k     int NOT NULL DEFAULT 0,
    floor_epoch   int NOT NULL DEFAULT 0,        -- events of all tenants up to this place are gone
    floor_xid     bigint NOT NULL DEFAULT 0,
    floor_n       bigint NOT NULL DEFAULT 0,
    floor_k       int NOT NULL DEFAULT 0,
    counted_epoch int NOT NULL DEFAULT 0,        -- `usage` has what the log says up to this row
    counted_xid   bigint NOT NULL DEFAULT 0,
    counted_n     bigint NOT NULL DEFAULT 0
);
INSERT INTO {s}.trimming DEFAULT VALUES;

CREATE TABLE {s}.readers (
    tenant text COLLATE "C" NOT NULL,            -- '' reads all tenants
    name   text COLLATE "C" NOT NULL,
    epoch  int NOT NULL,
    xid    bigint NOT NULL,
    n      bigint NOT NULL,
    k      int NOT NULL,
    PRIMARY KEY (tenant, name)
);

CREATE TABLE {s}.settings (
    tenant      text COLLATE "C" NOT NULL,
    queue       text COLLATE "C" NOT NULL,       -- '' is the tenant as a whole
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

-- Large results of jobs that are gone: prune hands their names out to be deleted from the blob store.
CREATE TABLE {s}.dropped_blobs (name text COLLATE "C" PRIMARY KEY);

-- Idle workers that offer to take jobs, see 0005_offers.sql. Nothing that must outlive the server: an offer that is lost
-- costs a claim.
CREATE UNLOGGED TABLE {s}.offers (
    post    bigint PRIMARY KEY,                  -- whoever hears it holds the advisory lock of this number
    until   bigint NOT NULL,                     -- negative: taken back, at this moment
    number  bigint NOT NULL,
    lease   bigint NOT NULL,
    given   int NOT NULL,                        -- how many jobs it is for
    sent    int NOT NULL,                        -- and how many were handed over
    tiring  boolean NOT NULL,                    -- it takes long to see that nothing else waits
    channel text COLLATE "C" NOT NULL,
    worker  text COLLATE "C" NOT NULL,
    handed  text[] NOT NULL DEFAULT '{}'         -- the jobs that were handed over, each as seq:token
) WITH (fillfactor = 25, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
CREATE UNLOGGED TABLE {s}.offer_places (
    line int NOT NULL,
    lane int NOT NULL,                           -- 0: of any tenant
    post bigint NOT NULL,
    PRIMARY KEY (line, lane, post)
) WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
