-- Counts: every call states its changes in its row of the log, and upkeep adds them up. [TENANT-5]

-- Adds the next rows of the log, up to this position, and `usage_changes` to the counts. Answers whether there were any.
-- Without p_wait it does nothing while another step runs. A pruner waits: it must not trim by counts that are not complete.
CREATE FUNCTION {s}.count_step(p_epoch int, p_xid bigint, p_n bigint, p_limit int, p_wait boolean) RETURNS boolean LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = on
SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_at {s}.trimming;
    v_last record;
BEGIN
    IF p_wait THEN
        SELECT * INTO v_at FROM {s}.trimming FOR UPDATE;
    ELSE
        SELECT * INTO v_at FROM {s}.trimming FOR UPDATE SKIP LOCKED;
    END IF;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH next_rows AS MATERIALIZED (
        SELECT * FROM (
            SELECT *, sum(count) OVER (ORDER BY epoch, xid, n) - count AS before FROM (
                SELECT epoch, xid, n, count, lanes, usage FROM {s}.events
                WHERE (epoch, xid, n) > (v_at.counted_epoch, v_at.counted_xid, v_at.counted_n)
                    AND (epoch, xid, n) <= (p_epoch, p_xid, p_n)
                ORDER BY epoch, xid, n LIMIT p_limit
            ) found
        ) x WHERE before < 10 * p_limit
    ), unlogged AS (
        DELETE FROM {s}.usage_changes
        WHERE ctid = ANY (ARRAY(SELECT ctid FROM {s}.usage_changes LIMIT p_limit FOR UPDATE SKIP LOCKED))
        RETURNING usage
    ), stated AS MATERIALIZED (
        SELECT u.lane, sum(u.keys) AS keys, sum(u.bytes) AS bytes, sum(u.blocked) AS blocked,
            sum(u.scheduled) AS scheduled, sum(u.ready) AS ready, sum(u.retrying) AS retrying, sum(u.leased) AS leased,
            sum(u.completed) AS completed, sum(u.failed) AS failed, sum(u.canceled) AS canceled,
            sum(u.blocked + u.scheduled + u.ready + u.retrying + u.leased + u.completed + u.failed + u.canceled) AS jobs
        FROM (SELECT usage FROM next_rows UNION ALL SELECT usage
            FROM unlogged) x CROSS JOIN LATERAL {s}.usage_rows(x.usage) u
        GROUP BY u.lane
    ), logged AS (
        SELECT lane, sum(events) AS events FROM (
            SELECT lanes[1] AS lane, count AS events FROM next_rows WHERE cardinality(lanes) = 1
            UNION ALL
            SELECT u.lane, 1 FROM next_rows CROSS JOIN unnest(lanes) AS u (lane) WHERE cardinality(lanes) > 1
        ) x GROUP BY lane
    ), counted AS (
        INSERT INTO {s}.lane_counts AS l (lane, blocked, scheduled, ready, retrying, leased, completed, failed, canceled)
        SELECT lane, blocked, scheduled, ready, retrying, leased, completed, failed, canceled FROM stated
        ON CONFLICT (lane) DO UPDATE SET blocked = l.blocked + excluded.blocked,
            scheduled = l.scheduled + excluded.scheduled, ready = l.ready + excluded.ready,
            retrying = l.retrying + excluded.retrying, leased = l.leased + excluded.leased,
            completed = l.completed + excluded.completed, failed = l.failed + excluded.failed,
            canceled = l.canceled + excluded.canceled
        RETURNING lane, jobs
    ), put AS (
        INSERT INTO {s}.usage AS u (tenant, jobs, keys, bytes, queues, events)
        SELECT (SELECT l.tenant FROM {s}.lanes l WHERE l.lane = x.lane), sum(x.jobs), sum(x.keys), sum(x.bytes),
            sum(x.queues),
            sum(x.events)
        FROM (
            SELECT s.lane, s.jobs, s.keys, s.bytes, (c.jobs > 0)::int - (c.jobs - s.jobs > 0)::int AS queues, 0 AS events
            FROM stated s JOIN counted c ON c.lane = s.lane
            UNION ALL
            SELECT lane, 0, 0, 0, 0, events FROM logged
        ) x GROUP BY 1
        ON CONFLICT (tenant) DO UPDATE SET jobs = u.jobs + excluded.jobs, keys = u.keys + excluded.keys,
            bytes = u.bytes + excluded.bytes, queues = u.queues + excluded.queues, events = u.events + excluded.events
    )
    SELECT x.epoch, x.xid, x.n, (SELECT count(*) FROM unlogged) AS unlogged INTO v_last
    FROM (VALUES (1)) AS one LEFT JOIN (SELECT epoch, xid, n FROM next_rows ORDER BY epoch DESC, xid DESC,
        n DESC LIMIT 1) x ON true;
    IF v_last.epoch IS NULL AND v_last.unlogged = 0 THEN
        RETURN false;
    END IF;
    UPDATE {s}.trimming SET counted_epoch = coalesce(v_last.epoch, counted_epoch),
        counted_xid = coalesce(v_last.xid, counted_xid), counted_n = coalesce(v_last.n, counted_n);
    RETURN true;
