-- Leases visible jobs of the lanes that the claimer names. [CLAIM-1, CLAIM-2, CLAIM-5, TENANT-4]
--
-- The claimer keeps the turns (turns.py). For each lane it sends its queue, counted from 0 (p_qs); its place among the tenants
-- (p_ties); its virtual time (p_times) and whether it takes part in the turns already (p_in); how many jobs to look for (p_ks);
-- and for each of ten priorities the low-water mark: all jobs visible before it were taken earlier, and the scan
-- skips their dead index entries.
--
-- The r-th job of a lane has its turn at time + r * cost. Jobs with the least (time, tie) come first, as if turns were
-- dealt one by one. The claim stops where this order is no longer certain: where a lane found all k jobs that it looked for
-- (it may have more), or at the turn of the first lane that was not named (p_bounds). Newcomers enter at the time of the
-- first lane in the turns that has work. If no such lane has work, they enter at p_floors. It is NULL while the
-- claimer has not named all lanes that are in the turns.
--
-- Every job that is read stays locked until the commit, even if it is not taken. Other claims skip it meanwhile, and
-- learn that they should look again.
--
-- Answers rows with `seq`, then a row without: info = { clock, 1 if leases have expired, next deadline or NULL }, then for
-- each lane the number of jobs found, its cost, and when its next job is due (NULL: none, or it found all it looked for).
CREATE FUNCTION {s}.claim(
    p_lanes int[], p_queue_ids int[], p_qs int[], p_times bigint[], p_in boolean[], p_ties int[], p_ks int[],
    p_low_water bigint[], p_floors bigint[], p_shares int[], p_bounds bigint[],
    p_limit int, p_lease bigint, p_worker text, p_reaped bigint, p_next_deadline boolean, p_cached text[]
) RETURNS TABLE (
    info bigint[], seq bigint, visible_at bigint, enqueued_at bigint, result_ttl bigint, token bigint, deadline bigint,
    claimed_at bigint, lane int, attempts int, events int, rank smallint, id text, type text, request_id text, key text,
        head bytea,
    payload bytea, extra bytea
) LANGUAGE plpgsql ROWS 100
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := {s}.now_ms();
    v_lanes int := cardinality(p_lanes);
    v_queues int := cardinality(p_shares);
    v_count int;
    v_leased int;
    v_seqs bigint[];
    v_tokens bigint[];
    v_job_lanes int[];
    v_ids text[];
    v_types text[];
    v_attempts int[];
    v_numbers int[];
    v_visible bigint[];
    v_found bigint[];
    v_costs bigint[];
    v_next_due bigint[];
    v_xid bigint;
    v_keyed boolean;
    v_usage int[];
    v_next bigint;
