-- The clock, and the generation of the data: what a process caches is valid for one generation only.

-- The store clock, in milliseconds.
CREATE FUNCTION {s}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(frozen_at, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) + shift FROM {s}.meta
$$;

-- Raises: a restore has made the tables and not filled them yet. For statements that read nothing but the clock.
CREATE FUNCTION {s}.no_data() RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RAISE SQLSTATE 'HF002' USING MESSAGE = 'there is no data';
END $$;

-- The log position of this transaction. It grows from epoch to epoch, so the greater of two is the later.
CREATE FUNCTION {s}.xid() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_current_xact_id()::text::bigint + base FROM {s}.meta
$$;

-- Raises unless the cached facts of a process still hold. p_cached has the generation, and for each lane that the call
-- uses: its number, queue_id, tenant, queue, and the bits of the priorities that it must have. Every function and
-- statement that takes a lane number, grants a token, or reads or writes the log begins with this check. [TENANT-3]
CREATE FUNCTION {s}.check_cache(p_cached text[]) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF cardinality(p_cached) = 6 THEN
        PERFORM FROM {s}.current_generation g CROSS JOIN {s}.lanes l
        WHERE g.value = p_cached[1] AND l.lane = p_cached[2]::int AND l.queue_id = p_cached[3]::int
            AND l.tenant = p_cached[4]
            AND l.queue = p_cached[5] AND l.ranks & p_cached[6]::int = p_cached[6]::int;
        IF FOUND THEN
            RETURN true;
        END IF;
    END IF;
    IF NOT EXISTS (SELECT FROM {s}.current_generation WHERE value = p_cached[1]) THEN
        RAISE SQLSTATE 'HF002' USING MESSAGE = 'the data has another generation';
    END IF;
    IF EXISTS (
        SELECT FROM generate_series(2, cardinality(p_cached), 5) AS u (i) LEFT JOIN {s}.lanes l
            ON l.lane = p_cached[i]::int AND l.queue_id = p_cached[i + 1]::int AND l.tenant = p_cached[i + 2]
            AND l.queue = p_cached[i + 3] AND l.ranks & p_cached[i + 4]::int = p_cached[i + 4]::int
        WHERE l.lane IS NULL
    ) THEN
        RAISE SQLSTATE 'HF003' USING MESSAGE = 'a cached lane has changed';
    END IF;
    RETURN true;
END $$;

-- Begins a generation unless another process has, and answers its value. NULL while a restore is under way: nothing may be
-- written then. The time it takes does not depend on the number of jobs.
--
-- The last tokens, job numbers and positions may be lost, though readers, workers and flows have seen them. New ones start
-- at the clock in microseconds. That is past all earlier ones, because a second has fewer leases and transactions than
-- microseconds. If the clock is behind the last known ones, they continue far past those instead. They never run ahead of a
-- correct clock: if this generation were lost too, the next one would use the same numbers again. [LEASE-5, EVENT-2]
--
-- Nothing may be logged in the old epoch later. Every transaction that logs holds a lock on the table until its commit, and
-- this function waits for it. A transaction that waits for this function reads `meta` afterwards.
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
    -- A restore makes this index valid last, after the rows and the sequences.
    IF NOT EXISTS (SELECT FROM {s}.meta)
        OR NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('{s}.events_position') AND indisvalid) THEN
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
    SELECT greatest(v_last.xid, last_value) INTO v_start FROM {s}.freed_xid;
    v_start := CASE WHEN v_clock > v_start THEN v_clock ELSE v_start + v_far END;
    INSERT INTO {s}.epochs VALUES (v_epoch, v_start, v_last.epoch, v_last.xid, v_last.n, v_last.k);
    UPDATE {s}.meta SET epoch = v_epoch, base = v_start - pg_snapshot_xmin(pg_current_snapshot())::text::bigint;
    PERFORM setval('{s}.tokens', CASE WHEN v_clock > last_value THEN v_clock ELSE last_value + v_far END) FROM {s}.tokens;
    PERFORM setval('{s}.seqs', CASE WHEN v_clock > last_value THEN v_clock ELSE last_value + v_far END) FROM {s}.seqs;
    DELETE FROM {s}.waiter_queues;
    UPDATE {s}.waiters SET expires_at = -{s}.now_ms() WHERE expires_at > 0;  -- Jobs that were handed off may be lost.
    DELETE FROM {s}.generation;
    INSERT INTO {s}.generation
    VALUES (v_value, pg_current_xact_id()::xid, '{s}.lanes'::regclass, pg_postmaster_start_time());
    RETURN v_value;
END $$;

-- Identifies the data: the schema and the generation. Begins a generation if there is none. NULL while a restore is under
-- way.
CREATE FUNCTION {s}.data_id() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_value text := '';
BEGIN
    IF NOT pg_is_in_recovery() THEN  -- A replica cannot read unlogged tables.
        SELECT value INTO v_value FROM {s}.current_generation;
        IF NOT FOUND THEN
            v_value := {s}.new_generation();
        END IF;
    END IF;
    RETURN (SELECT id || ' ' || v_value FROM {s}.meta);
END $$;

-- The first generation continues with the small numbers of a new schema.
INSERT INTO {s}.generation
VALUES (gen_random_uuid(), pg_current_xact_id()::xid, '{s}.lanes'::regclass, pg_postmaster_start_time());