END $$;

-- The changes that `lane_counts` and `usage` do not include yet: in rows of the log after the counted ones, and of calls that
-- make no event.
CREATE FUNCTION {s}.uncounted() RETURNS TABLE (usage int[]) LANGUAGE sql STABLE AS $$
    SELECT e.usage FROM {s}.trimming t CROSS JOIN LATERAL (
        SELECT e.usage FROM {s}.events e WHERE (e.epoch, e.xid, e.n) > (t.counted_epoch, t.counted_xid, t.counted_n)
    ) e
    UNION ALL
    SELECT usage FROM {s}.usage_changes
$$;

-- Counts the jobs of these lanes by state, as shown now, and tells since when the oldest visible one has been waiting.
-- Exact: the counted jobs plus the changes that are not counted yet. No statement here reads all jobs of a lane.
--
-- A job stored as scheduled or retrying shows as ready once it is due. For each lane, up to p_scan jobs that are not due
-- are read; if there are more, the first p_scan due jobs instead. If both sides have more, the due jobs after those first
-- ones count under their stored state. Finished jobs past their retention that wait to be pruned are subtracted, as far as
-- they are among the first p_expired of the store; `stored` includes them.
--
-- Also answers how many changes are not counted yet. VOLATILE, so that the snapshot is taken after the partitions of the log
-- are locked: a snapshot does not keep truncated rows.
CREATE FUNCTION {s}.count_jobs(p_lanes int[], p_scan int, p_expired int)
RETURNS TABLE (lane int, now bigint, counts bigint[], stored bigint, oldest bigint,
    uncounted bigint) LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := {s}.now_ms();
