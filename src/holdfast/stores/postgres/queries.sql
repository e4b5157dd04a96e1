-- Every statement of the PostgreSQL store, by name. {s} is the schema, {hot} and {cold} are the columns of rows.COLUMNS in
-- `jobs` and in `done`. {check_cache:3} checks $3, the cached facts that the statement relies on.

-- name: now
SELECT coalesce({s}.now_ms(), {s}.no_data());
-- name: shift_clock
UPDATE {s}.meta SET shift = shift + $1;
-- name: meta
SELECT frozen_at IS NOT NULL AS frozen, epoch FROM {s}.meta;
-- Identifies the data. It changes when the schema is recreated, and after a crash, a failover, a restore and a restart.
-- name: data_id
SELECT {s}.data_id();
-- name: check_cache
SELECT {check_cache:1};
-- name: freeze
UPDATE {s}.meta SET frozen_at = $1;

-- Lanes.
-- name: find_lanes
SELECT l.lane, l.queue_id, l.ranks, l.tenant, l.queue FROM unnest($1::text[], $2::text[]) AS u (tenant, queue)
JOIN {s}.lanes l ON l.tenant = u.tenant AND l.queue = u.queue WHERE {check_cache:3};
-- name: lanes_by_number
SELECT lane, queue_id, ranks, tenant, queue FROM {s}.lanes WHERE lane = ANY ($1::int[]) AND {check_cache:2};
-- name: add_queue
INSERT INTO {s}.queues (queue) SELECT $1 WHERE {check_cache:2} ON CONFLICT DO NOTHING;
-- name: add_lane
INSERT INTO {s}.lanes (queue_id, tenant, queue, ranks)
SELECT queue_id, $1, $2, $3 FROM {s}.queues WHERE queue = $2 AND {check_cache:4}
ON CONFLICT (tenant, queue) DO UPDATE SET ranks = lanes.ranks | excluded.ranks
RETURNING lane, queue_id, ranks, tenant, queue;
-- name: pause
UPDATE {s}.lanes SET paused = $2 WHERE lane = $1 AND {check_cache:3};

