-- Writing the log, and the position that its readers stay below. A row of the log has the events of one call.

-- The last transaction under which events of freed ids are filed. Freed ids leave no other trace.
CREATE SEQUENCE {s}.freed_xid MINVALUE 0 START 0;

-- Notes that ids are free again, and the transaction that the last events of their jobs are filed under. Call it last: other
-- transactions wait for it.
CREATE FUNCTION {s}.note_freed(p_xid bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{s}.freed_xid', 11));
    PERFORM setval('{s}.freed_xid', greatest(p_xid, last_value)) FROM {s}.freed_xid;
END $$;

-- The transaction to file the first events of new jobs under, once their ids are taken: this one; or, if this one began
-- before others freed an id, the last of theirs. So the events of the id's earlier job are read first. [EVENT-2]
CREATE FUNCTION {s}.fresh_xid() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT greatest(pg_current_xact_id()::text::bigint + m.base, f.last_value) FROM {s}.meta m CROSS JOIN {s}.freed_xid f
$$;

-- Changes of counts, in the format of `usage` in a row of the log: for each lane its number, the change of keys and of
-- bytes, and the change of the number of jobs in each state, in the order of the codes.
CREATE FUNCTION {s}.usage_rows(p_usage int[]) RETURNS TABLE (
    lane int, keys int, bytes int, blocked int, scheduled int, ready int, retrying int, leased int, completed int,
    failed int, canceled int
) LANGUAGE sql IMMUTABLE AS $$
    -- A copy: the value of a row that changed many lanes is stored compressed, and would be read whole for each number.
    SELECT a[i], a[i + 1], a[i + 2], a[i + 3], a[i + 4], a[i + 5], a[i + 6], a[i + 7], a[i + 8], a[i + 9], a[i + 10]
    FROM (SELECT p_usage || '{}'::int[] AS a OFFSET 0) x CROSS JOIN generate_series(1, cardinality(a), 11) AS u (i)
$$;

-- The change that new jobs with these payloads make. p_later tells which of them are scheduled.
CREATE FUNCTION {s}.usage_enqueued(p_lanes int[], p_payloads bytea[], p_later boolean[]) RETURNS int[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT unnest(ARRAY[lane, 0, {record_bytes} * count(*) + sum(octet_length(payload)), 0,
            count(*) FILTER (WHERE later),
            count(*) FILTER (WHERE NOT later), 0, 0, 0, 0, 0]::int[])
        FROM (
            SELECT coalesce(u.lane, p_lanes[1]) AS lane, u.payload, u.later
            FROM unnest(p_lanes, p_payloads, p_later) AS u (lane, payload, later)
        ) x GROUP BY lane
    );
END $$;

-- The change that completing jobs with these results makes.
CREATE FUNCTION {s}.usage_completed(p_lanes int[], p_results bytea[]) RETURNS int[] LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT unnest(ARRAY[lane, 0, coalesce(sum(octet_length(result)), 0), 0, 0, 0, 0, -count(*), count(*), 0, 0]::int[])
        FROM (
            SELECT coalesce(u.lane, p_lanes[1]) AS lane, u.result FROM unnest(p_lanes, p_results) AS u (lane, result)
        ) x GROUP BY lane
    );
END $$;

