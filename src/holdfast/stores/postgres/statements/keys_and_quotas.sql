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
