-- The hot paths, each one call and one round trip for a batch: enqueue, claim, complete, and the lock that the slower
-- paths begin with. An array of one element stands for as many as are needed.
--
-- Each function says how it is to be planned: by index, in nested loops, the same whatever the statistics say. With stale
-- ones the planner would finish jobs by the index of deadlines, and a claim could take more than its limit.

CREATE FUNCTION {s}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(frozen_at, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) + shift FROM {s}.meta
$$;

-- Raises, for those who ask for the time and nothing else: a restore has made the tables and not filled them yet.
CREATE FUNCTION {s}.no_data() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RAISE SQLSTATE 'HF002' USING MESSAGE = 'there is no data';
END $$;

-- The position of this transaction in the log. It grows from epoch to epoch, so that the later of two is the greater.
CREATE FUNCTION {s}.xid() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_current_xact_id()::text::bigint + base FROM {s}.meta
$$;

-- Raises unless what a process remembers is still so: p_known is the generation, and then for each lane that the call uses
-- its number, line, tenant and queue, and the bits of the priorities that it is to have. Every function and statement that
-- takes a lane number, grants a token, or reads or writes the log begins with it. [TENANT-3]
CREATE FUNCTION {s}.known(p_known text[]) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF cardinality(p_known) = 6 THEN
        PERFORM FROM {s}.current_generation g CROSS JOIN {s}.lanes l
        WHERE g.value = p_known[1] AND l.lane = p_known[2]::int AND l.line = p_known[3]::int AND l.tenant = p_known[4]
            AND l.queue = p_known[5] AND l.ranks & p_known[6]::int = p_known[6]::int;
        IF FOUND THEN
            RETURN true;
        END IF;
    END IF;
    IF NOT EXISTS (SELECT FROM {s}.current_generation WHERE value = p_known[1]) THEN
        RAISE SQLSTATE 'HF002' USING MESSAGE = 'the data is of another generation';
    END IF;
    IF EXISTS (
        SELECT FROM generate_series(2, cardinality(p_known), 5) AS u (i) LEFT JOIN {s}.lanes l
            ON l.lane = p_known[i]::int AND l.line = p_known[i + 1]::int AND l.tenant = p_known[i + 2]
            AND l.queue = p_known[i + 3] AND l.ranks & p_known[i + 4]::int = p_known[i + 4]::int
        WHERE l.lane IS NULL
    ) THEN
        RAISE SQLSTATE 'HF003' USING MESSAGE = 'a lane is not as it is remembered';
    END IF;
    RETURN true;
END $$;

-- Begin a generation, unless another process has: its value. NULL while a restore is under way: nothing may be written then.
-- Takes the same time however many jobs there are.
--
-- The last tokens, job numbers and positions may be lost, and readers, workers and flows may have them. New ones begin behind all that were
-- given: at the clock in microseconds, which leaves both behind, since a second has fewer leases and transactions than that.
-- Only where the clock is behind the last ones that are known, they go on far behind these. Never ahead of a clock that is
-- right: a generation that is lost itself would be followed by one with the same numbers. [LEASE-5, EVENT-2]
--
-- Nothing may be logged in the old epoch later: every transaction that logs holds the table until its commit, and is waited
-- for here; one that waits for us reads `meta` afterwards.
CREATE FUNCTION {s}.new_generation() RETURNS text LANGUAGE plpgsql
SET lock_timeout = '1500ms' SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    v_value text := gen_random_uuid();
    v_clock bigint := floor(extract(epoch FROM clock_timestamp()) * 1000000);
    v_far bigint := 1000000000;
    v_last record;
    v_epoch int;
    v_start bigint;