-- The hot paths.
-- name: enqueue
SELECT {s}.enqueue($1::text[], $2::int[], $3::int[], $4::text::text[], $5::text[], $6::text::text[], $7::smallint[],
    $8::int[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bytea[], $13::bytea[], $14::text::text[]);
-- name: complete
SELECT {s}.complete($1::int[], $2::text::text[], $3::text::bigint[], $4::bytea[], $5::text::bigint[], $6::int,
    $7::text::text[]);
-- name: extend
SELECT {s}.extend($1::int[], $2::text::text[], $3::text::bigint[], $4::text::bigint[], $5::text::bigint[], $6::int,
    $7::text::text[]);
-- name: enqueue_and_notify
CALL {s}.enqueue_and_notify($1::text[], $2::text[], $3::text[], $4::int[], $5::int[], $6::text::text[], $7::text[],
    $8::text::text[], $9::smallint[], $10::int[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bytea[], $15::bytea[],
    $16::text::text[], NULL);
-- name: complete_and_notify
CALL {s}.complete_and_notify($1::text[], $2::text[], $3::int[], $4::text::text[], $5::text::bigint[], $6::bytea[],
    $7::text::bigint[], $8::int, $9::text::text[], NULL);
-- name: enqueue_one
SELECT now FROM {s}.enqueue_one($1::text, $2::int, $3::int, $4::text, $5::text, $6::text, $7::smallint, $8::int,
    $9::bigint, $10::bigint, $11::bigint, $12::bytea, $13::bytea, false, $14::text::text[]);
-- name: enqueue_one_and_notify
CALL {s}.enqueue_one_and_notify($1::text[], $2::text[], $3::text[], $4::text, $5::int, $6::int, $7::text, $8::text,
    $9::text, $10::smallint, $11::int, $12::bigint, $13::bigint, $14::bigint, $15::bytea, $16::bytea,
    $17::text::text[], NULL, NULL);
-- name: complete_one
SELECT now FROM {s}.complete_one($1::int, $2::text, $3::bigint, $4::bytea, $5::bigint, $6::int, false,
    $7::text::text[]);
-- name: complete_one_and_notify
CALL {s}.complete_one_and_notify($1::text[], $2::text[], $3::text[], $4::int, $5::text, $6::bigint, $7::bytea, $8::bigint,
    $9::int, $10::text::text[], NULL);
-- Waiters: idle workers that wait for jobs.
-- name: register_waiter
SELECT {s}.register_waiter($1, $2, $3, $4::int[], $5::int[], $6, $7, $8, $9, $10::text::text[]);
-- name: withdraw_waiter
SELECT * FROM {s}.withdraw_waiter($1, $2, $3, $4::int[], $5::int[]);
-- name: drop_waiter
DELETE FROM {s}.waiters WHERE inbox = $1 AND number <= $2 AND expires_at < 0;
-- Remove a hand-off whose message was not sent from its waiter. The caller that removes it releases the job.
-- name: undo_handoff
UPDATE {s}.waiters SET sent = sent - 1, handed_off = array_remove(handed_off,
    $1::text) WHERE $1::text = ANY (handed_off) RETURNING 1;
-- name: find_leased
SELECT l.tenant, l.queue, j.id, j.token FROM unnest($1::bigint[], $2::bigint[]) AS u (seq, token)
JOIN {s}.jobs j ON j.seq = u.seq AND j.token = u.token AND j.state + 0 = {state:leased} JOIN {s}.lanes l ON l.lane = j.lane;
-- name: forget_waiters
DELETE FROM {s}.waiters WHERE inbox IN (
    SELECT inbox FROM {s}.waiters WHERE abs(expires_at) < $1
        AND pg_try_advisory_xact_lock_shared(inbox) FOR UPDATE SKIP LOCKED);
-- name: forget_waiter_queues
DELETE FROM {s}.waiter_queues p WHERE NOT EXISTS (SELECT FROM {s}.waiters o WHERE o.inbox = p.inbox);
-- name: lock_inbox
SELECT pg_advisory_lock($1);
-- name: unlock_inbox
SELECT pg_advisory_unlock($1);
-- name: claim
SELECT * FROM {s}.claim($1::text::int[], $2::text::int[], $3::text::int[], $4::text::bigint[], $5::text::boolean[],
    $6::text::int[], $7::text::int[], $8::text::bigint[], $9::text::bigint[], $10::text::int[], $11::text::bigint[], $12,
    $13, $14, $15, $16, $17::text::text[]);
-- The lanes of a queue name that have waiting jobs, and when the first is visible, by skips along the index.
-- name: lanes_with_work
WITH RECURSIVE walk AS (
    (SELECT j.lane, j.rank,
        j.visible_at FROM {s}.jobs j WHERE j.queue_id = $1 AND j.state < {state:leased} AND {check_cache:2}
        ORDER BY j.queue_id, j.lane, j.rank, j.visible_at LIMIT 1)
    UNION ALL
    SELECT x.* FROM walk CROSS JOIN LATERAL (
        SELECT j.lane, j.rank, j.visible_at FROM {s}.jobs j
        WHERE j.queue_id = $1 AND (j.lane, j.rank) > (walk.lane, walk.rank) AND j.state < {state:leased}
        ORDER BY j.queue_id, j.lane, j.rank, j.visible_at LIMIT 1
    ) x
)
SELECT l.lane, l.queue_id, l.ranks, l.tenant, l.queue, min(walk.visible_at) FROM walk JOIN {s}.lanes l ON l.lane = walk.lane
WHERE NOT l.paused GROUP BY l.lane;
-- name: find_queue
SELECT queue_id FROM {s}.queues WHERE queue = $1 AND {check_cache:2};

-- Changes, in a transaction that begins with `lock_jobs`. Each writes the locked jobs, by number, and `expect` compares the
-- number of rows.
-- name: lock_jobs
SELECT {s}.lock_jobs($1::int[], $2::text[], $3::text::text[]);
-- name: lock_expired
SELECT {hot} FROM {s}.jobs WHERE state = {state:leased} AND deadline <= $1 AND {check_cache:3} ORDER BY deadline,
    seq LIMIT $2 FOR UPDATE SKIP LOCKED;
-- name: next_deadline
SELECT min(deadline) FROM {s}.jobs WHERE state = {state:leased};
-- A transaction that holds a tenant's lock waits for no other lock: so waiting for it is harmless.
-- name: lock_tenant
SELECT set_config('lock_timeout', $2::int::text, true), pg_advisory_xact_lock(hashtextextended($1::text, 7));
-- join_tenant: a caller's transaction marks that it enqueues for a tenant. tenant_unjoined: whether no open one has.
-- name: join_tenant
SELECT pg_advisory_xact_lock_shared(hashtextextended($1::text, 8));
-- name: tenant_unjoined
SELECT CASE WHEN pg_try_advisory_lock(k) THEN pg_advisory_unlock(k) ELSE false END
FROM (SELECT hashtextextended($1::text, 8) AS k) x;
-- name: xid
SELECT {s}.xid();
-- name: find
SELECT u.i, {s}.now_ms() AS now, x.* FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS u (lane, id, i)
JOIN {s}.ids ON ids.lane = u.lane AND ids.id = u.id
CROSS JOIN LATERAL (
    SELECT {hot} FROM {s}.jobs WHERE seq = ids.seq
    UNION ALL
    SELECT {cold} FROM {s}.done WHERE seq = ids.seq
) x WHERE {check_cache:3};
-- A job, and of a visible one: up to $5 visible jobs of its lane ($2, of queue $1) that come before it, and up to $6 other
-- lanes with visible jobs, among $7 that have waiting ones. The lanes are found by skips along the index.
-- name: standing
WITH RECURSIVE found AS MATERIALIZED (
    SELECT {s}.now_ms() AS now, x.* FROM {s}.ids CROSS JOIN LATERAL (
        SELECT {hot} FROM {s}.jobs WHERE seq = ids.seq
        UNION ALL
        SELECT {cold} FROM {s}.done WHERE seq = ids.seq
    ) x WHERE ids.lane = $2 AND ids.id = $3 AND {check_cache:4}
), visible AS MATERIALIZED (
    SELECT now, rank, visible_at, seq FROM found WHERE state < {state:leased} AND visible_at <= now
), walk AS (
    (SELECT j.lane FROM {s}.jobs j WHERE j.queue_id = $1 AND j.state < {state:leased}
        ORDER BY j.queue_id, j.lane, j.rank, j.visible_at LIMIT 1)
    UNION ALL
    SELECT x.* FROM walk CROSS JOIN LATERAL (
        SELECT j.lane FROM {s}.jobs j WHERE j.queue_id = $1 AND j.lane > walk.lane AND j.state < {state:leased}
        ORDER BY j.queue_id, j.lane, j.rank, j.visible_at LIMIT 1
    ) x
)
SELECT found.*, l.paused, (
    SELECT count(*) FROM (
        SELECT FROM visible v CROSS JOIN LATERAL generate_series(0, v.rank - 1) AS p (rank)
        JOIN {s}.jobs j ON j.queue_id = $1 AND j.lane = $2 AND j.state < {state:leased} AND j.rank = p.rank
            AND j.visible_at <= v.now
        UNION ALL
        SELECT FROM visible v JOIN {s}.jobs j ON j.queue_id = $1 AND j.lane = $2 AND j.state < {state:leased}
            AND j.rank = v.rank AND (j.visible_at, j.seq) < (v.visible_at, v.seq)
        LIMIT $5
    ) x
) AS ahead, (
    SELECT count(*) FROM (
        SELECT FROM visible v CROSS JOIN (SELECT lane FROM walk LIMIT $7) w
        JOIN {s}.lanes o ON o.lane = w.lane AND o.lane <> $2 AND NOT o.paused
        WHERE EXISTS (
            SELECT FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
                SELECT FROM {s}.jobs j WHERE j.queue_id = $1 AND j.lane = o.lane AND j.state < {state:leased}
                    AND j.rank = p.rank AND j.visible_at <= v.now LIMIT 1
            ) y WHERE o.ranks & (1 << p.rank) <> 0)
        LIMIT $6
    ) x
) AS others
FROM found JOIN {s}.lanes l ON l.lane = $2;
-- name: find_locked
SELECT {hot} FROM {s}.jobs WHERE seq = ANY ($1::bigint[]) UNION ALL SELECT {cold} FROM {s}.done
    WHERE seq = ANY ($1::bigint[]);
-- name: take_ids
SELECT {s}.take_ids($1::int[], $2::text[], $3::bigint[], $4::text::text[]);
-- name: note_freed
SELECT {s}.note_freed($1::bigint);
-- name: drop_ids
WITH changed AS (
    DELETE FROM {s}.ids USING unnest($1::int[], $2::text[], $3::bigint[]) AS u (lane, id, seq)
    WHERE ids.lane = u.lane AND ids.id = u.id AND ids.seq = u.seq
    RETURNING 1
) SELECT {s}.expect(cardinality($1::int[]), count(*)) FROM changed;
-- name: move_ids
WITH changed AS (
    UPDATE {s}.ids SET seq = u.seq FROM unnest($1::int[], $2::text[], $3::bigint[], $4::bigint[]) AS u (lane, id, old, seq)
    WHERE ids.lane = u.lane AND ids.id = u.id AND ids.seq = u.old
    RETURNING 1
) SELECT {s}.expect(cardinality($1::int[]), count(*)) FROM changed;
-- name: next_seqs
SELECT nextval('{s}.seqs') FROM generate_series(1, $1::int);
-- name: put_jobs
INSERT INTO {s}.jobs (seq, visible_at, enqueued_at, result_ttl, logged, queue_id, lane, state, rank, id, type,
    request_id, key,
    head, payload, extra)
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[], $7::int[],
    $8::smallint[], $9::smallint[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bytea[], $15::bytea[],
    $16::bytea[]);
-- name: save_jobs
WITH changed AS (
    UPDATE {s}.jobs j SET state = u.state, visible_at = u.visible_at, attempts = u.attempts, deadline = u.deadline,
        extra = u.extra, logged = u.logged, events = u.events
    FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::int[], $5::bigint[], $6::bytea[], $7::bigint[],
        $8::int[]) AS u (seq, state, visible_at, attempts, deadline, extra, logged, events)
    WHERE j.seq = u.seq
    RETURNING 1
) SELECT {s}.expect(cardinality($1::bigint[]), count(*)) FROM changed;
-- name: end_jobs
WITH gone AS (
    DELETE FROM {s}.jobs j USING unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::int[], $5::bytea[], $6::bigint[],
        $7::int[], $8::bigint[], $9::bigint[], $10::bytea[], $11::bigint[])
        AS u (seq, state, visible_at, attempts, extra, logged, events, finished_at, expires_at, result, ttl)
    WHERE j.seq = u.seq
    RETURNING j.seq, u.visible_at, j.enqueued_at, u.ttl, u.logged, j.token, j.claimed_at, u.finished_at, u.expires_at,
        j.queue_id, j.lane, u.attempts, u.events, u.state, j.rank, j.id, j.type, j.request_id, j.worker, j.key, j.head,
        j.payload, u.extra, u.result
), put AS (
    INSERT INTO {s}.done (seq, visible_at, enqueued_at, result_ttl, logged, token, claimed_at, finished_at, expires_at,
        queue_id, lane, attempts, events, state, rank, id, type, request_id, worker, key, head, payload, extra, result)
    SELECT * FROM gone
    RETURNING 1
) SELECT {s}.expect(cardinality($1::bigint[]), count(*)) FROM put;
-- Each revived job draws a number, as a new one does: quotas count again when enough numbers are drawn to fill them.
-- name: revive_jobs
WITH gone AS (
    DELETE FROM {s}.done d USING unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::int[], $5::bytea[], $6::bigint[],
        $7::int[]) AS u (seq, state, visible_at, attempts, extra, logged, events)
    WHERE d.seq = u.seq
    RETURNING d.seq, u.visible_at, d.enqueued_at, d.result_ttl, u.logged, d.token, 0::bigint, d.claimed_at, d.queue_id,
        d.lane, u.attempts, u.events, u.state, d.rank, d.id, d.type, d.request_id, d.worker, d.key, d.head, d.payload,
            u.extra
), put AS (
    INSERT INTO {s}.jobs (seq, visible_at, enqueued_at, result_ttl, logged, token, deadline, claimed_at, queue_id, lane,
        attempts, events, state, rank, id, type, request_id, worker, key, head, payload, extra)
    SELECT * FROM gone WHERE nextval('{s}.seqs') > 0
    RETURNING 1
) SELECT {s}.expect(cardinality($1::bigint[]), count(*)) FROM put;
-- name: save_expiry
WITH changed AS (
    UPDATE {s}.done d SET result_ttl = u.ttl, expires_at = u.expires_at
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS u (seq, ttl, expires_at) WHERE d.seq = u.seq
    RETURNING 1
) SELECT {s}.expect(cardinality($1::bigint[]), count(*)) FROM changed;
-- name: forget_jobs
WITH changed AS (DELETE FROM {s}.done WHERE seq = ANY ($1::bigint[]) RETURNING 1)
SELECT {s}.expect(cardinality($1::bigint[]), count(*)) FROM changed;
-- name: count_purges
SELECT tenant, series, count, filed_under
FROM {s}.count_purges($1::text[], $2::bigint[], $3::bigint[], $4::bigint, $5::bigint, $6::bigint, $7::int);
-- name: log
SELECT {s}.log($1::bigint, $2::bigint, $3::int, $4::smallint[], $5::int[], $6::text[], $7::text[], $8::int[],
    $9::bigint[], $10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bytea[], $15::int[], $16::int[]);

