-- Reading jobs.

-- name: find
SELECT u.i, {s}.now_ms() AS now, x.* FROM unnest($1::int[], $2::text[]) WITH ORDINALITY AS u (lane, id, i)
JOIN {s}.ids ON ids.lane = u.lane AND ids.id = u.id
CROSS JOIN LATERAL (
    SELECT {hot} FROM {s}.jobs WHERE seq = ids.seq
    UNION ALL
    SELECT {cold} FROM {s}.done WHERE seq = ids.seq
) x WHERE {check_cache:3};
-- A job. If it is visible, also counts the visible jobs before it in its lane ($2, of queue $1), up to $5, and the other lanes
-- with visible jobs, up to $6, among $7 lanes with waiting jobs. It skips from lane to lane in the index. A LIMIT in each
-- LATERAL makes the planner probe the index by priority. Without it, old statistics lead to a join of all jobs of the lane.
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
        SELECT FROM visible v CROSS JOIN LATERAL generate_series(0, v.rank - 1) AS p (rank) CROSS JOIN LATERAL (
            SELECT FROM {s}.jobs j WHERE j.queue_id = $1 AND j.lane = $2 AND j.state < {state:leased}
                AND j.rank = p.rank AND j.visible_at <= v.now LIMIT $5
        ) y
        UNION ALL
        SELECT FROM visible v CROSS JOIN LATERAL (
            SELECT FROM {s}.jobs j WHERE j.queue_id = $1 AND j.lane = $2 AND j.state < {state:leased}
                AND j.rank = v.rank AND (j.visible_at, j.seq) < (v.visible_at, v.seq) LIMIT $5
        ) y
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
-- name: count_jobs
SELECT lane, now, counts, stored, oldest, uncounted FROM {s}.count_jobs($1::int[], $2, $3);
-- name: purge_counts
SELECT tenant, series,
    count FROM {s}.purges WHERE tenant > $1 AND ($2::text IS NULL OR tenant = $2) ORDER BY tenant LIMIT $3;
