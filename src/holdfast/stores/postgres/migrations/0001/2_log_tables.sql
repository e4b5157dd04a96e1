-- The log, its readers, and the counts that are made from it.

-- The log: one row for each call, with all its events in array columns. An array of one element has the same value for all
-- events. Rows go to one of eight partitions, `meta.slot`. When that is large, the pruner switches to an empty one.
-- It truncates a partition once all its rows are trimmed, and deletes no single rows.
CREATE TABLE {s}.events (
    xid      bigint NOT NULL,                    -- the transaction, plus meta.base
    n        bigint NOT NULL,
    at       bigint NOT NULL,
    epoch    int NOT NULL,
    count    int NOT NULL,
    slot     smallint NOT NULL,
    kinds    smallint[] NOT NULL,
    lanes    int[] NOT NULL,
    attempts int[] NOT NULL,
    tokens   bigint[] NOT NULL,
    numbers  int[] NOT NULL,                     -- the number of each event within its job, from 1
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
CREATE INDEX events_position ON {s}.events (epoch, xid, n);

-- Events up to `trimming.trimmed_...` that are kept: those of tenants below the level. A row has consecutive events of one
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

-- The last removed event of each tenant: all later ones are kept. There is one row for each tenant, which is never deleted.
CREATE TABLE {s}.cuts (
    tenant text COLLATE "C" PRIMARY KEY,
    epoch  int NOT NULL,
    xid    bigint NOT NULL,
    n      bigint NOT NULL,
    k      int NOT NULL
);
CREATE INDEX cuts_position ON {s}.cuts (epoch, xid, n, k);

-- What tenants keep, and the jobs of each lane by their stored state, up to the last counted row of the log. A call puts its
-- changes into its row of the log, or into `usage_changes` if it makes no event. Only `count_step` writes to these two
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

-- Where each epoch but the first begins, and where the log ended before. An offset in between belongs to events that are lost.
CREATE TABLE {s}.epochs (
    epoch      int PRIMARY KEY,
    xid        bigint NOT NULL,
    last_epoch int NOT NULL,
    last_xid   bigint NOT NULL,
    last_n     bigint NOT NULL,
    last_k     int NOT NULL
);

-- How far the log is trimmed and counted. Not in `meta`: every call reads that row, and a row that is updated often has dead
-- versions, which all of them would walk over.
CREATE TABLE {s}.trimming (
    one           int PRIMARY KEY DEFAULT 1 CHECK (one = 1),
    version       bigint NOT NULL DEFAULT 0,     -- grows with every step of trimming
    trimmed_epoch int NOT NULL DEFAULT 0,        -- kept events up to this row are in `kept_events`
    trimmed_xid   bigint NOT NULL DEFAULT 0,
    trimmed_n     bigint NOT NULL DEFAULT 0,
    trimmed_k     int NOT NULL DEFAULT 0,
    floor_epoch   int NOT NULL DEFAULT 0,        -- events of all tenants up to this position are removed
    floor_xid     bigint NOT NULL DEFAULT 0,
    floor_n       bigint NOT NULL DEFAULT 0,
    floor_k       int NOT NULL DEFAULT 0,
    counted_epoch int NOT NULL DEFAULT 0,        -- the counts include the rows of the log up to this one
    counted_xid   bigint NOT NULL DEFAULT 0,
    counted_n     bigint NOT NULL DEFAULT 0
);
INSERT INTO {s}.trimming DEFAULT VALUES;

CREATE TABLE {s}.readers (
    tenant text COLLATE "C" NOT NULL,            -- '': a reader of all tenants
    name   text COLLATE "C" NOT NULL,
    epoch  int NOT NULL,
    xid    bigint NOT NULL,
    n      bigint NOT NULL,
    k      int NOT NULL,
    PRIMARY KEY (tenant, name)
);
