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
-- A caller's transaction marks that it enqueues for a tenant.
-- name: join_tenant
SELECT pg_advisory_xact_lock_shared(hashtextextended($1::text, 8));
-- Whether no open transaction has marked that.
-- name: tenant_unjoined
SELECT CASE WHEN pg_try_advisory_lock(k) THEN pg_advisory_unlock(k) ELSE false END
FROM (SELECT hashtextextended($1::text, 8) AS k) x;
-- name: xid
SELECT {s}.xid();
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