BEGIN
    PERFORM {s}.check_cache(p_cached);
    IF p_reaped IS NOT NULL AND EXISTS (
        SELECT FROM {s}.jobs j WHERE j.state = {state:leased} AND j.deadline <= v_now
            AND j.deadline > CASE WHEN p_reaped > v_now THEN 0 ELSE p_reaped END
        ORDER BY j.deadline LIMIT 1
    ) THEN
        RETURN QUERY SELECT ARRAY[v_now, 1, NULL], NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
            NULL::bigint, NULL::bigint, NULL::int, NULL::int, NULL::int, NULL::smallint, NULL, NULL, NULL, NULL,
                NULL::bytea,
            NULL::bytea, NULL::bytea;
        RETURN;
    END IF;
    IF v_lanes = 1 AND p_bounds[1] IS NULL THEN
        WITH found AS MATERIALIZED (
            SELECT x.* FROM {s}.lanes l
            CROSS JOIN generate_series(0, 9) AS p (rank)
            CROSS JOIN LATERAL (
                SELECT j.seq, j.rank, j.visible_at, j.lane, j.id, j.type, j.attempts, j.events, j.logged, j.key,
                    j.state FROM {s}.jobs j
                WHERE j.queue_id = p_queue_ids[1] AND j.lane = p_lanes[1] AND j.state < {state:leased} AND j.rank = p.rank
                    AND j.visible_at >= p_low_water[p.rank + 1] AND j.visible_at <= v_now
                ORDER BY j.visible_at, j.seq LIMIT p_ks[1] FOR UPDATE SKIP LOCKED
            ) x
            WHERE l.lane = p_lanes[1] AND NOT l.paused AND l.ranks & (1 << p.rank) <> 0
            LIMIT p_ks[1]
        )
        SELECT count(*), array_agg(f.seq), array_agg(f.lane), array_agg(f.id), array_agg(f.type),
            array_agg(f.attempts + 1), array_agg(f.events + 1), array_agg(f.visible_at), max(f.logged),
                bool_or(f.key IS NOT NULL),
            array_agg(nextval('{s}.tokens')), (
                SELECT ARRAY[greatest(1, round(10000.0::float8 / coalesce(sq.weight, st.weight, 1))::bigint)]
                FROM {s}.lanes l
                LEFT JOIN {s}.settings sq ON sq.tenant = l.tenant AND sq.queue = l.queue
                LEFT JOIN {s}.settings st ON st.tenant = l.tenant AND st.queue = ''
                WHERE l.lane = p_lanes[1]
            ), ARRAY[p_lanes[1], 0, 0, 0, -count(*) FILTER (WHERE f.state = {state:scheduled}),
                -count(*) FILTER (WHERE f.state = {state:ready}), -count(*) FILTER (WHERE f.state = {state:retrying}),
                    count(*),
                0, 0, 0]
        INTO v_count, v_seqs, v_job_lanes, v_ids, v_types, v_attempts, v_numbers, v_visible, v_xid, v_keyed, v_tokens,
            v_costs, v_usage
        FROM (SELECT * FROM found ORDER BY rank, visible_at, seq) f;
        v_found := ARRAY[v_count::bigint];
    ELSE
        WITH cand AS MATERIALIZED (
            SELECT u.*, CASE WHEN l.paused THEN 0 ELSE l.ranks END AS ranks,
                greatest(1, round(10000.0::float8 / coalesce(sq.weight, st.weight, 1))::bigint) AS cost
            FROM unnest(p_lanes, p_queue_ids, p_qs, p_times, p_in, p_ties, p_ks)
                WITH ORDINALITY AS u (lane, queue_id, q, time, inn, tie, k, i)
            JOIN {s}.lanes l ON l.lane = u.lane
            LEFT JOIN {s}.settings sq ON sq.tenant = l.tenant AND sq.queue = l.queue
            LEFT JOIN {s}.settings st ON st.tenant = l.tenant AND st.queue = ''
        ), found AS MATERIALIZED (
            SELECT c.i, c.q, c.time, c.inn, c.tie, c.k, c.cost, x.*
            FROM cand c LEFT JOIN LATERAL (
                SELECT y.* FROM generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
                    SELECT j.seq, j.rank, j.visible_at, j.lane, j.id, j.type, j.attempts, j.events, j.logged, j.key, j.state
                    FROM {s}.jobs j
                    WHERE j.queue_id = c.queue_id AND j.lane = c.lane AND j.state < {state:leased} AND j.rank = p.rank
                        AND j.visible_at >= p_low_water[10 * (c.i - 1) + p.rank + 1] AND j.visible_at <= v_now
                    ORDER BY j.visible_at, j.seq LIMIT c.k FOR UPDATE SKIP LOCKED
                ) y WHERE c.ranks & (1 << p.rank) <> 0 LIMIT c.k
            ) x ON true
        ), placed AS (
            SELECT f.*, row_number() OVER (PARTITION BY i ORDER BY rank, visible_at, seq) - 1 AS r,
                count(*) OVER (PARTITION BY i) AS n,
                -- Newcomers enter at the time of the first lane that has work. If that was not named, they wait a round.
                CASE WHEN inn THEN time
                    WHEN p_floors[q + 1] IS NULL AND bool_or(inn) OVER (PARTITION BY q) IS NOT TRUE THEN NULL
                    ELSE greatest(time, coalesce(min(time) FILTER (WHERE inn) OVER (PARTITION BY q), p_floors[q + 1]))
                END AS begins
            FROM found f WHERE seq IS NOT NULL
        ), timed AS (
            SELECT p.*, ARRAY[begins + r * cost, tie] AS turn,
                least(min(CASE WHEN n = k THEN ARRAY[begins + k * cost, tie] END) OVER (PARTITION BY q),
                    CASE WHEN p_bounds[2 * q + 1] IS NOT NULL THEN ARRAY[p_bounds[2 * q + 1], p_bounds[2 * q + 2]] END
                ) AS cut
            FROM placed p
        ), certain AS (
            SELECT t.*, cut IS NULL OR turn < cut AS sure FROM timed t
        ), counted AS (
            SELECT c.*, row_number() OVER (PARTITION BY q ORDER BY NOT sure, turn) - 1 AS nth,
                count(*) FILTER (WHERE sure) OVER (PARTITION BY q) AS all_
            FROM certain c
        ), rotated AS (
            -- Take from the queues in rotation, and stop where the order of one of them is no longer certain.
            SELECT c.*, nth * v_queues + q AS place, least(
                min(CASE WHEN cut IS NOT NULL AND all_ < p_shares[q + 1] THEN all_ * v_queues + q END) OVER (),
                (SELECT min(n) FROM generate_series(0, v_queues - 1) AS n
                    WHERE p_bounds[2 * n + 1] IS NOT NULL
                        AND NOT EXISTS (SELECT FROM found f WHERE f.q = n AND f.seq IS NOT NULL))
            ) AS stop
            FROM counted c
        ), picked AS (
            SELECT * FROM rotated WHERE sure AND nth < p_shares[q + 1] AND (stop IS NULL OR place < stop)
            ORDER BY place LIMIT p_limit
        )
        SELECT count(*), array_agg(p.seq), array_agg(p.lane), array_agg(p.id), array_agg(p.type),
            array_agg(p.attempts + 1), array_agg(p.events + 1), array_agg(p.visible_at), max(p.logged),
                bool_or(p.key IS NOT NULL),
            array_agg(nextval('{s}.tokens')),
            (SELECT array_agg(f.n ORDER BY f.i) FROM (SELECT i, count(seq) AS n FROM found GROUP BY i) f),
            (SELECT array_agg(c.cost ORDER BY c.i) FROM cand c),
            ARRAY(
                SELECT unnest(ARRAY[g.lane, 0, 0, 0, -count(*) FILTER (WHERE g.state = {state:scheduled}),
                    -count(*) FILTER (WHERE g.state = {state:ready}),
                        -count(*) FILTER (WHERE g.state = {state:retrying}), count(*),
                    0, 0, 0]::int[])
                FROM picked g GROUP BY g.lane
            )
        INTO v_count, v_seqs, v_job_lanes, v_ids, v_types, v_attempts, v_numbers, v_visible, v_xid, v_keyed, v_tokens,
            v_found, v_costs,
            v_usage
        FROM (SELECT * FROM picked ORDER BY place) p;
    END IF;
    IF v_count > 0 THEN
        v_xid := greatest(v_xid, {s}.xid());
        RETURN QUERY
            UPDATE {s}.jobs j SET state = {state:leased}, attempts = j.attempts + 1, events = j.events + 1,
                token = u.token, deadline = v_now + p_lease,
                worker = p_worker, claimed_at = v_now, logged = v_xid
            FROM unnest(v_seqs, v_tokens) AS u (seq, token) WHERE j.seq = u.seq
            RETURNING NULL::bigint[], j.seq, j.visible_at, j.enqueued_at, j.result_ttl, j.token, j.deadline, j.claimed_at,
                j.lane, j.attempts, j.events, j.rank, j.id, j.type, j.request_id, j.key, j.head, j.payload, j.extra;
        GET DIAGNOSTICS v_leased = ROW_COUNT;
        PERFORM {s}.expect(v_count, v_leased);
        IF v_keyed THEN
            DELETE FROM {s}.keys k USING {s}.jobs j WHERE j.seq = ANY (v_seqs) AND j.key IS NOT NULL AND k.lane = j.lane
                AND k.type = j.type AND k.key = j.key AND k.job_id = j.id AND k.policy = 'until_started';
        END IF;
        PERFORM {s}.log(v_xid, v_now, v_count, '{{event:claimed}}', v_job_lanes, v_ids, v_types, v_attempts, v_tokens,
            ARRAY[p_worker],
            v_visible, ARRAY[v_now + p_lease], NULL, NULL, v_numbers, v_usage);
    END IF;
    -- If a lane found less than it looked for, its other visible jobs are locked: they count as due.
    IF v_lanes = 1 AND v_count = p_ks[1] THEN
        v_next_due := '{NULL}';
    ELSE
        SELECT array_agg(CASE WHEN v_found[u.i] < u.k THEN (
            SELECT min(x.at) FROM {s}.lanes l CROSS JOIN generate_series(0, 9) AS p (rank) CROSS JOIN LATERAL (
                SELECT j.visible_at AS at FROM {s}.jobs j
                WHERE j.queue_id = u.queue_id AND j.lane = u.lane AND j.state < {state:leased} AND j.rank = p.rank
                    AND j.visible_at >= CASE WHEN l.paused THEN v_now + 1 ELSE p_low_water[10 * (u.i - 1) + p.rank + 1] END
                ORDER BY j.visible_at LIMIT 1
            ) x
            WHERE l.lane = u.lane AND l.ranks & (1 << p.rank) <> 0
        ) END ORDER BY u.i) INTO v_next_due
        FROM unnest(p_lanes, p_queue_ids, p_ks) WITH ORDINALITY AS u (lane, queue_id, k, i);
    END IF;
    IF p_next_deadline THEN
        SELECT j.deadline INTO v_next FROM {s}.jobs j WHERE j.state = {state:leased} ORDER BY j.deadline LIMIT 1;
    END IF;
    RETURN QUERY SELECT ARRAY[v_now, 0, v_next] || v_found || v_costs || v_next_due, NULL::bigint, NULL::bigint,
        NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::int, NULL::int, NULL::int,
            NULL::smallint, NULL,
        NULL, NULL, NULL, NULL::bytea, NULL::bytea, NULL::bytea;
END $$;
