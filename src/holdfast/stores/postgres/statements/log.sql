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
