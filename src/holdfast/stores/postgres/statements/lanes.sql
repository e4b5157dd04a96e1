-- Lanes and queue names.

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
-- name: find_queue
SELECT queue_id FROM {s}.queues WHERE queue = $1 AND {check_cache:2};
-- The lanes of a queue name that have waiting jobs, and when the first job is visible. Skips from lane to lane in the index.
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
-- name: queues_after
SELECT lane, queue, paused FROM {s}.lanes WHERE tenant = $1 AND queue > $2 ORDER BY queue LIMIT $3;
-- name: queues_named
SELECT lane, queue, paused FROM {s}.lanes WHERE tenant = $1 AND queue = ANY ($2::text[]);
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