-- Keys. [ENQ-3]
-- name: lock_keys
SELECT pg_advisory_xact_lock(hashtextextended(k, 3)) FROM (SELECT k FROM unnest($1::text[]) AS u (k) ORDER BY k) u;
-- name: try_lock_keys
SELECT {s}.try_lock_keys($1::text[]);
-- name: find_keys
SELECT k.lane, k.type, k.key, k.job_id, k.policy, k.expires_at, {s}.now_ms() AS now
FROM unnest($1::int[], $2::text[], $3::text[]) AS u (lane, type, key)
JOIN {s}.keys k ON k.lane = u.lane AND k.type = u.type AND k.key = u.key WHERE {check_cache:4};
-- name: bind_keys
INSERT INTO {s}.keys (lane, type, key, job_id, policy, expires_at)
SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])
ON CONFLICT (lane, type, key) DO UPDATE
SET job_id = excluded.job_id, policy = excluded.policy, expires_at = excluded.expires_at
RETURNING lane, type, key, xmax <> 0 AS was_there;
-- A key that another job holds by now stays as it is.
-- name: drop_keys
DELETE FROM {s}.keys k USING unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::text[])
    AS u (lane, type, key, job_id, policy)
WHERE k.lane = u.lane AND k.type = u.type AND k.key = u.key AND k.job_id = u.job_id AND k.policy = u.policy;

