-- The tables of a file store. A change to them or to their content must raise database.SCHEMA_VERSION: a directory of
-- another version is refused.
--
-- Every transition rewrites a row of `jobs`, so rows are small: large payloads never change, and are in `payloads`.
-- States are numbers (core/codes.py), so that the partial indexes can compare them with {leased}: lower numbers are
-- waiting states, higher ones are terminal.

CREATE TABLE counters (
    one       INTEGER PRIMARY KEY CHECK (one = 1),
    seq       INTEGER NOT NULL,  -- the last job
    token     INTEGER NOT NULL,  -- the last lease; never decreases
    event     INTEGER NOT NULL,  -- the last event
    trimmed   INTEGER NOT NULL,  -- the events of all tenants up to this one are gone
    gone      INTEGER NOT NULL,  -- the number of events that are gone
    shift     INTEGER NOT NULL,  -- milliseconds that tests added to the clock
    frozen_at INTEGER            -- the time of a frozen clock (tests), or NULL: it runs
);
INSERT INTO counters VALUES (1, 0, 0, 0, 0, 0, 0, NULL);

-- A lane is one tenant's jobs in one queue name. `time` (virtual time) and `in_turns` give tenants fair turns. `next_at`
-- is never later than the time at which the lane's next waiting job becomes visible.
CREATE TABLE lanes (
    lane      INTEGER PRIMARY KEY,
    tenant    TEXT NOT NULL,
    queue     TEXT NOT NULL,
    paused    INTEGER NOT NULL DEFAULT 0,
    time      INTEGER NOT NULL DEFAULT 0,
    in_turns  INTEGER NOT NULL DEFAULT 0,
    next_at   INTEGER,
    waiting   INTEGER NOT NULL DEFAULT 0,
    leased    INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    canceled  INTEGER NOT NULL DEFAULT 0,
    keys      INTEGER NOT NULL DEFAULT 0,  -- idempotency keys that outlive their job
    bytes     INTEGER NOT NULL DEFAULT 0,  -- see core.budgets.Usage
    events    INTEGER NOT NULL DEFAULT 0,  -- kept in the log
    UNIQUE (tenant, queue)
);
CREATE INDEX lanes_in_turns ON lanes (queue, time, tenant) WHERE in_turns = 1;
CREATE INDEX lanes_entering ON lanes (queue, next_at) WHERE in_turns = 0 AND paused = 0 AND next_at IS NOT NULL;

-- The highest virtual time at which a turn was given in a queue name.
CREATE TABLE floors (queue TEXT PRIMARY KEY, floor INTEGER NOT NULL) WITHOUT ROWID;

-- Few columns, and those that a new job leaves at their default come last: each column costs time at every write.
CREATE TABLE jobs (
    seq         INTEGER PRIMARY KEY,
    lane        INTEGER NOT NULL,
    id          TEXT NOT NULL,
    state       INTEGER NOT NULL,
    rank        INTEGER NOT NULL,            -- 9 - priority
    visible_at  INTEGER NOT NULL,
    origin      TEXT NOT NULL,               -- 'enqueued_at:request_id'
    head        BLOB NOT NULL,               -- the envelope without payload, request id and key: many jobs share it
    payload     BLOB,                        -- NULL: it is large, and in `payloads`
    extra       BLOB,                        -- what few jobs have: errors, progress, a key, replays ...
    attempts    INTEGER NOT NULL DEFAULT 0,
    events      INTEGER NOT NULL DEFAULT 1,  -- the number of its last event
    token       INTEGER NOT NULL DEFAULT 0,
    deadline    INTEGER NOT NULL DEFAULT 0,
    held        TEXT,                        -- 'claimed_at:worker_id' of the last lease
    finished_at INTEGER,
    expires_at  INTEGER,
    result      BLOB
);
CREATE UNIQUE INDEX jobs_id ON jobs (lane, id);
CREATE INDEX jobs_waiting ON jobs (lane, rank, visible_at) WHERE state < {leased};
CREATE INDEX jobs_leased ON jobs (deadline, seq) WHERE state = {leased};
CREATE INDEX jobs_ended ON jobs (lane, finished_at) WHERE state > {leased};
CREATE INDEX jobs_dead ON jobs (lane, finished_at) WHERE state = {failed};
CREATE INDEX jobs_forgotten ON jobs (expires_at) WHERE state > {leased};

CREATE TABLE payloads (seq INTEGER PRIMARY KEY, payload BLOB NOT NULL);

-- Large results of deleted jobs: prune returns their names, to be deleted from the blob store.
CREATE TABLE dropped_blobs (name TEXT PRIMARY KEY) WITHOUT ROWID;

-- The number of purged jobs by tenant, the first of them, and the time of the last purge. [EVENT-1]
CREATE TABLE purges (
    tenant TEXT PRIMARY KEY,
    series INTEGER NOT NULL,         -- the first job in this count
    count  INTEGER NOT NULL,
    at     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX purges_at ON purges (at);

CREATE TABLE keys (
    lane       INTEGER NOT NULL,
    type       TEXT NOT NULL,
    key        TEXT NOT NULL,
    job_id     TEXT NOT NULL,
    policy     TEXT NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (lane, type, key)
) WITHOUT ROWID;
CREATE INDEX keys_expired ON keys (expires_at) WHERE expires_at IS NOT NULL;

-- The log, in chunks: one row has the events of one call. Event number n, if it is kept, is in the chunk with the least
-- last >= n. If events inside a chunk are trimmed, each run of the remaining ones becomes a chunk of its own.
CREATE TABLE events (
    last  INTEGER PRIMARY KEY,
    first INTEGER NOT NULL,
    at    INTEGER NOT NULL,          -- time of the last event
    lane  INTEGER,                   -- NULL: events of several lanes
    mark  INTEGER NOT NULL,          -- the check value of the chunk as first written
    chunk BLOB NOT NULL
);

-- The trimmed events of a tenant: all up to `n`, whose check value is `mark`, and none after it. All events that it still
-- has come after `seen`.
CREATE TABLE cuts (
    tenant TEXT PRIMARY KEY,
    n      INTEGER NOT NULL,
    mark   INTEGER,
    seen   INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX cuts_n ON cuts (n);

CREATE TABLE readers (
    tenant TEXT NOT NULL,            -- '' for a reader of all tenants
    name   TEXT NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) WITHOUT ROWID;

CREATE TABLE settings (
    tenant      TEXT NOT NULL,
    queue       TEXT NOT NULL,       -- '' for all queues of the tenant
    weight      REAL,
    max_waiting INTEGER,
    budgets     BLOB,
    PRIMARY KEY (tenant, queue)
) WITHOUT ROWID;

CREATE TABLE workers (
    worker_id  TEXT PRIMARY KEY,
    expires_at INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL,
    info       BLOB NOT NULL
) WITHOUT ROWID;
