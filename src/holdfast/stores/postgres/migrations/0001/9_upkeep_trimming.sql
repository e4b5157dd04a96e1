-- Trimming of the log, in bounded steps. Each step is one transaction and locks the row of `trimming`: if several pruners run,
-- one works and the others stop.

-- Consecutive events of one tenant in a row of the log, after the first `first` ones. The first `gone` of them are removed.
CREATE TYPE {s}.event_run AS (epoch int, xid bigint, n bigint, first int, count int, gone int, tenant text);

-- A slice of a column of the log. An array of one element has the same value for all events.
CREATE FUNCTION {s}.slice_of(p_column anyarray, p_from int, p_to int) RETURNS anyarray LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN cardinality(p_column) > 1 THEN p_column[p_from : p_to] ELSE p_column END
$$;

-- How many events of a run to remove: Excess.takes of core/trimming.py, for a run that `p_before` older events precede. The
-- tenant's readers have passed the first `p_passed` of it.
CREATE FUNCTION {s}.events_to_remove(p_count bigint, p_before bigint, p_passed bigint, p_soft bigint,
    p_hard bigint) RETURNS int
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(0, least(p_count, greatest(p_hard - p_before, least(p_soft - p_before, p_passed))))::int
$$;

-- How many events of a run are at or before a position.
CREATE FUNCTION {s}.events_passed(
    p_epoch int, p_xid bigint, p_n bigint, p_first bigint, p_count bigint, r_epoch int, r_xid bigint, r_n bigint, r_k int
) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN (p_epoch, p_xid, p_n) < (r_epoch, r_xid, r_n) THEN p_count
        WHEN (p_epoch, p_xid, p_n) = (r_epoch, r_xid, r_n) THEN greatest(0, least(p_count, r_k - p_first)) ELSE 0 END
$$;

-- Removes the first `gone` events of these runs from `kept_events`.
CREATE FUNCTION {s}.remove_kept(p_runs {s}.event_run[]) RETURNS void LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    DELETE FROM {s}.kept_events k USING unnest(p_runs) AS u
    WHERE (k.epoch, k.xid, k.n, k.first) = (u.epoch, u.xid, u.n, u.first) AND u.gone = u.count;
    UPDATE {s}.kept_events k SET first = k.first + u.gone, count = k.count - u.gone,
        kinds = {s}.slice_of(kinds, u.gone + 1, u.count), lanes = {s}.slice_of(lanes, u.gone + 1, u.count),
        attempts = {s}.slice_of(attempts, u.gone + 1, u.count), tokens = {s}.slice_of(tokens, u.gone + 1, u.count),
        numbers = {s}.slice_of(numbers, u.gone + 1, u.count), xs = {s}.slice_of(xs, u.gone + 1, u.count),
        ys = {s}.slice_of(ys, u.gone + 1, u.count), zs = {s}.slice_of(zs, u.gone + 1, u.count),
        ids = ids[u.gone + 1 : u.count], types = {s}.slice_of(types, u.gone + 1, u.count),
        workers = {s}.slice_of(workers, u.gone + 1, u.count), more = {s}.slice_of(k.more, u.gone + 1, u.count)
    FROM unnest(p_runs) AS u
    WHERE (k.epoch, k.xid, k.n, k.first) = (u.epoch, u.xid, u.n, u.first) AND u.gone < u.count;
END $$;

-- Moves the cuts and counts of the tenants of these runs. Answers how many events were removed.
CREATE FUNCTION {s}.record_removed(p_runs {s}.event_run[]) RETURNS bigint LANGUAGE plpgsql
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