BEGIN
    RETURN QUERY
    WITH changes AS MATERIALIZED (
        SELECT x.usage FROM {s}.uncounted() x
    ), changed AS MATERIALIZED (
        SELECT u.lane, sum(u.blocked) AS blocked, sum(u.scheduled) AS scheduled, sum(u.ready) AS ready,
            sum(u.retrying) AS retrying, sum(u.leased) AS leased, sum(u.completed) AS completed, sum(u.failed) AS failed,
            sum(u.canceled) AS canceled
        FROM changes x CROSS JOIN LATERAL {s}.usage_rows(x.usage) u WHERE u.lane = ANY (p_lanes) GROUP BY u.lane
    ), expired AS MATERIALIZED (
        SELECT d.lane, d.state FROM (
            SELECT d.lane, d.state FROM {s}.done d WHERE d.expires_at <= v_now ORDER BY d.expires_at, d.seq LIMIT p_expired
        ) d WHERE d.lane = ANY (p_lanes)
    ), summed AS (
        SELECT x.lane, sum(x.expired)::bigint AS expired, sum(x.blocked)::bigint AS blocked,
            sum(x.scheduled)::bigint AS scheduled, sum(x.ready)::bigint AS ready, sum(x.retrying)::bigint AS retrying,
            sum(x.leased)::bigint AS leased, sum(x.completed)::bigint AS completed, sum(x.failed)::bigint AS failed,
            sum(x.canceled)::bigint AS canceled
        FROM (
            SELECT c.lane, 0 AS expired, c.blocked, c.scheduled, c.ready, c.retrying, c.leased, c.completed, c.failed,
                c.canceled
            FROM {s}.lane_counts c WHERE c.lane = ANY (p_lanes)
            UNION ALL
            SELECT c.lane, 0, c.blocked, c.scheduled, c.ready, c.retrying, c.leased, c.completed, c.failed,
                c.canceled FROM changed c
            UNION ALL
            SELECT e.lane, 1, 0, 0, 0, 0, 0, -(e.state = {state:completed})::int, -(e.state = {state:failed})::int,
                -(e.state = {state:canceled})::int
            FROM expired e
            UNION ALL
            SELECT u.lane, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM unnest(p_lanes) AS u (lane)
        ) x GROUP BY x.lane
    )
    SELECT s.lane, v_now, ARRAY[s.blocked, w.scheduled, s.scheduled + s.ready + s.retrying - w.scheduled - w.retrying,
        w.retrying,
        s.leased, s.completed, s.failed, s.canceled],
        s.blocked + s.scheduled + s.ready + s.retrying + s.leased + s.completed + s.failed + s.canceled + s.expired,
            o.oldest, (SELECT count(*) FROM changes)
    FROM summed s JOIN {s}.lanes l ON l.lane = s.lane
    CROSS JOIN LATERAL (
        SELECT min(x.visible_at) AS oldest FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
            SELECT j.visible_at FROM {s}.jobs j WHERE j.queue_id = l.queue_id AND j.lane = l.lane AND j.rank = p.rank
                AND j.visible_at <= v_now AND j.state < {state:leased}
            ORDER BY j.visible_at, j.seq LIMIT 1
        ) x WHERE l.ranks & (1 << p.rank) <> 0
    ) o CROSS JOIN LATERAL (
        SELECT count(*) AS read, count(*) FILTER (WHERE x.state = {state:scheduled}) AS scheduled,
            count(*) FILTER (WHERE x.state = {state:retrying}) AS retrying
        FROM (
            SELECT j.state FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
                SELECT j.state FROM {s}.jobs j WHERE j.queue_id = l.queue_id AND j.lane = l.lane AND j.rank = p.rank
                    AND j.visible_at > v_now AND j.state < {state:leased}
                ORDER BY j.visible_at LIMIT p_scan
            ) j WHERE l.ranks & (1 << p.rank) <> 0 AND s.scheduled + s.retrying > 0 LIMIT p_scan
        ) x
    ) later CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE x.state = {state:scheduled}) AS scheduled,
            count(*) FILTER (WHERE x.state = {state:retrying}) AS retrying
        FROM (
            SELECT j.state FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
                SELECT j.state FROM {s}.jobs j WHERE j.queue_id = l.queue_id AND j.lane = l.lane AND j.rank = p.rank
                    AND j.visible_at <= v_now AND j.state < {state:leased}
                ORDER BY j.visible_at LIMIT p_scan
            ) j WHERE l.ranks & (1 << p.rank) <> 0 AND later.read = p_scan LIMIT p_scan
        ) x
    ) due CROSS JOIN LATERAL (
        SELECT CASE WHEN later.read < p_scan THEN later.scheduled ELSE s.scheduled - due.scheduled END AS scheduled,
            CASE WHEN later.read < p_scan THEN later.retrying ELSE s.retrying - due.retrying END AS retrying
    ) w;
