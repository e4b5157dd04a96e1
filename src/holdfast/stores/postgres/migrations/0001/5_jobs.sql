-- The hot paths for batches, one call and one round trip each: enqueue, complete and extend; and the locks that the slower
-- paths begin with. An array of one element has the same value for all jobs.
--
-- Each function sets how it is planned: by index, in nested loops, whatever the statistics say. With stale statistics the
-- planner would finish jobs by the index of deadlines, and a claim could take more than its limit.

-- Raises unless a change reached all the rows that were locked for it. The transaction is then rolled back and tried again,
-- as after any conflict.
CREATE FUNCTION {s}.expect(p_meant bigint, p_changed bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_changed IS DISTINCT FROM p_meant THEN
        RAISE SQLSTATE '40001' USING MESSAGE = format('%s of %s rows were changed', p_changed, p_meant);
    END IF;
END $$;

-- Locks idempotency keys, all of them or none. Answers whether it did; it does not wait.
CREATE FUNCTION {s}.try_lock_keys(p_keys text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT bool_and(pg_try_advisory_xact_lock(hashtextextended(k, 3))) FROM unnest(p_keys) AS u (k)) THEN
        RETURN true;
    END IF;
    RAISE SQLSTATE 'HF001';
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    RETURN false;
END $$;

-- Inserts new jobs whose ids are all new and different, without keys and quotas. Answers the clock; or NULL, and nothing is
-- done. It waits 100 ms at most for another's open transaction: a blocked batch is halved by the caller. [ENQ-1, ENQ-2, ENQ-7]
CREATE FUNCTION {s}.enqueue(
    p_tenants text[], p_queue_ids int[], p_lanes int[], p_ids text[], p_types text[], p_requests text[],
    p_ranks smallint[], p_attempts int[], p_delays bigint[], p_run_ats bigint[], p_ttls bigint[],
    p_heads bytea[], p_payloads bytea[], p_cached text[]
) RETURNS bigint LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET lock_timeout = '100ms' AS $$
DECLARE
    v_now bigint;
    v_xid bigint;
    v_count int := cardinality(p_ids);
    v_taken int;
    v_seqs bigint[];
    v_visible bigint[];
BEGIN
    PERFORM {s}.check_cache(p_cached);
    IF EXISTS (SELECT FROM {s}.settings WHERE tenant = ANY (p_tenants) AND max_waiting IS NOT NULL) THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(nextval('{s}.seqs')) INTO v_seqs FROM generate_series(1, v_count);
    -- In the order of the ids: of two batches with common ids, one waits for the other, and not both.
    INSERT INTO {s}.ids (seq, lane, id)
    SELECT u.seq, coalesce(u.lane, p_lanes[1]) AS lane, u.id FROM unnest(v_seqs, p_lanes, p_ids) AS u (seq, lane, id)
    ORDER BY 2, 3
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_taken = ROW_COUNT;
    IF v_taken < v_count THEN
        DELETE FROM {s}.ids USING unnest(v_seqs, p_lanes, p_ids) AS u (seq, lane, id)
        WHERE ids.lane = coalesce(u.lane, p_lanes[1]) AND ids.id = u.id AND ids.seq = u.seq;
        RETURN NULL;
    END IF;
    -- Read both after the ids are taken: then earlier jobs of these ids have an earlier position and time.
    v_xid := {s}.fresh_xid();
    v_now := {s}.now_ms();
    SELECT array_agg(greatest(v_now, coalesce(u.run_at, v_now + coalesce(u.delay, p_delays[1])))) INTO v_visible
    FROM unnest(v_seqs, p_run_ats, p_delays) AS u (seq, run_at, delay);
    INSERT INTO {s}.jobs (seq, visible_at, enqueued_at, result_ttl, logged, queue_id, lane, state, rank, id, type,
        request_id,
        head, payload)
    SELECT u.seq, u.visible_at, v_now, coalesce(u.ttl, p_ttls[1]), v_xid, coalesce(u.queue_id, p_queue_ids[1]),
        coalesce(u.lane, p_lanes[1]), CASE WHEN u.visible_at > v_now THEN {state:scheduled} ELSE {state:ready} END,
            coalesce(u.rank, p_ranks[1]),
        u.id, coalesce(u.type, p_types[1]), u.request, coalesce(u.head, p_heads[1]), u.payload
    FROM unnest(v_seqs, v_visible, p_ttls, p_queue_ids, p_lanes, p_ranks, p_ids, p_types, p_requests, p_heads, p_payloads)
        AS u (seq, visible_at, ttl, queue_id, lane, rank, id, type, request, head, payload);
    PERFORM {s}.log(v_xid, v_now, v_count, '{{event:enqueued}}', p_lanes, p_ids, p_types, '{0}', '{0}', '{""}',
        p_ranks::bigint[], p_attempts::bigint[], v_visible, NULL, '{1}',
        {s}.usage_enqueued(p_lanes, p_payloads, ARRAY(SELECT at > v_now FROM unnest(v_visible) AS u (at))));
    RETURN v_now;
END $$;

-- Completes jobs whose leases are all live. Answers the clock; or NULL, and nothing is done. p_seqs has the numbers of the
-- jobs if the caller knows them; otherwise they are looked up by id. p_lock_ms limits the wait for a locked job. [LEASE-1, RESULT-1]
CREATE FUNCTION {s}.complete(
    p_lanes int[], p_ids text[], p_tokens bigint[], p_results bytea[], p_seqs bigint[], p_lock_ms int, p_cached text[]
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
    PERFORM {s}.check_cache(p_cached);
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
    -- By the primary key and in its order: `+ 0` keeps the planner from the index of deadlines. If one lease is no longer
    -- live, no job changes, and the slower path judges each. Read the clock after all rows are locked: a wait for a lock
    -- may outlast the deadline.
    WITH gone AS (
        DELETE FROM {s}.jobs j
        USING (
            SELECT * FROM unnest(v_seqs, p_lanes, p_ids, p_tokens, p_results) WITH ORDINALITY
                AS v (seq, lane, id, token, result, i)
            ORDER BY seq
        ) AS u
        WHERE j.seq = u.seq AND j.state + 0 = {state:leased} AND j.token = u.token
            AND j.lane = coalesce(u.lane, p_lanes[1]) AND j.id = u.id
        RETURNING j.*, u.result AS outcome, u.i
    ), held AS MATERIALIZED (
        SELECT count(*) AS live, {s}.now_ms() AS now FROM gone
    ), put AS (
        INSERT INTO {s}.done (seq, visible_at, enqueued_at, result_ttl, logged, token, claimed_at, finished_at, expires_at,
            queue_id, lane, attempts, events, state, rank, id, type, request_id, worker, key, head, payload, extra, result)
        SELECT seq, visible_at, enqueued_at, result_ttl, greatest(logged, v_xid), token, claimed_at, held.now,
            held.now + result_ttl, queue_id, lane, attempts, events + 1, {state:completed}, rank, id, type, request_id,
                worker, key, head,
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
    PERFORM {s}.log(v_xid, v_now, v_count, '{{event:completed}}', v_lanes, p_ids, v_types, v_attempts, p_tokens, v_workers,
        NULL, NULL, NULL, NULL, v_numbers, {s}.usage_completed(p_lanes, p_results));
    RETURN v_now;
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    RETURN NULL;
END $$;

-- Renews leases that are all live. Answers the clock and the new deadlines, in order; or NULL, and nothing is done.
-- [LEASE-1, LEASE-2]
CREATE FUNCTION {s}.extend(
    p_lanes int[], p_ids text[], p_tokens bigint[], p_leases bigint[], p_seqs bigint[], p_lock_ms int, p_cached text[]
) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_now bigint := {s}.now_ms();
    v_deadlines bigint[];
    v_until bigint;
BEGIN
    PERFORM {s}.check_cache(p_cached);
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    -- `old` is the row before any wait for a lock. If it was renewed meanwhile, the slower path judges it.
    WITH moved AS (
        UPDATE {s}.jobs j SET deadline = greatest(j.deadline, v_now + u.lease)
        FROM (
            SELECT v.*, old.deadline AS until FROM unnest(p_seqs, p_lanes, p_ids, p_tokens, p_leases) WITH ORDINALITY
                AS v (seq, lane, id, token, lease, i)
            JOIN {s}.jobs old ON old.seq = v.seq
            ORDER BY v.seq
        ) AS u
        WHERE j.seq = u.seq AND j.state + 0 = {state:leased} AND j.token = u.token
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

-- Commits, then notifies in a transaction of its own: NOTIFY locks the whole database while it commits, and must not wait
-- for the disk meanwhile. A round trip of its own would be late. [CLAIM-3, RESULT-2]
CREATE PROCEDURE {s}.commit_and_notify(p_channels text[], p_hints text[]) LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_notify(channel, hint) FROM unnest(p_channels, p_hints) AS u (channel, hint);
END $$;

CREATE PROCEDURE {s}.enqueue_and_notify(
    p_channels text[], p_hints text[], p_tenants text[], p_queue_ids int[], p_lanes int[], p_ids text[], p_types text[],
    p_requests text[], p_ranks smallint[], p_attempts int[], p_delays bigint[], p_run_ats bigint[], p_ttls bigint[],
    p_heads bytea[], p_payloads bytea[], p_cached text[], INOUT p_now bigint
) LANGUAGE plpgsql AS $$
BEGIN
    p_now := {s}.enqueue(p_tenants, p_queue_ids, p_lanes, p_ids, p_types, p_requests, p_ranks, p_attempts, p_delays,
        p_run_ats, p_ttls, p_heads, p_payloads, p_cached);
    IF p_now IS NOT NULL THEN
        CALL {s}.commit_and_notify(p_channels, p_hints);
    END IF;
END $$;

CREATE PROCEDURE {s}.complete_and_notify(
    p_channels text[], p_hints text[], p_lanes int[], p_ids text[], p_tokens bigint[], p_results bytea[], p_seqs bigint[],
    p_lock_ms int, p_cached text[], INOUT p_now bigint
) LANGUAGE plpgsql AS $$
BEGIN
    p_now := {s}.complete(p_lanes, p_ids, p_tokens, p_results, p_seqs, p_lock_ms, p_cached);
    IF p_now IS NOT NULL THEN
        CALL {s}.commit_and_notify(p_channels, p_hints);
    END IF;
END $$;

-- Locks named jobs for a change. The order is the same for all transactions: finished jobs first, as transactions do that
-- take or forget their ids; then the ids; then the rows that claims and completions write. Answers the transaction, the
-- clock once the locks are held, and the numbers of the locked jobs. A job may appear between this statement and the next
-- one. So the caller reads by these numbers, not by id, and never acts on a row that others may claim or finish
-- meanwhile. [LEASE-1, CANCEL-1, KEEP-1]
CREATE FUNCTION {s}.lock_jobs(p_lanes int[], p_ids text[], p_cached text[]) RETURNS bigint[] LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_seqs bigint[];
    v_hot bigint[];
    v_ended bigint[];
BEGIN
    PERFORM {s}.check_cache(p_cached);
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
    -- Also lock jobs that finished during the wait, but skip locked ones: their owner may be waiting for an id that is
    -- locked here. The caller then tries everything again, and finds these jobs in their order.
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
            RAISE SQLSTATE '40001' USING MESSAGE = 'a job finished during the wait for its lock';
        END IF;
    END IF;
    RETURN ARRAY[{s}.xid(), {s}.now_ms()] || v_hot || v_ended;
END $$;

-- Takes ids for new jobs: free ones (p_seqs 0), and those of finished jobs, by number. Answers the transaction to file the
-- first events under, the clock, and the numbers that the ids have now; or NULL, and no id is taken, if one of them has
-- changed since it was read. Waiting and leased jobs are never touched. It undoes its inserts without an exception,
-- because each exception would cost a caller's transaction a subtransaction number. [ENQ-2, ENQ-7]
CREATE FUNCTION {s}.take_ids(p_lanes int[], p_ids text[], p_seqs bigint[], p_cached text[]) RETURNS bigint[]
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_put bigint[];
    v_seqs bigint[];
    v_held int;
BEGIN
    PERFORM {s}.check_cache(p_cached);
    WITH put AS (
        INSERT INTO {s}.ids (seq, lane, id)
        SELECT nextval('{s}.seqs'), u.lane, u.id FROM (
            SELECT * FROM unnest(p_lanes, p_ids, p_seqs) AS v (lane, id, seq) WHERE seq = 0 ORDER BY lane, id) u
        ON CONFLICT DO NOTHING
        RETURNING seq
    )
    SELECT coalesce(array_agg(seq), '{}') INTO v_put FROM put;
    -- While its finished job is locked, an id goes to no other job. If another call was first, that row is gone and not locked.
    PERFORM FROM unnest(p_seqs) AS u (seq) JOIN {s}.done d ON d.seq = u.seq ORDER BY d.seq FOR UPDATE OF d;
    GET DIAGNOSTICS v_held = ROW_COUNT;
    IF cardinality(v_put) + v_held < cardinality(p_ids) THEN
        DELETE FROM {s}.ids USING unnest(p_lanes, p_ids) AS u (lane, id)
        WHERE ids.lane = u.lane AND ids.id = u.id AND ids.seq = ANY (v_put);
        RETURN NULL;
    END IF;
    SELECT array_agg(ids.seq ORDER BY u.i) INTO v_seqs FROM unnest(p_lanes, p_ids, p_seqs) WITH ORDINALITY AS u (lane,
        id, seq, i)
    JOIN {s}.ids ON ids.lane = u.lane AND ids.id = u.id AND (ids.seq = u.seq OR ids.seq = ANY (v_put));
    PERFORM {s}.expect(cardinality(p_ids), cardinality(v_seqs));
    RETURN ARRAY[{s}.fresh_xid(), {s}.now_ms()] || v_seqs;
END $$;