-- Appends events at this position. Call it when the rows are locked: then the sequence has the order of the changes.
CREATE FUNCTION {s}.log(
    p_xid bigint, p_at bigint, p_count int, p_kinds smallint[], p_lanes int[], p_ids text[], p_types text[],
    p_attempts int[], p_tokens bigint[], p_workers text[], p_xs bigint[], p_ys bigint[], p_zs bigint[], p_more bytea[],
    p_numbers int[], p_usage int[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_n bigint := nextval('{s}.events_n');
BEGIN
    INSERT INTO {s}.events (slot, epoch, xid, n, at, count, kinds, lanes, ids, types, attempts, tokens, workers, xs, ys,
        zs, more, numbers, usage)
    SELECT slot, epoch, p_xid, v_n, p_at, p_count, p_kinds, p_lanes, p_ids, p_types, p_attempts, p_tokens,
        p_workers, p_xs, p_ys, p_zs, p_more, p_numbers, p_usage
    FROM {s}.meta;
END $$;

-- Adds purged jobs to the count of each tenant: `p_counts` more, starting with the job `p_series` if there is no count yet.
-- Answers the counts, and the transaction to file the purges under: this one, or that of an earlier purge if it is later,
-- so that the log has them in order. Deletes old counts. [EVENT-1]
CREATE FUNCTION {s}.count_purges(
    p_tenants text[], p_series bigint[], p_counts bigint[], p_xid bigint, p_now bigint, p_before bigint, p_most int
) RETURNS TABLE (tenant text, series bigint, count bigint, filed_under bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_xid bigint;
BEGIN
    INSERT INTO {s}.purges AS p (tenant, series, count, at, logged)
    SELECT u.tenant, u.series, u.count, p_now, p_xid FROM unnest(p_tenants, p_series, p_counts) AS u (tenant, series, count)
    ORDER BY u.tenant COLLATE "C"
    ON CONFLICT (tenant) DO UPDATE
    SET count = p.count + excluded.count, at = excluded.at, logged = greatest(p.logged, excluded.logged);
    SELECT max(p.logged) INTO v_xid FROM {s}.purges p WHERE p.tenant = ANY (p_tenants);
    UPDATE {s}.purges p SET logged = v_xid WHERE p.tenant = ANY (p_tenants) AND p.logged < v_xid;
    DELETE FROM {s}.purges p WHERE p.tenant = ANY (ARRAY(
        SELECT o.tenant FROM {s}.purges o WHERE o.at < p_before ORDER BY o.at LIMIT p_most FOR UPDATE SKIP LOCKED
    ));
    RETURN QUERY SELECT p.tenant, p.series, p.count, v_xid FROM {s}.purges p WHERE p.tenant = ANY (p_tenants);
END $$;

-- The position that readers of the log stay below: that of the first transaction in progress that may write here. An event
-- is filed under its own transaction or a later one, so everything below is committed, or never will be. [EVENT-2]
--
-- `pg_snapshot_xmin` would do, but it also waits for transactions of other databases, which cannot write here. Those, and
-- only those, are left out. The order of the reads makes that certain:
--   1. the snapshot: it has every transaction in progress, of all databases;
--   2. the processes that are connected to another database;
--   3. the transactions that these processes have locked: each holds its own number exclusively from start to end.
-- A transaction found in step 3 has been running since step 1, in one process, and that process was seen in step 2 with
-- its database, even if process numbers are reused. A prepared transaction names its database and keeps its number.
-- Everything not found in step 3 counts as a transaction of this database, also if its lock is not there yet, and
-- also if the role may not read the locks. Transactions that have ended meanwhile are left out too. The snapshot does not
-- show their events but every later one does: therefore read the events in a later statement.
CREATE FUNCTION {s}.horizon() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_snapshot pg_snapshot := pg_current_snapshot();
    v_xmin bigint := pg_snapshot_xmin(v_snapshot)::text::bigint;
    v_base bigint := (SELECT base FROM {s}.meta);
    v_pids int[];
    v_foreign xid[];
BEGIN
    -- If no event is held up, skip the read of all locks, which makes other transactions wait for a moment.
    IF NOT EXISTS (SELECT FROM {s}.events e WHERE e.epoch = (SELECT epoch FROM {s}.meta) AND e.xid >= v_base + v_xmin) THEN
        RETURN v_base + v_xmin;
    END IF;
    BEGIN
        PERFORM pg_stat_clear_snapshot();  -- Without this, a transaction reads the statistics of its first read again.
        SELECT array_agg(pid) INTO v_pids FROM pg_stat_get_activity(NULL)
        WHERE datid <> (SELECT oid FROM pg_database WHERE datname = current_database());
        SELECT array_agg(x) INTO v_foreign FROM (
            SELECT transactionid AS x FROM pg_locks
            WHERE v_pids IS NOT NULL AND locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted
                AND pid = ANY (v_pids)
            UNION ALL
            SELECT transaction FROM pg_prepared_xacts WHERE database <> current_database()
        ) found;
    EXCEPTION WHEN insufficient_privilege THEN
        v_foreign := NULL;
    END;
    RETURN (
        SELECT v_base + coalesce(min(x::text::bigint),
            pg_snapshot_xmax(v_snapshot)::text::bigint) FROM pg_snapshot_xip(v_snapshot) AS x
        WHERE x::xid = ANY (v_foreign) IS NOT TRUE AND pg_xact_status(x) = 'in progress'
    );
END $$;