-- Quotas. Waiting jobs are counted up to the quota, leased ones only if many wait. [TENANT-5]
-- name: quotas
SELECT tenant, queue, max_waiting FROM {s}.settings WHERE tenant = ANY ($1::text[]) AND max_waiting IS NOT NULL;
-- name: drawn
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {s}.seqs;
-- name: lane_waiting
SELECT w.waiting, CASE WHEN w.waiting >= $4::bigint THEN (
    SELECT count(*) FROM {s}.jobs WHERE state = {state:leased} AND lane = ANY (
        ARRAY(SELECT lane FROM {s}.lanes WHERE tenant = $1::text AND queue = $2::text))) END AS leased
FROM (SELECT count(*) AS waiting FROM (
    SELECT FROM {s}.lanes l JOIN {s}.jobs j ON j.queue_id = l.queue_id AND j.lane = l.lane AND j.state < {state:leased}
    WHERE l.tenant = $1::text AND l.queue = $2::text LIMIT $3::bigint) x) w;
-- name: tenant_waiting
SELECT w.waiting, CASE WHEN w.waiting >= $3::bigint THEN (
    SELECT count(*) FROM {s}.jobs WHERE state = {state:leased} AND lane = ANY (
        ARRAY(SELECT lane FROM {s}.lanes WHERE tenant = $1::text))) END AS leased