END $$;

-- Recomputes all counts in one statement that reads every job. Exact beside running work: rows of the log that are not counted
-- yet are subtracted, since upkeep will add them. [TENANT-5]
CREATE FUNCTION {s}.recount() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM {s}.trimming FOR UPDATE;
    LOCK TABLE {s}.usage_changes IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM {s}.lane_counts;
    DELETE FROM {s}.usage;
    WITH found AS (
        SELECT lane, 0 AS keys, {record_bytes} + octet_length(payload) + coalesce(octet_length(extra),
            0)::bigint AS bytes, 0 AS events,
            state FROM {s}.jobs
        UNION ALL
        SELECT lane, 0, {record_bytes} + octet_length(payload) + coalesce(octet_length(extra),
            0) + coalesce(octet_length(result), 0),
            0, state FROM {s}.done
        UNION ALL
        SELECT lane, 1, {record_bytes}, 0, NULL FROM {s}.keys WHERE policy IN ('ttl', 'forever')
        UNION ALL
        SELECT coalesce(lanes[i], lanes[1]), 0, 0, 1, NULL FROM {s}.kept_events CROSS JOIN generate_series(1,
            count) AS u (i)
        UNION ALL
        SELECT coalesce(lanes[i], lanes[1]), 0, 0, 1, NULL
        FROM {s}.trimming t JOIN {s}.events e ON (e.epoch, e.xid, e.n) > (t.trimmed_epoch, t.trimmed_xid, t.trimmed_n)
            AND (e.epoch, e.xid, e.n) <= (t.counted_epoch, t.counted_xid, t.counted_n)
        CROSS JOIN generate_series(1, count) AS u (i)
    ), counted AS MATERIALIZED (
        SELECT lane, sum(keys)::bigint AS keys, sum(bytes)::bigint AS bytes, sum(events)::bigint AS events,
            sum(blocked)::bigint AS blocked, sum(scheduled)::bigint AS scheduled, sum(ready)::bigint AS ready,
                sum(retrying)::bigint AS retrying, sum(leased)::bigint AS leased, sum(completed)::bigint AS completed,
                sum(failed)::bigint AS failed, sum(canceled)::bigint AS canceled
        FROM (
            SELECT lane, keys, bytes, events, coalesce(state = {state:blocked}, false)::int AS blocked,
                coalesce(state = {state:scheduled}, false)::int AS scheduled, coalesce(state = {state:ready},
                false)::int AS ready, coalesce(state = {state:retrying}, false)::int AS retrying,
                coalesce(state = {state:leased}, false)::int AS leased, coalesce(state = {state:completed},
                false)::int AS completed, coalesce(state = {state:failed}, false)::int AS failed,
                coalesce(state = {state:canceled}, false)::int AS canceled
            FROM found
            UNION ALL
            SELECT u.lane, -u.keys, -u.bytes, 0, -u.blocked, -u.scheduled, -u.ready, -u.retrying, -u.leased,
                -u.completed, -u.failed, -u.canceled
            FROM {s}.uncounted() x CROSS JOIN LATERAL {s}.usage_rows(x.usage) u
        ) x GROUP BY lane
    ), put AS (
        INSERT INTO {s}.lane_counts (lane, blocked, scheduled, ready, retrying, leased, completed, failed,
            canceled) SELECT lane, blocked, scheduled, ready, retrying, leased, completed, failed, canceled FROM counted
        RETURNING lane, jobs
    )
    INSERT INTO {s}.usage (tenant, jobs, keys, bytes, queues, events)
    SELECT l.tenant, sum(p.jobs), sum(c.keys), sum(c.bytes), count(*) FILTER (WHERE p.jobs > 0), sum(c.events)
    FROM counted c JOIN put p ON p.lane = c.lane JOIN {s}.lanes l ON l.lane = c.lane GROUP BY l.tenant;
    UPDATE {s}.trimming SET version = version + 1;
END $$;
