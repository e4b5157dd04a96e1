-- Counting and trimming in bounded steps. Each step is one transaction and locks the row of `trimming`: if several pruners
-- run, one works and the others stop.

-- A slice of a column of the log. An array of one element stands for all events of the row.
CREATE FUNCTION {s}.part(p_column anyarray, p_from int, p_to int) RETURNS anyarray LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(p_column) > 1 THEN p_column[p_from : p_to] ELSE p_column END
$$;

-- Add the next rows of the log, up to this place, and `usage_changes` to the counts. Answers whether there were any.
CREATE FUNCTION {s}.count_stretch(p_epoch int, p_xid bigint, p_n bigint, p_limit int) RETURNS boolean LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = on
SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    v_at {s}.trimming;
    v_last record;
BEGIN
    SELECT * INTO v_at FROM {s}.trimming FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    WITH stretch AS MATERIALIZED (
        SELECT * FROM (
            SELECT *, sum(count) OVER (ORDER BY epoch, xid, n) - count AS before FROM (
                SELECT epoch, xid, n, count, lanes, usage FROM {s}.events
                WHERE (epoch, xid, n) > (v_at.counted_epoch, v_at.counted_xid, v_at.counted_n)
                    AND (epoch, xid, n) <= (p_epoch, p_xid, p_n)
                ORDER BY epoch, xid, n LIMIT p_limit
            ) found
        ) x WHERE before < 10 * p_limit
    ), said AS (
        DELETE FROM {s}.usage_changes
        WHERE ctid = ANY (ARRAY(SELECT ctid FROM {s}.usage_changes LIMIT p_limit FOR UPDATE SKIP LOCKED))
        RETURNING usage
    ), stated AS MATERIALIZED (
        SELECT u.lane, sum(u.keys) AS keys, sum(u.bytes) AS bytes, sum(u.blocked) AS blocked, sum(u.scheduled) AS scheduled, sum(u.ready) AS ready, sum(u.retrying) AS retrying, sum(u.leased) AS leased, sum(u.completed) AS completed, sum(u.failed) AS failed, sum(u.canceled) AS canceled,
            sum(u.blocked + u.scheduled + u.ready + u.retrying + u.leased + u.completed + u.failed + u.canceled) AS jobs
        FROM (SELECT usage FROM stretch UNION ALL SELECT usage FROM said) x CROSS JOIN LATERAL {s}.usage_rows(x.usage) u
        GROUP BY u.lane
    ), logged AS (
        SELECT lane, sum(events) AS events FROM (
            SELECT lanes[1] AS lane, count AS events FROM stretch WHERE cardinality(lanes) = 1
            UNION ALL
            SELECT u.lane, 1 FROM stretch CROSS JOIN unnest(lanes) AS u (lane) WHERE cardinality(lanes) > 1
        ) x GROUP BY lane
    ), counted AS (
        INSERT INTO {s}.lane_counts AS l (lane, blocked, scheduled, ready, retrying, leased, completed, failed, canceled)
        SELECT lane, blocked, scheduled, ready, retrying, leased, completed, failed, canceled FROM stated
        ON CONFLICT (lane) DO UPDATE SET blocked = l.blocked + excluded.blocked, scheduled = l.scheduled + excluded.scheduled, ready = l.ready + excluded.ready, retrying = l.retrying + excluded.retrying, leased = l.leased + excluded.leased, completed = l.completed + excluded.completed, failed = l.failed + excluded.failed, canceled = l.canceled + excluded.canceled
        RETURNING lane, jobs
    ), put AS (
        INSERT INTO {s}.usage AS u (tenant, jobs, keys, bytes, queues, events)
        SELECT (SELECT l.tenant FROM {s}.lanes l WHERE l.lane = x.lane), sum(x.jobs), sum(x.keys), sum(x.bytes), sum(x.queues),
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
    SELECT x.epoch, x.xid, x.n, (SELECT count(*) FROM said) AS said INTO v_last
    FROM (VALUES (1)) AS one LEFT JOIN (SELECT epoch, xid, n FROM stretch ORDER BY epoch DESC, xid DESC, n DESC LIMIT 1) x ON true;
    IF v_last.epoch IS NULL AND v_last.said = 0 THEN
        RETURN false;
    END IF;
    UPDATE {s}.trimming SET counted_epoch = coalesce(v_last.epoch, counted_epoch),
        counted_xid = coalesce(v_last.xid, counted_xid), counted_n = coalesce(v_last.n, counted_n);
    RETURN true;
END $$;

-- The changes that `lane_counts` and `usage` do not have yet: in rows of the log behind the counted ones, and of calls that make
-- no event.
CREATE FUNCTION {s}.uncounted() RETURNS TABLE (usage int[]) LANGUAGE sql STABLE AS $$
    SELECT e.usage FROM {s}.trimming t CROSS JOIN LATERAL (
        SELECT e.usage FROM {s}.events e WHERE (e.epoch, e.xid, e.n) > (t.counted_epoch, t.counted_xid, t.counted_n)
    ) e
    UNION ALL
    SELECT usage FROM {s}.usage_changes
$$;

-- The jobs of these lanes by state, as shown now, and since when the oldest visible one has been waiting. Exact: the
-- counted jobs plus the changes that are not counted yet. Nothing here reads all jobs of a lane.
--
-- A job that was stored as scheduled or retrying shows as ready once it is due. Per lane, up to p_scan jobs that are not due
-- are read; if there are more, the first p_scan due ones instead. If both sides have more, then jobs that became due but are
-- not among those first ones still count under their stored state. Finished jobs past their retention that wait to be
-- pruned are taken off, as far as they are among the first p_expired of all lanes.
--
-- Also answers how many changes were not counted yet. VOLATILE: the snapshot must be taken after the partitions of the log
-- are locked. A snapshot does not keep truncated rows.
CREATE FUNCTION {s}.count_jobs(p_lanes int[], p_scan int, p_expired int)
RETURNS TABLE (lane int, now bigint, counts bigint[], oldest bigint, uncounted bigint) LANGUAGE plpgsql VOLATILE
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
        SELECT u.lane, sum(u.blocked) AS blocked, sum(u.scheduled) AS scheduled, sum(u.ready) AS ready, sum(u.retrying) AS retrying, sum(u.leased) AS leased, sum(u.completed) AS completed, sum(u.failed) AS failed, sum(u.canceled) AS canceled
        FROM changes x CROSS JOIN LATERAL {s}.usage_rows(x.usage) u WHERE u.lane = ANY (p_lanes) GROUP BY u.lane
    ), expired AS MATERIALIZED (
        SELECT d.lane, d.state FROM (
            SELECT d.lane, d.state FROM {s}.done d WHERE d.expires_at <= v_now ORDER BY d.expires_at, d.seq LIMIT p_expired
        ) d WHERE d.lane = ANY (p_lanes)
    ), summed AS (
        SELECT x.lane, sum(x.blocked)::bigint AS blocked, sum(x.scheduled)::bigint AS scheduled, sum(x.ready)::bigint AS ready, sum(x.retrying)::bigint AS retrying, sum(x.leased)::bigint AS leased, sum(x.completed)::bigint AS completed, sum(x.failed)::bigint AS failed, sum(x.canceled)::bigint AS canceled
        FROM (
            SELECT c.lane, c.blocked, c.scheduled, c.ready, c.retrying, c.leased, c.completed, c.failed, c.canceled
            FROM {s}.lane_counts c WHERE c.lane = ANY (p_lanes)
            UNION ALL
            SELECT c.lane, c.blocked, c.scheduled, c.ready, c.retrying, c.leased, c.completed, c.failed, c.canceled FROM changed c
            UNION ALL
            SELECT e.lane, 0, 0, 0, 0, 0, -(e.state = {state:completed})::int, -(e.state = {state:failed})::int,
                -(e.state = {state:canceled})::int
            FROM expired e
            UNION ALL
            SELECT u.lane, 0, 0, 0, 0, 0, 0, 0, 0 FROM unnest(p_lanes) AS u (lane)
        ) x GROUP BY x.lane
    )
    SELECT s.lane, v_now, ARRAY[s.blocked, w.scheduled, s.scheduled + s.ready + s.retrying - w.scheduled - w.retrying, w.retrying,
        s.leased, s.completed, s.failed, s.canceled], o.oldest, (SELECT count(*) FROM changes)
    FROM summed s JOIN {s}.lanes l ON l.lane = s.lane
    CROSS JOIN LATERAL (
        SELECT min(x.visible_at) AS oldest FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
            SELECT j.visible_at FROM {s}.jobs j WHERE j.line = l.line AND j.lane = l.lane AND j.rank = p.rank
                AND j.visible_at <= v_now AND j.state < {state:leased}
            ORDER BY j.visible_at, j.seq LIMIT 1
        ) x WHERE l.ranks & (1 << p.rank) <> 0
    ) o CROSS JOIN LATERAL (
        SELECT count(*) AS read, count(*) FILTER (WHERE x.state = {state:scheduled}) AS scheduled,
            count(*) FILTER (WHERE x.state = {state:retrying}) AS retrying
        FROM (
            SELECT j.state FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
                SELECT j.state FROM {s}.jobs j WHERE j.line = l.line AND j.lane = l.lane AND j.rank = p.rank
                    AND j.visible_at > v_now AND j.state < {state:leased}
                ORDER BY j.visible_at LIMIT p_scan
            ) j WHERE l.ranks & (1 << p.rank) <> 0 AND s.scheduled + s.retrying > 0 LIMIT p_scan
        ) x
    ) later CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE x.state = {state:scheduled}) AS scheduled,
            count(*) FILTER (WHERE x.state = {state:retrying}) AS retrying
        FROM (
            SELECT j.state FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
                SELECT j.state FROM {s}.jobs j WHERE j.line = l.line AND j.lane = l.lane AND j.rank = p.rank
                    AND j.visible_at <= v_now AND j.state < {state:leased}
                ORDER BY j.visible_at LIMIT p_scan
            ) j WHERE l.ranks & (1 << p.rank) <> 0 AND later.read = p_scan LIMIT p_scan
        ) x
    ) due CROSS JOIN LATERAL (
        SELECT CASE WHEN later.read < p_scan THEN later.scheduled ELSE s.scheduled - due.scheduled END AS scheduled,
            CASE WHEN later.read < p_scan THEN later.retrying ELSE s.retrying - due.retrying END AS retrying
    ) w;