-- One step of trimming. Removes events of p_tenants, which have p_soft and p_hard events too many (see Excess in
-- core/trimming.py) and whose slowest readers are at these positions; and events that are not later than p_old. `kept_events`
-- comes first: it has the oldest events and is indexed by tenant. Then come the next rows of the log: events that stay are
-- copied to `kept_events`. Each row of the log is processed once.
--
-- Answers how many events were removed, and whether to call again; NULL if another pruner took a step since p_version.
CREATE FUNCTION {s}.trim_step(
    p_version bigint, p_tenants text[], p_soft bigint[], p_hard bigint[], p_epochs int[], p_xids bigint[], p_ns bigint[],
    p_ks int[], p_old bigint, p_limit int, OUT gone bigint, OUT more boolean
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = on
SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_at {s}.trimming;
    v_runs {s}.event_run[];
    v_epoch int;
    v_xid bigint;
    v_n bigint;
    v_unfinished boolean;
BEGIN
    SELECT * INTO v_at FROM {s}.trimming WHERE version = p_version FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH judged AS (
        SELECT e.*, {s}.events_to_remove(e.count, sum(e.count) OVER (PARTITION BY e.tenant ORDER BY e.epoch, e.xid, e.n,
            e.first) - e.count,
            {s}.events_passed(e.epoch, e.xid, e.n, e.first, e.count, u.epoch, u.xid, u.n, u.k), u.soft, u.hard) AS gone
        FROM unnest(p_tenants, p_soft, p_hard, p_epochs, p_xids, p_ns, p_ks) AS u (tenant, soft, hard, epoch, xid, n, k)
        CROSS JOIN LATERAL (
            SELECT e.epoch, e.xid, e.n, e.first, e.count, e.tenant FROM {s}.kept_events e WHERE e.tenant = u.tenant
            ORDER BY e.tenant, e.epoch, e.xid, e.n, e.first LIMIT p_limit / cardinality(p_tenants) + 1
        ) e
    )
    SELECT array_agg(ROW(epoch, xid, n, first, count, gone, tenant)::{s}.event_run) INTO v_runs FROM judged WHERE gone > 0;
    IF v_runs IS NULL AND p_old >= (SELECT at FROM {s}.kept_events ORDER BY epoch, xid, n, first LIMIT 1) THEN
        WITH judged AS (
            SELECT *, bool_and(at <= p_old) OVER (ORDER BY epoch, xid, n, first) AS old FROM (
                SELECT epoch, xid, n, first, count, tenant, at FROM {s}.kept_events ORDER BY epoch, xid, n,
                    first LIMIT p_limit
            ) e
        )
        SELECT array_agg(ROW(epoch, xid, n, first, count, count, tenant)::{s}.event_run) INTO v_runs FROM judged WHERE old;
    END IF;
    IF v_runs IS NOT NULL THEN
        PERFORM {s}.remove_kept(v_runs);
        more := true;
    ELSIF p_tenants = '{}' AND p_old < (
        SELECT at FROM {s}.events WHERE (epoch, xid, n) > (v_at.trimmed_epoch, v_at.trimmed_xid, v_at.trimmed_n)
        ORDER BY epoch, xid, n LIMIT 1
    ) THEN
        gone := 0;
        more := false;
        RETURN;
    ELSE
        WITH next_rows AS MATERIALIZED (
            SELECT * FROM (
                SELECT *, sum(count) OVER (ORDER BY epoch, xid, n) - count AS before FROM (
                    SELECT epoch, xid, n, at, count, lanes FROM {s}.events
                    WHERE (epoch, xid, n) > (v_at.trimmed_epoch, v_at.trimmed_xid, v_at.trimmed_n)
                        AND (epoch, xid, n) <= (v_at.counted_epoch, v_at.counted_xid, v_at.counted_n)
                    ORDER BY epoch, xid, n LIMIT p_limit
                ) found
            ) x WHERE before < 10 * p_limit
        ), last AS (
            SELECT epoch, xid, n FROM next_rows ORDER BY epoch DESC, xid DESC, n DESC LIMIT 1
        ), runs AS (
            SELECT epoch, xid, n, at, 0 AS first, count,
                (SELECT l.tenant FROM {s}.lanes l WHERE l.lane = lanes[1]) AS tenant
            FROM next_rows WHERE cardinality(lanes) = 1
            UNION ALL
            SELECT epoch, xid, n, at, min(i)::int - 1, count(*)::int, tenant FROM (
                SELECT *, i - row_number() OVER (PARTITION BY epoch, xid, n, tenant ORDER BY i) AS island FROM (
                    SELECT epoch, xid, n, at, i, (SELECT l.tenant FROM {s}.lanes l WHERE l.lane = u.lane) AS tenant
                    FROM next_rows CROSS JOIN unnest(lanes) WITH ORDINALITY AS u (lane, i) WHERE cardinality(lanes) > 1
                ) each
            ) numbered GROUP BY epoch, xid, n, at, tenant, island
        ), over AS (
            SELECT * FROM unnest(p_tenants, p_soft, p_hard, p_epochs, p_xids, p_ns, p_ks) AS u (tenant, soft, hard,
                epoch, xid, n, k)
        ), weighed AS (
            SELECT r.*, coalesce({s}.events_to_remove(r.count,
                sum(r.count) OVER (PARTITION BY r.tenant ORDER BY r.epoch, r.xid, r.n, r.first) - r.count,
                {s}.events_passed(r.epoch, r.xid, r.n, r.first, r.count, u.epoch, u.xid, u.n, u.k), u.soft, u.hard),
                    0) AS excess
            FROM runs r LEFT JOIN over u ON u.tenant = r.tenant
        ), judged AS MATERIALIZED (
            -- Remove an old event only after all earlier ones of its tenant: so a clock that is set back removes no recent ones.
            SELECT *, CASE WHEN bool_and(excess = count OR at <= p_old) OVER (PARTITION BY tenant ORDER BY epoch, xid, n,
                first)
                AND (SELECT k.n FROM {s}.kept_events k
                    WHERE k.tenant = weighed.tenant LIMIT 1) IS NULL THEN count ELSE excess END AS gone
            FROM weighed
        )
        SELECT last.epoch, last.xid, last.n,
            (SELECT array_agg(ROW(epoch, xid, n, first, count, gone, tenant)::{s}.event_run) FROM judged), EXISTS (
                SELECT FROM over u
                LEFT JOIN (SELECT tenant, sum(gone) AS taken FROM judged GROUP BY tenant) t ON t.tenant = u.tenant
                WHERE u.hard > coalesce(t.taken, 0)
                    OR u.soft > coalesce(t.taken, 0) AND (u.epoch, u.xid, u.n) > (last.epoch, last.xid, last.n)
            )
        INTO v_epoch, v_xid, v_n, v_runs, v_unfinished FROM last;
        -- Stop at the last removed event, unless there is more to remove after these rows.
        IF v_unfinished IS NOT TRUE THEN
            SELECT epoch, xid, n, v_unfinished IS NOT NULL AND (epoch, xid, n) = (v_epoch, v_xid, v_n) INTO v_epoch,
                v_xid, v_n, v_unfinished
            FROM unnest(v_runs) WHERE gone > 0 ORDER BY epoch DESC, xid DESC, n DESC LIMIT 1;
            IF NOT FOUND THEN
                gone := 0;
                more := false;
                RETURN;
            END IF;
            v_runs := ARRAY(SELECT u::{s}.event_run FROM unnest(v_runs) AS u WHERE (epoch, xid, n) <= (v_epoch, v_xid,
                v_n));
        END IF;
        INSERT INTO {s}.kept_events (epoch, xid, n, at, first, count, tenant, kinds, lanes, attempts, tokens, numbers,
            xs, ys,
            zs, ids, types, workers, more)
        SELECT u.epoch, u.xid, u.n, e.at, u.begins - 1, u.ends - u.begins + 1, u.tenant, {s}.slice_of(kinds, begins, ends),
            {s}.slice_of(lanes, begins, ends), {s}.slice_of(attempts, begins, ends), {s}.slice_of(tokens, begins, ends),
            {s}.slice_of(numbers, begins, ends), {s}.slice_of(xs, begins, ends), {s}.slice_of(ys, begins, ends),
                {s}.slice_of(zs, begins, ends),
            ids[begins : ends], {s}.slice_of(types, begins, ends), {s}.slice_of(workers, begins, ends),
                {s}.slice_of(e.more, begins, ends)
        FROM (SELECT *, first + gone + 1 AS begins, first + count AS ends FROM unnest(v_runs) WHERE gone < count) u
        CROSS JOIN LATERAL (
            SELECT * FROM {s}.events e WHERE e.epoch = u.epoch AND e.xid = u.xid AND e.n = u.n LIMIT 1
        ) e;
        UPDATE {s}.trimming SET trimmed_epoch = v_epoch, trimmed_xid = v_xid, trimmed_n = v_n, trimmed_k = (
            SELECT e.count FROM {s}.events e WHERE e.epoch = v_epoch AND e.xid = v_xid AND e.n = v_n);
        more := v_unfinished AND (v_epoch, v_xid, v_n) < (v_at.counted_epoch, v_at.counted_xid, v_at.counted_n);
    END IF;
    gone := {s}.record_removed(v_runs);
    -- The floor: the last removed event before the oldest kept one.
    UPDATE {s}.trimming t SET version = t.version + 1, floor_epoch = c.epoch, floor_xid = c.xid, floor_n = c.n,
        floor_k = c.k
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