BEGIN
    -- A restore makes this index valid last of all, after the rows and the sequences.
    IF NOT EXISTS (SELECT FROM {s}.meta)
        OR NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('{s}.events_place') AND indisvalid) THEN
        RETURN NULL;
    END IF;
    LOCK TABLE ONLY {s}.events IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM {s}.current_generation) THEN
        RETURN (SELECT value FROM {s}.current_generation);
    END IF;
    PERFORM set_config('synchronous_commit', 'on', true);
    SELECT * INTO v_last FROM (
        (SELECT epoch, xid, n, count AS k FROM {s}.events ORDER BY epoch DESC, xid DESC, n DESC LIMIT 1)
        UNION ALL SELECT trimmed_epoch, trimmed_xid, trimmed_n, trimmed_k FROM {s}.trimming
        UNION ALL (SELECT epoch, xid - 1, 0, 0 FROM {s}.epochs ORDER BY epoch DESC LIMIT 1)
    ) x ORDER BY epoch DESC, xid DESC, n DESC, k DESC LIMIT 1;
    SELECT greatest(epoch + 1, v_last.epoch + 1, v_clock / 1000000 - 1577836800) INTO v_epoch FROM {s}.meta;
    SELECT greatest(v_last.xid, last_value) INTO v_start FROM {s}.freed;
    v_start := CASE WHEN v_clock > v_start THEN v_clock ELSE v_start + v_far END;
    INSERT INTO {s}.epochs VALUES (v_epoch, v_start, v_last.epoch, v_last.xid, v_last.n, v_last.k);
    UPDATE {s}.meta SET epoch = v_epoch, base = v_start - pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    PERFORM setval('{s}.tokens', CASE WHEN v_clock > last_value THEN v_clock ELSE last_value + v_far END) FROM {s}.tokens;
    PERFORM setval('{s}.seqs', CASE WHEN v_clock > last_value THEN v_clock ELSE last_value + v_far END) FROM {s}.seqs;
    DELETE FROM {s}.offer_places;
    UPDATE {s}.offers SET until = -{s}.now_ms() WHERE until > 0;  -- What they say was handed over may be lost.
    DELETE FROM {s}.generation;
    INSERT INTO {s}.generation
    VALUES (v_value, pg_current_xact_id()::xid, '{s}.lanes'::regclass, pg_postmaster_start_time());
    RETURN v_value;
END $$;

-- Which data this is: the schema, and the generation; begins that if nobody has. NULL while a restore is under way.
CREATE FUNCTION {s}.place() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_value text := '';
BEGIN
    IF NOT pg_is_in_recovery() THEN  -- A replica cannot read unlogged tables, and takes no changes anyway.
        SELECT value INTO v_value FROM {s}.current_generation;
        IF NOT FOUND THEN
            v_value := {s}.new_generation();
        END IF;
    END IF;
    RETURN (SELECT place || ' ' || v_value FROM {s}.meta);
END $$;

-- Up to which transaction ids were freed that somebody may take again: their last events are filed under it or before.
CREATE SEQUENCE {s}.freed MINVALUE 0 START 0;

