-- Clock, settings, workers, upkeep.

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
-- name: tenants_with_settings
SELECT DISTINCT tenant FROM {s}.settings WHERE tenant > $1 OR tenant = $2 ORDER BY tenant LIMIT $3;
-- name: settings
SELECT queue, weight, max_waiting, budgets::text FROM {s}.settings WHERE tenant = $1 ORDER BY queue;
-- name: workers
SELECT worker_id, expires_at > {s}.now_ms() AS lives, info, started_at, seen_at FROM {s}.workers
WHERE worker_id > $1 ORDER BY worker_id LIMIT $2;
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