FROM (SELECT count(*) AS waiting FROM (
    SELECT FROM {s}.lanes l JOIN {s}.jobs j ON j.queue_id = l.queue_id AND j.lane = l.lane AND j.state < {state:leased}
    WHERE l.tenant = $1::text LIMIT $2::bigint) x) w;

-- Reading.
-- name: list_waiting
SELECT {hot} FROM {s}.jobs WHERE queue_id = $1 AND lane = $2 AND state < {state:leased} AND (rank, visible_at,
    seq) > ($3, $4, $5)
    AND {check_cache:7} ORDER BY rank, visible_at, seq LIMIT $6;
-- name: list_leased
SELECT {hot} FROM {s}.jobs WHERE lane = $2 AND state = {state:leased} AND (deadline, seq) > ($3, $4)
    AND queue_id = $1 AND {check_cache:6} ORDER BY deadline, seq LIMIT $5;
-- name: list_ended
SELECT {cold} FROM {s}.done WHERE lane = $2 AND (finished_at, seq) > ($3, $4) AND queue_id = $1
    AND {check_cache:6} ORDER BY finished_at, seq LIMIT $5;
-- name: list_dead
SELECT {cold} FROM {s}.done WHERE lane = $2 AND state = {state:failed} AND (finished_at, seq) > ($3, $4) AND queue_id = $1
    AND {check_cache:6} ORDER BY finished_at, seq LIMIT $5;
-- Lists by time, the latest first. Those of the ten priorities are merged.
-- name: newest_waiting
SELECT j.* FROM generate_series(0, 9) AS r (rank) CROSS JOIN LATERAL (
    SELECT {hot} FROM {s}.jobs WHERE queue_id = $1 AND lane = $2 AND state < {state:leased} AND jobs.rank = r.rank
        AND (visible_at, seq) < ($3, $4) AND visible_at >= $5 ORDER BY visible_at DESC, seq DESC LIMIT $6
) j WHERE {check_cache:7} ORDER BY visible_at DESC, seq DESC LIMIT $6;
-- name: newest_leased
SELECT {hot} FROM {s}.jobs WHERE lane = $2 AND state = {state:leased} AND (deadline, seq) < ($3, $4) AND deadline >= $5
    AND queue_id = $1 AND {check_cache:7} ORDER BY deadline DESC, seq DESC LIMIT $6;
-- name: newest_ended
SELECT {cold} FROM {s}.done WHERE lane = $2 AND (finished_at, seq) < ($3, $4) AND finished_at >= $5 AND queue_id = $1
    AND {check_cache:7} ORDER BY finished_at DESC, seq DESC LIMIT $6;
-- name: newest_dead
SELECT {cold} FROM {s}.done WHERE lane = $2 AND state = {state:failed} AND (finished_at, seq) < ($3, $4)
    AND finished_at >= $5 AND queue_id = $1 AND {check_cache:7} ORDER BY finished_at DESC, seq DESC LIMIT $6;
-- name: queues_after
SELECT lane, queue, paused FROM {s}.lanes WHERE tenant = $1 AND queue > $2 ORDER BY queue LIMIT $3;
-- name: queues_named
SELECT lane, queue, paused FROM {s}.lanes WHERE tenant = $1 AND queue = ANY ($2::text[]);
-- name: count_jobs
SELECT lane, now, counts, stored, oldest, uncounted FROM {s}.count_jobs($1::int[], $2, $3);
-- For each tenant after a position, its first queue that has jobs. Returns up to $4 tenants, reads up to $5 lanes.
-- name: lanes_after
WITH RECURSIVE changed AS MATERIALIZED (
    SELECT u.lane, sum(u.leased) AS leased FROM {s}.uncounted() x CROSS JOIN LATERAL {s}.usage_rows(x.usage) u
        GROUP BY u.lane
), walk AS (
    SELECT $1::text COLLATE "C" AS tenant, $2::text COLLATE "C" AS queue, false AS used, 0 AS found, 0 AS lanes_read
    UNION ALL
    SELECT l.tenant, l.queue, u.used, w.found + u.used::int, w.lanes_read + 1
    FROM walk w CROSS JOIN LATERAL (
        SELECT * FROM {s}.lanes l
        WHERE (l.tenant, l.queue) > (w.tenant, CASE WHEN w.used THEN $3::text COLLATE "C" ELSE w.queue END)
        ORDER BY l.tenant, l.queue LIMIT 1
    ) l CROSS JOIN LATERAL (
        SELECT EXISTS (SELECT FROM {s}.jobs j WHERE j.lane = l.lane AND j.queue_id = l.queue_id
            AND j.state < {state:leased})
            OR EXISTS (SELECT FROM {s}.done d WHERE d.lane = l.lane)
            OR coalesce((SELECT c.leased FROM {s}.lane_counts c WHERE c.lane = l.lane), 0)
                + coalesce((SELECT c.leased FROM changed c WHERE c.lane = l.lane), 0) > 0 AS used
    ) u
    WHERE w.found < $4 AND w.lanes_read < $5
) SELECT tenant, queue, used FROM walk WHERE lanes_read > 0 ORDER BY lanes_read;
-- name: purge_counts
SELECT tenant, series,
    count FROM {s}.purges WHERE tenant > $1 AND ($2::text IS NULL OR tenant = $2) ORDER BY tenant LIMIT $3;