-- Ids are free again, of jobs whose last events are filed under this transaction. Called last, as it makes others wait.
CREATE FUNCTION {s}.free(p_xid bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{s}.freed', 11));
    PERFORM setval('{s}.freed', greatest(p_xid, last_value)) FROM {s}.freed;
END $$;

-- The transaction to file the first events of new jobs under, once their ids are taken: ours; or, if it began before others
-- freed an id, theirs. What the id had before is then read before it. [EVENT-2]
CREATE FUNCTION {s}.fresh_xid() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT greatest(pg_current_xact_id()::text::bigint + m.base, f.last_value) FROM {s}.meta m CROSS JOIN {s}.freed f
$$;

-- A change reaches the rows that were locked for it, all of them. Where it does not, the transaction is rolled back as a
-- whole, as after any conflict, and tried again.
CREATE FUNCTION {s}.expect(p_meant bigint, p_changed bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_changed IS DISTINCT FROM p_meant THEN
        RAISE SQLSTATE '40001' USING MESSAGE = format('%s rows were to be changed, and %s were', p_meant, p_changed);
    END IF;
END $$;

-- Lock idempotency keys unless somebody has one of them; then none is locked.
CREATE FUNCTION {s}.try_keys(p_keys text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT bool_and(pg_try_advisory_xact_lock(hashtextextended(k, 3))) FROM unnest(p_keys) AS u (k)) THEN
        RETURN true;
    END IF;
    RAISE SQLSTATE 'HF001';
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    RETURN false;
END $$;

-- Changes of the counts, as they are in `usage` of a row of the log: for each lane its number, the change of keys and of
-- bytes, and the change of the number of jobs in each state, by code.
CREATE FUNCTION {s}.usage_rows(p_usage int[]) RETURNS TABLE (
    lane int, keys int, bytes int, blocked int, scheduled int, ready int, retrying int, leased int, completed int,
    failed int, canceled int
) LANGUAGE sql IMMUTABLE AS $$
    SELECT p_usage[i], p_usage[i + 1], p_usage[i + 2], p_usage[i + 3], p_usage[i + 4], p_usage[i + 5], p_usage[i + 6],
        p_usage[i + 7], p_usage[i + 8], p_usage[i + 9], p_usage[i + 10]
    FROM generate_series(1, cardinality(p_usage), 11) AS u (i)
$$;

-- The change that new jobs with these payloads make: p_later says which of them are scheduled. {record_bytes} is the size
-- that a record counts for, beside its payload.
CREATE FUNCTION {s}.usage_enqueued(p_lanes int[], p_payloads bytea[], p_later boolean[]) RETURNS int[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT unnest(ARRAY[lane, 0, {record_bytes} * count(*) + sum(octet_length(payload)), 0, count(*) FILTER (WHERE later),
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

-- Append events under this position. Called when the rows are locked: so the sequence is in the order of the changes.
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

-- Count purges, by tenant: `p_counts` more, beginning with the job `p_series` where there is no count. Answers each count, and
-- the transaction to file the purges under: ours, or that of an earlier purge if it is later, so that the log has them in
-- order. Drops old counts. [EVENT-1]
CREATE FUNCTION {s}.count_purges(
    p_tenants text[], p_series bigint[], p_counts bigint[], p_xid bigint, p_now bigint, p_before bigint, p_most int
) RETURNS TABLE (tenant text, series bigint, count bigint, place bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_place bigint;
BEGIN
    INSERT INTO {s}.purges AS p (tenant, series, count, at, logged)
    SELECT u.tenant, u.series, u.count, p_now, p_xid FROM unnest(p_tenants, p_series, p_counts) AS u (tenant, series, count)
    ORDER BY u.tenant COLLATE "C"
    ON CONFLICT (tenant) DO UPDATE
    SET count = p.count + excluded.count, at = excluded.at, logged = greatest(p.logged, excluded.logged);
    SELECT max(p.logged) INTO v_place FROM {s}.purges p WHERE p.tenant = ANY (p_tenants);
    UPDATE {s}.purges p SET logged = v_place WHERE p.tenant = ANY (p_tenants) AND p.logged < v_place;
    DELETE FROM {s}.purges p WHERE p.tenant = ANY (ARRAY(
        SELECT o.tenant FROM {s}.purges o WHERE o.at < p_before ORDER BY o.at LIMIT p_most FOR UPDATE SKIP LOCKED
    ));
    RETURN QUERY SELECT p.tenant, p.series, p.count, v_place FROM {s}.purges p WHERE p.tenant = ANY (p_tenants);
END $$;

-- The position that readers of the log stay below: that of the first transaction that is in progress and may write here. An event is filed
-- under its own transaction or a later one, so all that is filed below has been committed, or never will be. [EVENT-2]
--
-- `pg_snapshot_xmin` would do, but it also waits for transactions of other databases, which cannot write here. Those are left
-- out, and nothing else, because of the order in which things are looked at:
--   1. the snapshot: it has every transaction, of all databases, that is in progress and below its end;
--   2. which processes are connected to another database;
--   3. which transactions these processes have locked: each holds its own number exclusively, from its beginning to its end.
-- A transaction that is found in 3 runs since 1, in one and the same process, and so does that at 2: its database is the one
-- that was seen, though a process number may be used again. A prepared transaction names its database itself, and keeps its
-- number. What is not found in 3 counts as one of ours: also those whose lock is not there yet, and all if we may not look.
-- Those that have ended by now are left out as well. The snapshot does not show what they wrote, but every later one does:
-- therefore the events themselves must be read by a later statement.
CREATE FUNCTION {s}.horizon() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_snapshot pg_snapshot := pg_current_snapshot();
    v_least bigint := pg_snapshot_xmin(v_snapshot)::text::bigint;
    v_base bigint := (SELECT base FROM {s}.meta);
    v_pids int[];
    v_elsewhere xid[];
BEGIN
    -- Nothing is held up, so there is no need to look: seeing all locks makes others wait for a moment.
    IF NOT EXISTS (SELECT FROM {s}.events e WHERE e.epoch = (SELECT epoch FROM {s}.meta) AND e.xid >= v_base + v_least) THEN
        RETURN v_base + v_least;
    END IF;
    BEGIN
        PERFORM pg_stat_clear_snapshot();  -- Within a transaction it would show what it showed before.
        SELECT array_agg(pid) INTO v_pids FROM pg_stat_get_activity(NULL)
        WHERE datid <> (SELECT oid FROM pg_database WHERE datname = current_database());
        SELECT array_agg(x) INTO v_elsewhere FROM (
            SELECT transactionid AS x FROM pg_locks
            WHERE v_pids IS NOT NULL AND locktype = 'transactionid' AND mode = 'ExclusiveLock' AND granted AND pid = ANY (v_pids)
            UNION ALL
            SELECT transaction FROM pg_prepared_xacts WHERE database <> current_database()
        ) found;
    EXCEPTION WHEN insufficient_privilege THEN
        v_elsewhere := NULL;
    END;
    RETURN (
        SELECT v_base + coalesce(min(x::text::bigint), pg_snapshot_xmax(v_snapshot)::text::bigint) FROM pg_snapshot_xip(v_snapshot) AS x
        WHERE x::xid = ANY (v_elsewhere) IS NOT TRUE AND pg_xact_status(x) = 'in progress'
    );
END $$;

-- Take in new jobs whose ids are all new and different, without keys and quotas. Answers the clock; or NULL, and
-- nothing was done. Waits for nobody's open transaction: whoever is blocked cuts the batch in two. [ENQ-1, ENQ-2, ENQ-7]
CREATE FUNCTION {s}.enqueue(
    p_tenants text[], p_lines int[], p_lanes int[], p_ids text[], p_types text[], p_requests text[],
    p_ranks smallint[], p_attempts int[], p_delays bigint[], p_run_ats bigint[], p_ttls bigint[],
    p_heads bytea[], p_payloads bytea[], p_known text[]
) RETURNS bigint LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET lock_timeout = '100ms' AS $$
DECLARE
    v_now bigint;
    v_xid bigint;
    v_count int := cardinality(p_ids);
    v_put int;
    v_seqs bigint[];
    v_visible bigint[];
BEGIN
    PERFORM {s}.known(p_known);
    IF EXISTS (SELECT FROM {s}.settings WHERE tenant = ANY (p_tenants) AND max_waiting IS NOT NULL) THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(nextval('{s}.seqs')) INTO v_seqs FROM generate_series(1, v_count);
    -- In the order of the ids: two batches that meet wait for each other in one direction only.
    INSERT INTO {s}.ids (seq, lane, id)
    SELECT u.seq, coalesce(u.lane, p_lanes[1]) AS lane, u.id FROM unnest(v_seqs, p_lanes, p_ids) AS u (seq, lane, id)
    ORDER BY 2, 3
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_put = ROW_COUNT;
    IF v_put < v_count THEN
        DELETE FROM {s}.ids USING unnest(v_seqs, p_lanes, p_ids) AS u (seq, lane, id)
        WHERE ids.lane = coalesce(u.lane, p_lanes[1]) AND ids.id = u.id AND ids.seq = u.seq;
        RETURN NULL;
    END IF;
    -- Both are read with the ids in our hands: what these had before is behind us, and so is its time.
    v_xid := {s}.fresh_xid();
    v_now := {s}.now_ms();
    SELECT array_agg(greatest(v_now, coalesce(u.run_at, v_now + coalesce(u.delay, p_delays[1])))) INTO v_visible
    FROM unnest(v_seqs, p_run_ats, p_delays) AS u (seq, run_at, delay);
    INSERT INTO {s}.jobs (seq, visible_at, enqueued_at, result_ttl, logged, line, lane, state, rank, id, type, request_id,
        head, payload)
    SELECT u.seq, u.visible_at, v_now, coalesce(u.ttl, p_ttls[1]), v_xid, coalesce(u.line, p_lines[1]),
        coalesce(u.lane, p_lanes[1]), CASE WHEN u.visible_at > v_now THEN 1 ELSE 2 END, coalesce(u.rank, p_ranks[1]),
        u.id, coalesce(u.type, p_types[1]), u.request, coalesce(u.head, p_heads[1]), u.payload
    FROM unnest(v_seqs, v_visible, p_ttls, p_lines, p_lanes, p_ranks, p_ids, p_types, p_requests, p_heads, p_payloads)
        AS u (seq, visible_at, ttl, line, lane, rank, id, type, request, head, payload);
    PERFORM {s}.log(v_xid, v_now, v_count, '{0}', p_lanes, p_ids, p_types, '{0}', '{0}', '{""}',
        p_ranks::bigint[], p_attempts::bigint[], v_visible, NULL, '{1}',
        {s}.usage_enqueued(p_lanes, p_payloads, ARRAY(SELECT at > v_now FROM unnest(v_visible) AS u (at))));
    RETURN v_now;
END $$;

-- Complete jobs whose leases are all live. Answers the clock; or NULL, and nothing was done. Whoever knows under which
-- numbers the jobs stand names them in p_seqs; else they are looked up by their ids. p_lock_ms says how long to wait for
-- somebody who holds one of them. [LEASE-1, RESULT-1]
CREATE FUNCTION {s}.complete(
    p_lanes int[], p_ids text[], p_tokens bigint[], p_results bytea[], p_seqs bigint[], p_lock_ms int, p_known text[]
) RETURNS bigint LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_now bigint;
    v_count int := cardinality(p_ids);
    v_seqs bigint[] := p_seqs;
    v_lanes int[];
    v_types text[];
    v_attempts int[];
    v_numbers int[];
    v_workers text[];
    v_xid bigint := {s}.xid();
    v_last bigint;
    v_live int;
    v_until bigint;
    v_keyed boolean;
BEGIN
    PERFORM {s}.known(p_known);
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    IF v_seqs IS NULL THEN
        SELECT array_agg(ids.seq ORDER BY u.i) INTO v_seqs
        FROM unnest(p_lanes, p_ids) WITH ORDINALITY AS u (lane, id, i)
        JOIN {s}.ids ON ids.lane = coalesce(u.lane, p_lanes[1]) AND ids.id = u.id;
        IF coalesce(cardinality(v_seqs), 0) < v_count THEN
            RETURN NULL;
        END IF;
    END IF;
    -- By the primary key and in its order: `+ 0` keeps the planner from the index of deadlines. If one of them is not live
    -- any more, all stay, for the slower path to judge. The clock is read when all are held: whoever waited for somebody may
    -- be late by then.
    WITH gone AS (
        DELETE FROM {s}.jobs j
        USING (
            SELECT * FROM unnest(v_seqs, p_lanes, p_ids, p_tokens, p_results) WITH ORDINALITY
                AS v (seq, lane, id, token, result, i)
            ORDER BY seq
        ) AS u
        WHERE j.seq = u.seq AND j.state + 0 = 4 AND j.token = u.token
            AND j.lane = coalesce(u.lane, p_lanes[1]) AND j.id = u.id
        RETURNING j.*, u.result AS outcome, u.i
    ), held AS MATERIALIZED (
        SELECT count(*) AS live, {s}.now_ms() AS now FROM gone
    ), put AS (
        INSERT INTO {s}.done (seq, visible_at, enqueued_at, result_ttl, logged, token, claimed_at, finished_at, expires_at,
            line, lane, attempts, events, state, rank, id, type, request_id, worker, key, head, payload, extra, result)
        SELECT seq, visible_at, enqueued_at, result_ttl, greatest(logged, v_xid), token, claimed_at, held.now,
            held.now + result_ttl, line, lane, attempts, events + 1, 5, rank, id, type, request_id, worker, key, head,
            payload, extra, outcome
        FROM held CROSS JOIN gone
    )
    SELECT (SELECT now FROM held), (SELECT live FROM held), array_agg(lane ORDER BY i), array_agg(type ORDER BY i),
        array_agg(attempts ORDER BY i), array_agg(events + 1 ORDER BY i), array_agg(worker ORDER BY i), max(logged),
        min(deadline), bool_or(key IS NOT NULL)
    INTO v_now, v_live, v_lanes, v_types, v_attempts, v_numbers, v_workers, v_last, v_until, v_keyed
    FROM gone;
    IF v_live < v_count OR v_until <= v_now THEN
        RAISE SQLSTATE 'HF001';
    END IF;
    IF v_last > v_xid THEN
        v_xid := v_last;
        UPDATE {s}.done SET logged = v_xid WHERE seq = ANY (v_seqs);
    END IF;
    IF v_keyed THEN
        DELETE FROM {s}.keys k USING {s}.done d WHERE d.seq = ANY (v_seqs) AND d.key IS NOT NULL AND k.lane = d.lane
            AND k.type = d.type AND k.key = d.key AND k.job_id = d.id AND k.policy IN ('until_terminal', 'until_started');
    END IF;
    PERFORM {s}.log(v_xid, v_now, v_count, '{7}', v_lanes, p_ids, v_types, v_attempts, p_tokens, v_workers,
        NULL, NULL, NULL, NULL, v_numbers, {s}.usage_completed(p_lanes, p_results));
    RETURN v_now;
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    RETURN NULL;
END $$;

-- Renew leases that are all live. Answers the clock and the new deadlines, in order; or NULL, and nothing was done.
-- [LEASE-1, LEASE-2]
CREATE FUNCTION {s}.extend(
    p_lanes int[], p_ids text[], p_tokens bigint[], p_leases bigint[], p_seqs bigint[], p_lock_ms int, p_known text[]
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_now bigint := {s}.now_ms();
    v_deadlines bigint[];
    v_until bigint;
BEGIN
    PERFORM {s}.known(p_known);
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    -- `old` is as it was before we waited for anybody. If it was renewed meanwhile, the slower path finds out.
    WITH moved AS (
        UPDATE {s}.jobs j SET deadline = greatest(j.deadline, v_now + u.lease)
        FROM (
            SELECT v.*, old.deadline AS until FROM unnest(p_seqs, p_lanes, p_ids, p_tokens, p_leases) WITH ORDINALITY
                AS v (seq, lane, id, token, lease, i)
            JOIN {s}.jobs old ON old.seq = v.seq
            ORDER BY v.seq
        ) AS u
        WHERE j.seq = u.seq AND j.state + 0 = 4 AND j.token = u.token
            AND j.lane = coalesce(u.lane, p_lanes[1]) AND j.id = u.id
        RETURNING u.i, u.until, j.deadline
    )
    SELECT array_agg(deadline ORDER BY i), min(until) INTO v_deadlines, v_until FROM moved;
    IF coalesce(cardinality(v_deadlines), 0) < cardinality(p_ids) OR v_until <= {s}.now_ms() THEN
        RAISE SQLSTATE 'HF001';
    END IF;
    RETURN v_now || v_deadlines;
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    RETURN NULL;
END $$;

-- Enqueue and complete, and then a hint in a transaction of its own: NOTIFY holds a lock on the whole database while it commits,
-- which must not wait for the disk; and a round trip of its own would be late. [CLAIM-3, RESULT-2]
CREATE PROCEDURE {s}.tell(p_channels text[], p_hints text[]) LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_notify(channel, hint) FROM unnest(p_channels, p_hints) AS u (channel, hint);
END $$;

CREATE PROCEDURE {s}.enqueue_and_tell(
    p_channels text[], p_hints text[], p_tenants text[], p_lines int[], p_lanes int[], p_ids text[], p_types text[],
    p_requests text[], p_ranks smallint[], p_attempts int[], p_delays bigint[], p_run_ats bigint[], p_ttls bigint[],
    p_heads bytea[], p_payloads bytea[], p_known text[], INOUT p_now bigint
) LANGUAGE plpgsql AS $$
BEGIN
    p_now := {s}.enqueue(p_tenants, p_lines, p_lanes, p_ids, p_types, p_requests, p_ranks, p_attempts, p_delays,
        p_run_ats, p_ttls, p_heads, p_payloads, p_known);
    IF p_now IS NOT NULL THEN
        CALL {s}.tell(p_channels, p_hints);
    END IF;
END $$;

CREATE PROCEDURE {s}.complete_and_tell(
    p_channels text[], p_hints text[], p_lanes int[], p_ids text[], p_tokens bigint[], p_results bytea[], p_seqs bigint[],
    p_lock_ms int, p_known text[], INOUT p_now bigint
) LANGUAGE plpgsql AS $$
BEGIN
    p_now := {s}.complete(p_lanes, p_ids, p_tokens, p_results, p_seqs, p_lock_ms, p_known);
    IF p_now IS NOT NULL THEN
        CALL {s}.tell(p_channels, p_hints);
    END IF;
END $$;

-- Lock named jobs for a change, in one order for everybody: first those that have ended, as those do who take their ids or
-- forget them; then what decides of their ids; then the rows that claims and completions would touch. Answers the transaction, the
-- clock as it is once the locks are held, and the numbers of the jobs that are locked. A job that is not among them may be
-- there by the next statement, which sees more than this one did: the caller reads by these numbers and not by id, so that it
-- never acts on a row that others may claim or finish meanwhile. [LEASE-1, CANCEL-1, KEEP-1]
CREATE FUNCTION {s}.hold(p_lanes int[], p_ids text[], p_known text[]) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_seqs bigint[];
    v_hot bigint[];
    v_ended bigint[];
BEGIN
    PERFORM {s}.known(p_known);
    PERFORM FROM unnest(p_lanes, p_ids) AS u (lane, id)
    JOIN {s}.ids ON ids.lane = u.lane AND ids.id = u.id
    JOIN {s}.done d ON d.seq = ids.seq
    ORDER BY d.seq FOR UPDATE OF d;
    WITH held AS MATERIALIZED (
        SELECT ids.seq FROM unnest(p_lanes, p_ids) AS u (lane, id)
        JOIN {s}.ids ON ids.lane = u.lane AND ids.id = u.id
        ORDER BY ids.lane, ids.id FOR UPDATE OF ids
    )
    SELECT array_agg(seq) INTO v_seqs FROM held;
    WITH held AS MATERIALIZED (
        SELECT j.seq FROM unnest(v_seqs) AS u (seq) JOIN {s}.jobs j ON j.seq = u.seq ORDER BY j.seq FOR UPDATE OF j
    )
    SELECT array_agg(seq) INTO v_hot FROM held;
    -- Also those that have ended while we waited for them. They are not waited for: whoever has one of them may want its id,
    -- which is ours. The whole is then tried again, and finds them in their order.
    IF coalesce(cardinality(v_hot), 0) < cardinality(v_seqs) THEN
        WITH held AS MATERIALIZED (
            SELECT d.seq FROM unnest(v_seqs) AS u (seq) JOIN {s}.done d ON d.seq = u.seq
            ORDER BY d.seq FOR UPDATE OF d SKIP LOCKED
        )
        SELECT array_agg(seq) INTO v_ended FROM held;
        IF coalesce(cardinality(v_hot), 0) + coalesce(cardinality(v_ended), 0) < cardinality(v_seqs) AND EXISTS (
            SELECT FROM unnest(v_seqs) AS u (seq) JOIN {s}.done d ON d.seq = u.seq
            WHERE d.seq = ANY (v_ended) IS NOT TRUE
        ) THEN
            RAISE SQLSTATE '40001' USING MESSAGE = 'a job has ended at this very moment';
        END IF;
    END IF;
    RETURN ARRAY[{s}.xid(), {s}.now_ms()] || v_hot || v_ended;
END $$;

-- Take ids for new jobs: free ones (0), and those of ended jobs, named by number. Answers the transaction to file the
-- first events under, the clock, and the numbers that the ids have now; or NULL, and none is taken, if one of them is not as it was seen. Waiting and leased
-- jobs are never touched. Not undone by an exception: each would cost a caller a transaction number. [ENQ-2, ENQ-7]
CREATE FUNCTION {s}.take_ids(p_lanes int[], p_ids text[], p_seqs bigint[], p_known text[]) RETURNS bigint[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_put bigint[];
    v_seqs bigint[];
    v_held int;
BEGIN
    PERFORM {s}.known(p_known);
    WITH put AS (
        INSERT INTO {s}.ids (seq, lane, id)
        SELECT nextval('{s}.seqs'), u.lane, u.id FROM (
            SELECT * FROM unnest(p_lanes, p_ids, p_seqs) AS v (lane, id, seq) WHERE seq = 0 ORDER BY lane, id) u
        ON CONFLICT DO NOTHING
        RETURNING seq
    )
    SELECT coalesce(array_agg(seq), '{}') INTO v_put FROM put;
    -- Nobody gives the id to another while its ended job is locked. Whoever was first has removed that: no lock is left.
    PERFORM FROM unnest(p_seqs) AS u (seq) JOIN {s}.done d ON d.seq = u.seq ORDER BY d.seq FOR UPDATE OF d;
    GET DIAGNOSTICS v_held = ROW_COUNT;
    IF cardinality(v_put) + v_held < cardinality(p_ids) THEN
        DELETE FROM {s}.ids USING unnest(p_lanes, p_ids) AS u (lane, id)
        WHERE ids.lane = u.lane AND ids.id = u.id AND ids.seq = ANY (v_put);
        RETURN NULL;
    END IF;
    SELECT array_agg(ids.seq ORDER BY u.i) INTO v_seqs FROM unnest(p_lanes, p_ids, p_seqs) WITH ORDINALITY AS u (lane, id, seq, i)
    JOIN {s}.ids ON ids.lane = u.lane AND ids.id = u.id AND (ids.seq = u.seq OR ids.seq = ANY (v_put));
    PERFORM {s}.expect(cardinality(p_ids), cardinality(v_seqs));
    RETURN ARRAY[{s}.fresh_xid(), {s}.now_ms()] || v_seqs;
END $$;

-- The first generation goes on with the small numbers that a new schema has.
INSERT INTO {s}.generation
VALUES (gen_random_uuid(), pg_current_xact_id()::xid, '{s}.lanes'::regclass, pg_postmaster_start_time());