END $$;

-- Consecutive events of one tenant in a row of the log, after the first `first` ones; the first `gone` of them are removed.
CREATE TYPE {s}.run AS (epoch int, xid bigint, n bigint, first int, count int, gone int, tenant text);

-- How many events of a run to remove: Excess.takes of core/trimming.py, for a run that `p_before` older events precede. The
-- tenant's readers have passed the first `p_passed` of it.
CREATE FUNCTION {s}.goes(p_count bigint, p_before bigint, p_passed bigint, p_soft bigint, p_hard bigint) RETURNS int
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(0, least(p_count, greatest(p_hard - p_before, least(p_soft - p_before, p_passed))))::int
$$;

-- How many events of a run are at or before a place.
CREATE FUNCTION {s}.passed(
    p_epoch int, p_xid bigint, p_n bigint, p_first bigint, p_count bigint, r_epoch int, r_xid bigint, r_n bigint, r_k int
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN (p_epoch, p_xid, p_n) < (r_epoch, r_xid, r_n) THEN p_count
        WHEN (p_epoch, p_xid, p_n) = (r_epoch, r_xid, r_n) THEN greatest(0, least(p_count, r_k - p_first)) ELSE 0 END
$$;

-- Remove the first `gone` events of these runs from `kept_events`.
CREATE FUNCTION {s}.shorten(p_runs {s}.run[]) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    DELETE FROM {s}.kept_events k USING unnest(p_runs) AS u
    WHERE (k.epoch, k.xid, k.n, k.first) = (u.epoch, u.xid, u.n, u.first) AND u.gone = u.count;
    UPDATE {s}.kept_events k SET first = k.first + u.gone, count = k.count - u.gone,
        kinds = {s}.part(kinds, u.gone + 1, u.count), lanes = {s}.part(lanes, u.gone + 1, u.count),
        attempts = {s}.part(attempts, u.gone + 1, u.count), tokens = {s}.part(tokens, u.gone + 1, u.count),
        numbers = {s}.part(numbers, u.gone + 1, u.count), xs = {s}.part(xs, u.gone + 1, u.count),
        ys = {s}.part(ys, u.gone + 1, u.count), zs = {s}.part(zs, u.gone + 1, u.count),
        ids = ids[u.gone + 1 : u.count], types = {s}.part(types, u.gone + 1, u.count),
        workers = {s}.part(workers, u.gone + 1, u.count), more = {s}.part(k.more, u.gone + 1, u.count)
    FROM unnest(p_runs) AS u
    WHERE (k.epoch, k.xid, k.n, k.first) = (u.epoch, u.xid, u.n, u.first) AND u.gone < u.count;
END $$;

-- Move the cuts and counts of the tenants of these runs. Answers how many events are gone.
CREATE FUNCTION {s}.note_gone(p_runs {s}.run[]) RETURNS bigint LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    INSERT INTO {s}.cuts AS c (tenant, epoch, xid, n, k)
    SELECT DISTINCT ON (tenant) tenant, epoch, xid, n, first + gone FROM unnest(p_runs)
    WHERE gone > 0 ORDER BY tenant, epoch DESC, xid DESC, n DESC, first DESC
    ON CONFLICT (tenant) DO UPDATE SET epoch = excluded.epoch, xid = excluded.xid, n = excluded.n, k = excluded.k;
    UPDATE {s}.usage u SET events = u.events - x.gone
    FROM (SELECT tenant, sum(gone) AS gone FROM unnest(p_runs) WHERE gone > 0 GROUP BY tenant) x WHERE u.tenant = x.tenant;
    RETURN (SELECT coalesce(sum(gone), 0) FROM unnest(p_runs));
END $$;

-- One step of trimming. Removes events of p_tenants, which have p_soft and p_hard too many (see Excess in core/trimming.py)
-- and whose slowest readers are at these places; and events that are not later than p_old. `kept_events` comes first: it has
-- the oldest events and is indexed by tenant. Then the next rows of the log: events that stay are copied to `kept_events`. Each
-- row of the log is processed once.
--
-- Answers how many events are gone, and whether to call again; NULL if another pruner took a step since p_version.
CREATE FUNCTION {s}.trim_stretch(
    p_version bigint, p_tenants text[], p_soft bigint[], p_hard bigint[], p_epochs int[], p_xids bigint[], p_ns bigint[],
    p_ks int[], p_old bigint, p_limit int, OUT gone bigint, OUT more boolean
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = on
SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_at {s}.trimming;
    v_runs {s}.run[];
    v_epoch int;
    v_xid bigint;
    v_n bigint;
    v_wants boolean;
BEGIN
    SELECT * INTO v_at FROM {s}.trimming WHERE version = p_version FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH judged AS (
        SELECT e.*, {s}.goes(e.count, sum(e.count) OVER (PARTITION BY e.tenant ORDER BY e.epoch, e.xid, e.n, e.first) - e.count,
            {s}.passed(e.epoch, e.xid, e.n, e.first, e.count, u.epoch, u.xid, u.n, u.k), u.soft, u.hard) AS gone
        FROM unnest(p_tenants, p_soft, p_hard, p_epochs, p_xids, p_ns, p_ks) AS u (tenant, soft, hard, epoch, xid, n, k)
        CROSS JOIN LATERAL (
            SELECT e.epoch, e.xid, e.n, e.first, e.count, e.tenant FROM {s}.kept_events e WHERE e.tenant = u.tenant
            ORDER BY e.tenant, e.epoch, e.xid, e.n, e.first LIMIT p_limit / cardinality(p_tenants) + 1
        ) e
    )
    SELECT array_agg(ROW(epoch, xid, n, first, count, gone, tenant)::{s}.run) INTO v_runs FROM judged WHERE gone > 0;
    IF v_runs IS NULL AND p_old >= (SELECT at FROM {s}.kept_events ORDER BY epoch, xid, n, first LIMIT 1) THEN
        WITH judged AS (
            SELECT *, bool_and(at <= p_old) OVER (ORDER BY epoch, xid, n, first) AS old FROM (
                SELECT epoch, xid, n, first, count, tenant, at FROM {s}.kept_events ORDER BY epoch, xid, n, first LIMIT p_limit
            ) e
        )
        SELECT array_agg(ROW(epoch, xid, n, first, count, count, tenant)::{s}.run) INTO v_runs FROM judged WHERE old;
    END IF;
    IF v_runs IS NOT NULL THEN
        PERFORM {s}.shorten(v_runs);
        more := true;
    ELSIF p_tenants = '{}' AND p_old < (
        SELECT at FROM {s}.events WHERE (epoch, xid, n) > (v_at.trimmed_epoch, v_at.trimmed_xid, v_at.trimmed_n)
        ORDER BY epoch, xid, n LIMIT 1
    ) THEN
        gone := 0;
        more := false;
        RETURN;
    ELSE
        WITH stretch AS MATERIALIZED (
            SELECT * FROM (
                SELECT *, sum(count) OVER (ORDER BY epoch, xid, n) - count AS before FROM (
                    SELECT epoch, xid, n, at, count, lanes FROM {s}.events
                    WHERE (epoch, xid, n) > (v_at.trimmed_epoch, v_at.trimmed_xid, v_at.trimmed_n)
                        AND (epoch, xid, n) <= (v_at.counted_epoch, v_at.counted_xid, v_at.counted_n)
                    ORDER BY epoch, xid, n LIMIT p_limit
                ) found
            ) x WHERE before < 10 * p_limit
        ), last AS (
            SELECT epoch, xid, n FROM stretch ORDER BY epoch DESC, xid DESC, n DESC LIMIT 1
        ), runs AS (
            SELECT epoch, xid, n, at, 0 AS first, count, (SELECT l.tenant FROM {s}.lanes l WHERE l.lane = lanes[1]) AS tenant
            FROM stretch WHERE cardinality(lanes) = 1
            UNION ALL
            SELECT epoch, xid, n, at, min(i)::int - 1, count(*)::int, tenant FROM (
                SELECT *, i - row_number() OVER (PARTITION BY epoch, xid, n, tenant ORDER BY i) AS island FROM (
                    SELECT epoch, xid, n, at, i, (SELECT l.tenant FROM {s}.lanes l WHERE l.lane = u.lane) AS tenant
                    FROM stretch CROSS JOIN unnest(lanes) WITH ORDINALITY AS u (lane, i) WHERE cardinality(lanes) > 1
                ) each
            ) told GROUP BY epoch, xid, n, at, tenant, island
        ), over AS (
            SELECT * FROM unnest(p_tenants, p_soft, p_hard, p_epochs, p_xids, p_ns, p_ks) AS u (tenant, soft, hard, epoch, xid, n, k)
        ), weighed AS (
            SELECT r.*, coalesce({s}.goes(r.count,
                sum(r.count) OVER (PARTITION BY r.tenant ORDER BY r.epoch, r.xid, r.n, r.first) - r.count,
                {s}.passed(r.epoch, r.xid, r.n, r.first, r.count, u.epoch, u.xid, u.n, u.k), u.soft, u.hard), 0) AS many
            FROM runs r LEFT JOIN over u ON u.tenant = r.tenant
        ), judged AS MATERIALIZED (
            -- An old event is removed only after all earlier ones of its tenant: a clock that was set back removes no young ones.
            SELECT *, CASE WHEN bool_and(many = count OR at <= p_old) OVER (PARTITION BY tenant ORDER BY epoch, xid, n, first)
                AND (SELECT k.n FROM {s}.kept_events k WHERE k.tenant = weighed.tenant LIMIT 1) IS NULL THEN count ELSE many END AS goes
            FROM weighed
        )
        SELECT last.epoch, last.xid, last.n,
            (SELECT array_agg(ROW(epoch, xid, n, first, count, goes, tenant)::{s}.run) FROM judged), EXISTS (
                SELECT FROM over u
                LEFT JOIN (SELECT tenant, sum(goes) AS taken FROM judged GROUP BY tenant) t ON t.tenant = u.tenant
                WHERE u.hard > coalesce(t.taken, 0)
                    OR u.soft > coalesce(t.taken, 0) AND (u.epoch, u.xid, u.n) > (last.epoch, last.xid, last.n)
            )
        INTO v_epoch, v_xid, v_n, v_runs, v_wants FROM last;
        -- Stop at the last removed event, unless there is more to remove behind these rows.
        IF v_wants IS NOT TRUE THEN
            SELECT epoch, xid, n, v_wants IS NOT NULL AND (epoch, xid, n) = (v_epoch, v_xid, v_n) INTO v_epoch, v_xid, v_n, v_wants
            FROM unnest(v_runs) WHERE gone > 0 ORDER BY epoch DESC, xid DESC, n DESC LIMIT 1;
            IF NOT FOUND THEN
                gone := 0;
                more := false;
                RETURN;
            END IF;
            v_runs := ARRAY(SELECT u::{s}.run FROM unnest(v_runs) AS u WHERE (epoch, xid, n) <= (v_epoch, v_xid, v_n));
        END IF;
        INSERT INTO {s}.kept_events (epoch, xid, n, at, first, count, tenant, kinds, lanes, attempts, tokens, numbers, xs, ys,
            zs, ids, types, workers, more)
        SELECT u.epoch, u.xid, u.n, e.at, u.begins - 1, u.ends - u.begins + 1, u.tenant, {s}.part(kinds, begins, ends),
            {s}.part(lanes, begins, ends), {s}.part(attempts, begins, ends), {s}.part(tokens, begins, ends),
            {s}.part(numbers, begins, ends), {s}.part(xs, begins, ends), {s}.part(ys, begins, ends), {s}.part(zs, begins, ends),
            ids[begins : ends], {s}.part(types, begins, ends), {s}.part(workers, begins, ends), {s}.part(e.more, begins, ends)
        FROM (SELECT *, first + gone + 1 AS begins, first + count AS ends FROM unnest(v_runs) WHERE gone < count) u
        CROSS JOIN LATERAL (
            SELECT * FROM {s}.events e WHERE e.epoch = u.epoch AND e.xid = u.xid AND e.n = u.n LIMIT 1
        ) e;
        UPDATE {s}.trimming SET trimmed_epoch = v_epoch, trimmed_xid = v_xid, trimmed_n = v_n, trimmed_k = (
            SELECT e.count FROM {s}.events e WHERE e.epoch = v_epoch AND e.xid = v_xid AND e.n = v_n);
        more := v_wants AND (v_epoch, v_xid, v_n) < (v_at.counted_epoch, v_at.counted_xid, v_at.counted_n);
    END IF;
    gone := {s}.note_gone(v_runs);
    -- The floor: the last removed event before the oldest kept one.
    UPDATE {s}.trimming t SET version = t.version + 1, floor_epoch = c.epoch, floor_xid = c.xid, floor_n = c.n, floor_k = c.k
    FROM (
        SELECT c.epoch, c.xid, c.n, c.k FROM (VALUES (1)) AS one
        LEFT JOIN (SELECT epoch, xid, n, first FROM {s}.kept_events ORDER BY epoch, xid, n, first LIMIT 1) k ON true
        CROSS JOIN LATERAL (
            SELECT * FROM {s}.cuts c WHERE (c.epoch, c.xid, c.n, c.k) <= (coalesce(k.epoch, 2147483647), coalesce(k.xid, 0),
                coalesce(k.n, 0), coalesce(k.first, 0))
            ORDER BY c.epoch DESC, c.xid DESC, c.n DESC, c.k DESC LIMIT 1
        ) c
        UNION ALL SELECT floor_epoch, floor_xid, floor_n, floor_k FROM {s}.trimming
        ORDER BY 1 DESC, 2 DESC, 3 DESC, 4 DESC LIMIT 1
    ) c;
END $$;

-- Recompute all counts in one statement that reads every job. Exact beside running work: rows of the log that are not counted yet
-- are subtracted, since upkeep will add them. [TENANT-5]
CREATE FUNCTION {s}.recount() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM {s}.trimming FOR UPDATE;
    LOCK TABLE {s}.usage_changes IN SHARE ROW EXCLUSIVE MODE;
    DELETE FROM {s}.lane_counts;
    DELETE FROM {s}.usage;
    WITH found AS (
        SELECT lane, 0 AS keys, {record_bytes} + octet_length(payload) + coalesce(octet_length(extra), 0)::bigint AS bytes, 0 AS events,
            state FROM {s}.jobs
        UNION ALL
        SELECT lane, 0, {record_bytes} + octet_length(payload) + coalesce(octet_length(extra), 0) + coalesce(octet_length(result), 0),
            0, state FROM {s}.done
        UNION ALL
        SELECT lane, 1, {record_bytes}, 0, NULL FROM {s}.keys WHERE policy IN ('ttl', 'forever')
        UNION ALL
        SELECT coalesce(lanes[i], lanes[1]), 0, 0, 1, NULL FROM {s}.kept_events CROSS JOIN generate_series(1, count) AS u (i)
        UNION ALL
        SELECT coalesce(lanes[i], lanes[1]), 0, 0, 1, NULL
        FROM {s}.trimming t JOIN {s}.events e ON (e.epoch, e.xid, e.n) > (t.trimmed_epoch, t.trimmed_xid, t.trimmed_n)
            AND (e.epoch, e.xid, e.n) <= (t.counted_epoch, t.counted_xid, t.counted_n)
        CROSS JOIN generate_series(1, count) AS u (i)
    ), counted AS MATERIALIZED (
        SELECT lane, sum(keys)::bigint AS keys, sum(bytes)::bigint AS bytes, sum(events)::bigint AS events,
            sum(blocked)::bigint AS blocked, sum(scheduled)::bigint AS scheduled, sum(ready)::bigint AS ready, sum(retrying)::bigint AS retrying, sum(leased)::bigint AS leased, sum(completed)::bigint AS completed, sum(failed)::bigint AS failed, sum(canceled)::bigint AS canceled
        FROM (
            SELECT lane, keys, bytes, events, coalesce(state = {state:blocked}, false)::int AS blocked, coalesce(state = {state:scheduled}, false)::int AS scheduled, coalesce(state = {state:ready}, false)::int AS ready, coalesce(state = {state:retrying}, false)::int AS retrying, coalesce(state = {state:leased}, false)::int AS leased, coalesce(state = {state:completed}, false)::int AS completed, coalesce(state = {state:failed}, false)::int AS failed, coalesce(state = {state:canceled}, false)::int AS canceled
            FROM found
            UNION ALL
            SELECT u.lane, -u.keys, -u.bytes, 0, -u.blocked, -u.scheduled, -u.ready, -u.retrying, -u.leased, -u.completed, -u.failed, -u.canceled
            FROM {s}.uncounted() x CROSS JOIN LATERAL {s}.usage_rows(x.usage) u
        ) x GROUP BY lane
    ), put AS (
        INSERT INTO {s}.lane_counts (lane, blocked, scheduled, ready, retrying, leased, completed, failed, canceled) SELECT lane, blocked, scheduled, ready, retrying, leased, completed, failed, canceled FROM counted
        RETURNING lane, jobs
    )
    INSERT INTO {s}.usage (tenant, jobs, keys, bytes, queues, events)
    SELECT l.tenant, sum(p.jobs), sum(c.keys), sum(c.bytes), count(*) FILTER (WHERE p.jobs > 0), sum(c.events)
    FROM counted c JOIN put p ON p.lane = c.lane JOIN {s}.lanes l ON l.lane = c.lane GROUP BY l.tenant;
    UPDATE {s}.trimming SET version = version + 1;
END $$;