-- name: tenants_with_settings
SELECT DISTINCT tenant FROM {s}.settings WHERE tenant > $1 OR tenant = $2 ORDER BY tenant LIMIT $3;
-- name: settings
SELECT queue, weight, max_waiting, budgets::text FROM {s}.settings WHERE tenant = $1 ORDER BY queue;
-- name: workers
SELECT worker_id, expires_at > {s}.now_ms() AS lives, info, started_at, seen_at FROM {s}.workers
WHERE worker_id > $1 ORDER BY worker_id LIMIT $2;

-- The log. Readers stay below every open transaction of this database. [EVENT-2]
-- name: log_ends
SELECT t.trimmed_epoch, t.trimmed_xid, t.trimmed_n, t.trimmed_k, t.floor_epoch, t.floor_xid, t.floor_n, t.floor_k,
    t.version,
    e.epoch, e.xid, e.n, e.count,
    EXISTS (SELECT FROM {s}.events f WHERE f.epoch = m.epoch
        AND f.xid >= h.xid) AS held,
    (SELECT ARRAY[b.epoch, b.xid - 1] FROM {s}.epochs b WHERE b.epoch = m.epoch) AS begins,
    (SELECT ARRAY[g.epoch, g.xid - 1, g.last_epoch, g.last_xid, g.last_n, g.last_k] FROM {s}.epochs g
        WHERE (g.epoch, g.xid) > ($1, $2::bigint) ORDER BY g.epoch LIMIT 1) AS gap
FROM {s}.horizon() AS h (xid) CROSS JOIN {s}.meta m CROSS JOIN {s}.trimming t LEFT JOIN LATERAL (
    SELECT * FROM {s}.events e WHERE (e.epoch, e.xid) < (m.epoch, h.xid)
    ORDER BY e.epoch DESC, e.xid DESC, e.n DESC LIMIT 1
) e ON true WHERE {check_cache:3};
-- name: log_written
SELECT epoch, xid, n, count FROM {s}.events ORDER BY epoch DESC, xid DESC, n DESC LIMIT 1;
-- name: events
SELECT epoch, xid, n, 0 AS first, at, count, kinds, lanes, ids, types, attempts, tokens, workers, xs, ys, zs, more,
    numbers FROM {s}.events
WHERE (epoch, xid, n) >= ($1, $2, $3) AND (epoch, xid, n) <= ($4, $5, $6) AND {check_cache:8} ORDER BY epoch, xid,
    n LIMIT $7;
-- name: kept_events
SELECT epoch, xid, n, first, at, count, kinds, lanes, ids, types, attempts, tokens, workers, xs, ys, zs, more, numbers
FROM {s}.kept_events WHERE (epoch, xid, n) >= ($1, $2, $3) AND (epoch, xid, n, first + count) > ($1, $2, $3, $4)
    AND (epoch, xid, n, first) < ($5, $6, $7, $8) AND {check_cache:10}
ORDER BY epoch, xid, n, first LIMIT $9;
-- name: kept_events_of
SELECT epoch, xid, n, first, at, count, kinds, lanes, ids, types, attempts, tokens, workers, xs, ys, zs, more, numbers
FROM {s}.kept_events WHERE (epoch, xid, n) >= ($1, $2, $3) AND (epoch, xid, n, first + count) > ($1, $2, $3, $4)
    AND (epoch, xid, n, first) < ($5, $6, $7, $8) AND {check_cache:10} AND tenant = $11
ORDER BY tenant, epoch, xid, n, first LIMIT $9;
-- name: trimmed
SELECT version, trimmed_epoch, trimmed_xid, trimmed_n, trimmed_k FROM {s}.trimming;
-- Tenants that have lost events after a position, and up to where.
-- name: cuts
SELECT tenant, epoch, xid, n, k FROM {s}.cuts WHERE (epoch, xid, n, k) > ($1, $2, $3, $4) ORDER BY tenant;
-- name: cut_of
SELECT epoch, xid, n, k FROM {s}.cuts WHERE tenant = $1;
-- The rows of the log that fill a piece of $7 events, after $9 earlier events.
-- name: log_cuts
SELECT epoch, xid, n, count FROM (
    SELECT epoch, xid, n, count, $9::bigint + sum(count) OVER (ORDER BY epoch, xid, n) AS total FROM {s}.events
    WHERE (epoch, xid, n) > ($1, $2, $3) AND (epoch, xid, n) <= ($4, $5, $6)
) e WHERE total / $7::bigint > (total - count) / $7::bigint ORDER BY epoch, xid, n LIMIT $8;
-- name: kept_cuts
SELECT epoch, xid, n, first + count FROM (
    SELECT epoch, xid, n, first, count, sum(count) OVER (ORDER BY epoch, xid, n, first) AS total FROM {s}.kept_events
    WHERE (epoch, xid, n) >= ($1, $2, $3) AND (epoch, xid, n, first + count) > ($1, $2, $3, $4)
    AND (epoch, xid, n, first) < ($5, $6, $7, $8)
) e WHERE total / $9::bigint > (total - count) / $9::bigint ORDER BY epoch, xid, n, first LIMIT $10;
-- name: kept_between
SELECT coalesce(sum(count), 0)::bigint FROM {s}.kept_events
WHERE (epoch, xid, n) >= ($1, $2, $3) AND (epoch, xid, n, first + count) > ($1, $2, $3, $4)
    AND (epoch, xid, n, first) < ($5, $6, $7, $8);
