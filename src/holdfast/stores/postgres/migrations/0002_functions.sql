-- The hot paths, each one call and one round trip for a batch: enqueue, claim, complete, and the lock that the slower
-- paths begin with. An array of one element stands for as many as are needed.
--
-- Each function says how it is to be planned: by index, in nested loops, the same whatever the statistics say. With stale
-- ones the planner would finish jobs by the index of deadlines, and a claim could take more than its limit.

CREATE FUNCTION {s}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(frozen_at, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) + shift FROM {s}.meta
$$;

CREATE FUNCTION {s}.xid() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT pg_current_xact_id()::text::bigint
$$;

-- Up to which transaction ids were freed that somebody may take again: their last events are filed under it or before.
CREATE SEQUENCE {s}.freed MINVALUE 0 START 0;

-- Whether this transaction is still to come: then it is of another cluster, which the data was restored from.
CREATE FUNCTION {s}.to_come(p_xid bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_xact_status(p_xid::text::xid8);
    RETURN false;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN true;
END $$;

-- Ids are free again, of jobs whose last events are filed under this transaction. Called last, as it makes others wait.
CREATE FUNCTION {s}.free(p_xid bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{s}.freed', 11));
    PERFORM setval('{s}.freed', greatest(p_xid, last_value)) FROM {s}.freed;
END $$;

-- The transaction to file the first events of new jobs under, once their ids are taken: ours; or, if it began before others
-- freed an id, theirs. What the id had before is then read before it. [EVENT-2]
CREATE FUNCTION {s}.fresh_xid() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_xid bigint := {s}.xid();
    v_freed bigint;
BEGIN
    SELECT last_value INTO v_freed FROM {s}.freed;
    RETURN CASE WHEN v_freed > v_xid AND NOT {s}.to_come(v_freed) THEN v_freed ELSE v_xid END;
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

-- Append events under this position. Called when the rows are locked: so the sequence is in the order of the changes.
CREATE FUNCTION {s}.log(
    p_xid bigint, p_at bigint, p_count int, p_kinds smallint[], p_lanes int[], p_ids text[], p_types text[],
    p_attempts int[], p_tokens bigint[], p_workers text[], p_xs bigint[], p_ys bigint[], p_zs bigint[], p_more bytea[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_n bigint := nextval('{s}.events_n');
BEGIN
    INSERT INTO {s}.events (slot, epoch, xid, n, at, count, kinds, lanes, ids, types, attempts, tokens, workers, xs, ys,
        zs, more)
    SELECT slot, epoch, p_xid, v_n, p_at, p_count, p_kinds, p_lanes, p_ids, p_types, p_attempts, p_tokens,
        p_workers, p_xs, p_ys, p_zs, p_more
    FROM {s}.meta;
END $$;

-- Whether the log goes on with transactions that are still to come.
CREATE FUNCTION {s}.is_restored() RETURNS boolean LANGUAGE sql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
    SELECT {s}.to_come(greatest(
        CASE WHEN t.trimmed_epoch = m.epoch THEN t.trimmed_xid END,
        (SELECT e.xid FROM {s}.events e WHERE e.epoch = m.epoch ORDER BY e.epoch DESC, e.xid DESC, e.n DESC LIMIT 1)
    )) FROM {s}.meta m LEFT JOIN {s}.trimming t ON true
$$;

-- Restored into another cluster, transactions count from another number: a new epoch begins, and what was logged in the old
-- one is behind all that comes. Nothing of the old one may come later: everybody who logs holds the table until the commit,
-- and is waited for here; whoever waits for us reads `meta` afterwards. [EVENT-2]
CREATE FUNCTION {s}.new_epoch() RETURNS void LANGUAGE plpgsql
SET lock_timeout = '1500ms' AS $$
BEGIN
    IF NOT {s}.is_restored() THEN
        RETURN;
    END IF;
    LOCK TABLE ONLY {s}.events IN SHARE ROW EXCLUSIVE MODE;
    IF {s}.is_restored() THEN  -- Nobody else did it meanwhile.
        UPDATE {s}.meta SET epoch = epoch + 1;
        UPDATE {s}.jobs SET logged = 0 WHERE logged <> 0;
        UPDATE {s}.done SET logged = 0 WHERE logged <> 0;
        PERFORM setval('{s}.freed', 0);
    END IF;
END $$;

-- Take in new jobs whose ids are all new and different, without keys and quotas. Answers the clock; or NULL, and
-- nothing was done. Waits for nobody's open transaction: whoever is blocked cuts the batch in two. [ENQ-1, ENQ-2, ENQ-7]
CREATE FUNCTION {s}.enqueue(
    p_tenants text[], p_lines int[], p_lanes int[], p_ids text[], p_types text[], p_requests text[],
    p_ranks smallint[], p_attempts int[], p_delays bigint[], p_run_ats bigint[], p_ttls bigint[],
    p_heads bytea[], p_payloads bytea[]
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
        p_ranks::bigint[], p_attempts::bigint[], v_visible, NULL);
    RETURN v_now;
END $$;

-- Complete jobs whose leases are all live. Answers the clock; or NULL, and nothing was done. Whoever knows under which
-- numbers the jobs stand names them in p_seqs; else they are looked up by their ids. p_lock_ms says how long to wait for
-- somebody who holds one of them. [LEASE-1, RESULT-1]
CREATE FUNCTION {s}.complete(
    p_lanes int[], p_ids text[], p_tokens bigint[], p_results bytea[], p_seqs bigint[], p_lock_ms int
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
    v_workers text[];
    v_xid bigint := {s}.xid();
    v_last bigint;
    v_live int;
    v_until bigint;
    v_keyed boolean;
BEGIN
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
            line, lane, attempts, state, rank, id, type, request_id, worker, key, head, payload, extra, result)
        SELECT seq, visible_at, enqueued_at, result_ttl, greatest(logged, v_xid), token, claimed_at, held.now,
            held.now + result_ttl, line, lane, attempts, 5, rank, id, type, request_id, worker, key, head, payload, extra,
            outcome
        FROM held CROSS JOIN gone
    )
    SELECT (SELECT now FROM held), (SELECT live FROM held), array_agg(lane ORDER BY i), array_agg(type ORDER BY i),
        array_agg(attempts ORDER BY i), array_agg(worker ORDER BY i), max(logged), min(deadline), bool_or(key IS NOT NULL)
    INTO v_now, v_live, v_lanes, v_types, v_attempts, v_workers, v_last, v_until, v_keyed
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
        NULL, NULL, NULL, NULL);
    RETURN v_now;
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    RETURN NULL;
END $$;

-- Renew leases that are all live. Answers the clock and the new deadlines, in order; or NULL, and nothing was done.
-- [LEASE-1, LEASE-2]
CREATE FUNCTION {s}.extend(
    p_lanes int[], p_ids text[], p_tokens bigint[], p_leases bigint[], p_seqs bigint[], p_lock_ms int
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_now bigint := {s}.now_ms();
    v_deadlines bigint[];
    v_until bigint;
BEGIN
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
    p_heads bytea[], p_payloads bytea[], INOUT p_now bigint
) LANGUAGE plpgsql AS $$
BEGIN
    p_now := {s}.enqueue(p_tenants, p_lines, p_lanes, p_ids, p_types, p_requests, p_ranks, p_attempts, p_delays,
        p_run_ats, p_ttls, p_heads, p_payloads);
    IF p_now IS NOT NULL THEN
        CALL {s}.tell(p_channels, p_hints);
    END IF;
END $$;

CREATE PROCEDURE {s}.complete_and_tell(
    p_channels text[], p_hints text[], p_lanes int[], p_ids text[], p_tokens bigint[], p_results bytea[], p_seqs bigint[],
    p_lock_ms int, INOUT p_now bigint
) LANGUAGE plpgsql AS $$
BEGIN
    p_now := {s}.complete(p_lanes, p_ids, p_tokens, p_results, p_seqs, p_lock_ms);
    IF p_now IS NOT NULL THEN
        CALL {s}.tell(p_channels, p_hints);
    END IF;
END $$;

-- Lock named jobs for a change: first those that have ended, as those do who take their ids or forget them; then what decides
-- of their ids, in one order for everybody, then the rows that claims and completions would touch. What is read afterwards stays as it is until the end of the transaction. Answers the transaction
-- and the clock as it is once the locks are held. [LEASE-1]
CREATE FUNCTION {s}.hold(p_lanes int[], p_ids text[]) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_seqs bigint[];
BEGIN
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
    PERFORM FROM unnest(v_seqs) AS u (seq) JOIN {s}.jobs j ON j.seq = u.seq ORDER BY j.seq FOR UPDATE OF j;
    RETURN ARRAY[{s}.xid(), {s}.now_ms()];
END $$;

-- Take ids for new jobs: free ones (0), and those of ended jobs, named by number. Answers the transaction to file the
-- first events under, and the clock; or NULL, and none is taken, if one of them is not as it was seen. Waiting and leased
-- jobs are never touched. Not undone by an exception: each would cost a caller a transaction number. [ENQ-2, ENQ-7]
CREATE FUNCTION {s}.take_ids(p_lanes int[], p_ids text[], p_seqs bigint[]) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_put bigint[];
    v_held int;
BEGIN
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
    RETURN ARRAY[{s}.fresh_xid(), {s}.now_ms()];
END $$;