-- name: set_reader
INSERT INTO {s}.readers VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (tenant, name) DO UPDATE
SET epoch = excluded.epoch, xid = excluded.xid, n = excluded.n, k = excluded.k
WHERE (readers.epoch, readers.xid, readers.n, readers.k) < (excluded.epoch, excluded.xid, excluded.n, excluded.k);
-- name: drop_reader
DELETE FROM {s}.readers WHERE tenant = $1 AND name = $2 RETURNING 1;
-- name: readers
SELECT name, epoch, xid, n, k FROM {s}.readers WHERE tenant = $1 ORDER BY name;
-- name: slowest_readers
SELECT DISTINCT ON (tenant) tenant, epoch, xid, n, k FROM {s}.readers WHERE tenant = ANY ($1::text[])
ORDER BY tenant, epoch, xid, n, k;
-- The number of events; and, if that is above $1, the counts of tenants with more than an equal share. All other tenants
-- are below the level.
-- name: events_kept
SELECT s.total, u.events FROM (
    SELECT coalesce(sum(events), 0)::bigint AS total, count(*) AS tenants FROM {s}.usage WHERE events > 0
) s LEFT JOIN {s}.usage u ON s.total > $1 AND u.events > $1 / nullif(s.tenants, 0);
-- name: most_events
SELECT t.version, u.tenant, u.events FROM {s}.trimming t LEFT JOIN {s}.usage u ON u.events > $1;
-- name: count_step
SELECT {s}.count_step($1, $2, $3, $4, $5);
-- name: trim_step
SELECT gone, more FROM {s}.trim_step($1, $2::text[], $3::bigint[], $4::bigint[], $5::int[], $6::bigint[], $7::bigint[],
    $8::int[], $9, $10);
-- name: usage
SELECT greatest(u.jobs, 0), greatest(u.keys, 0), greatest(u.bytes, 0), greatest(u.queues, 0) + p.queues,
    greatest(u.events, 0)
FROM (SELECT count(*) AS queues FROM (
    SELECT FROM {s}.lanes l LEFT JOIN {s}.lane_counts j ON j.lane = l.lane
    WHERE l.tenant = $1 AND l.paused AND coalesce(j.jobs, 0) <= 0 LIMIT $2) x) p
LEFT JOIN {s}.usage u ON u.tenant = $1;
-- name: change_usage
INSERT INTO {s}.usage_changes (usage) VALUES ($1::int[]);
-- The partitions: which are empty or fully trimmed, which one is in use, and its size.
-- name: slots
SELECT s.slot, e.n IS NULL AS empty, s.slot = m.slot AS written,
    (e.epoch, e.xid, e.n) <= (t.trimmed_epoch, t.trimmed_xid, t.trimmed_n) AS trimmed,
    CASE WHEN s.slot = m.slot THEN pg_total_relation_size(('{s}.events_' || m.slot)::regclass) END AS size
FROM {s}.meta m CROSS JOIN {s}.trimming t CROSS JOIN generate_series(0, {slots} - 1) AS s (slot) LEFT JOIN LATERAL (
    SELECT epoch, xid, n FROM {s}.events WHERE events.slot = s.slot ORDER BY epoch DESC, xid DESC, n DESC LIMIT 1
) e ON true ORDER BY s.slot;
-- name: switch_slot
UPDATE {s}.meta SET slot = $2 WHERE slot = $1;
-- name: lock_slot_{slot}
LOCK TABLE {s}.events_{slot} IN ACCESS EXCLUSIVE MODE;
-- name: slot_is_trimmed_{slot}
SELECT NOT EXISTS (SELECT FROM {s}.trimming t JOIN {s}.events_{slot} e
    ON (e.epoch, e.xid, e.n) > (t.trimmed_epoch, t.trimmed_xid, t.trimmed_n));
-- name: truncate_slot_{slot}
TRUNCATE {s}.events_{slot};
-- name: notify
SELECT set_config('synchronous_commit', 'off', true), pg_notify(channel, hint)
FROM unnest($1::text[], $2::text[]) AS u (channel, hint);

-- Settings, workers, upkeep.
-- name: set_settings
INSERT INTO {s}.settings VALUES ($1, $2, $3, $4, $5::text::jsonb) ON CONFLICT (tenant, queue) DO UPDATE
SET weight = coalesce(excluded.weight, settings.weight), max_waiting = coalesce(excluded.max_waiting, settings.max_waiting),
    budgets = coalesce(settings.budgets || excluded.budgets, excluded.budgets, settings.budgets);
-- name: beat
INSERT INTO {s}.workers SELECT $1, n + $2, n, n, $3 FROM {s}.now_ms() n ON CONFLICT (worker_id) DO UPDATE
SET expires_at = excluded.expires_at, seen_at = excluded.seen_at, info = excluded.info,
    started_at = CASE WHEN workers.expires_at <= excluded.seen_at THEN excluded.seen_at ELSE workers.started_at END;
-- name: sign_off
DELETE FROM {s}.workers WHERE worker_id = $1;
-- name: forget_workers
DELETE FROM {s}.workers WHERE expires_at <= $1;
-- Skips locked rows: it waits for no other transaction.
-- name: expired_jobs
SELECT d.lane, d.state, d.id, d.seq, d.logged, d.result,
    octet_length(d.payload) + coalesce(octet_length(d.extra), 0) + coalesce(octet_length(d.result),
        0) AS size FROM {s}.done d
JOIN {s}.ids ON ids.lane = d.lane AND ids.id = d.id AND ids.seq = d.seq
WHERE d.expires_at <= $1 AND {check_cache:3} ORDER BY d.expires_at, d.seq LIMIT $2 FOR UPDATE OF ids, d SKIP LOCKED;
-- name: any_expired
SELECT EXISTS (SELECT FROM {s}.done WHERE expires_at <= $1 ORDER BY expires_at LIMIT 1);
-- Locks the expired keys first, so that another job binds none of them meanwhile. Locked ones are left for the next time.
-- name: drop_expired_keys
WITH expired AS MATERIALIZED (
    SELECT lane, type, key FROM {s}.keys WHERE expires_at IS NOT NULL AND expires_at <= $1
    ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
)
DELETE FROM {s}.keys k USING expired e WHERE k.lane = e.lane AND k.type = e.type AND k.key = e.key RETURNING k.lane;
-- name: drop_blobs
INSERT INTO {s}.dropped_blobs SELECT unnest($1::text[]) ON CONFLICT DO NOTHING;
-- name: take_blobs
DELETE FROM {s}.dropped_blobs WHERE name IN (SELECT name FROM {s}.dropped_blobs LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING name;

-- The doctor.
-- name: durability
SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit;

-- Joining a caller's transaction. [ENQ-7]
-- A hint that is sent with the caller's own commit. The caller's settings decide whether that commit is flushed.
-- name: notify_joined
SELECT pg_notify(channel, hint) FROM unnest($1::text[], $2::text[]) AS u (channel, hint);
-- Where a connection leads: the same answer on two connections means the same tables on the same server.
-- name: connection_target
SELECT pg_postmaster_start_time() AS started, current_database()::text AS name,
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS number,
    to_regclass($1::text)::oid::bigint AS jobs, pg_is_in_recovery() AS replica;

-- The doctor. These need no schema, and work on a replica.
-- name: doctor_server
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
    current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('full_page_writes') AS full_page_writes, current_setting('autovacuum') AS autovacuum,
    current_setting('synchronous_standby_names') AS synchronous_standby_names, pg_is_in_recovery() AS replica,
    current_setting('transaction_read_only') AS read_only, current_user::text AS role,
    (SELECT setting::int FROM pg_settings WHERE name = 'lock_timeout') AS lock_ms,
    (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout') AS statement_ms,
    (SELECT setting::int FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout') AS idle_ms,
    current_setting('max_connections')::int AS max_connections,
    current_setting('superuser_reserved_connections')::int
        + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connected,
    (SELECT count(*) FROM pg_stat_activity WHERE query = '<insufficient privilege>') AS hidden,
    (SELECT max(age(datfrozenxid)) FROM pg_database) AS oldest_xid,
    extract(epoch FROM clock_timestamp())::float8 AS clock;
-- name: doctor_transactions
SELECT pid, coalesce(usename, '')::text AS role, coalesce(application_name, '') AS program, coalesce(state, '') AS state,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s
FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
ORDER BY xact_start LIMIT 1;
-- name: doctor_prepared
SELECT gid, owner::text AS role, database::text AS database,
    extract(epoch FROM clock_timestamp() - prepared)::float8 AS age_s
FROM pg_prepared_xacts ORDER BY prepared LIMIT 1;
-- name: doctor_slots
SELECT slot_name::text AS name FROM pg_replication_slots WHERE NOT active ORDER BY 1;
-- name: doctor_standbys
SELECT coalesce(application_name, '') AS name, coalesce(state, '') AS state, coalesce(sync_state, '') AS sync_state,
    extract(epoch FROM replay_lag)::float8 AS lag_s
FROM pg_stat_replication WHERE state <> 'backup' ORDER BY 1;
-- name: doctor_tables
SELECT relname::text AS name, n_live_tup AS live, n_dead_tup AS dead, pg_total_relation_size(relid) AS size,
    extract(epoch FROM clock_timestamp() - greatest(last_autovacuum, last_vacuum))::float8 AS vacuumed_s
FROM pg_stat_user_tables WHERE schemaname = $1::text ORDER BY 1;
-- name: doctor_indexes
SELECT c.relname::text AS name, t.relname::text AS on_table, i.indisvalid AND i.indisready AS valid,
    CASE WHEN c.relkind = 'i' THEN pg_relation_size(c.oid) ELSE 0 END AS size
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1::text ORDER BY 1;
