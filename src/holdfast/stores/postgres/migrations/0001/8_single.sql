-- The hot paths for a single job that a caller waits for. ADR 7 has the figures.

-- As `enqueue`, for one job: without arrays, whose handling takes longer than the job itself. With p_hand the job is leased
-- to a waiting worker, if there is one: then `channel` and `message` are the notification to send after the commit.
-- [ENQ-1, ENQ-2, ENQ-5, ENQ-7]
CREATE FUNCTION {s}.enqueue_one(
    p_tenant text, p_queue_id int, p_lane int, p_id text, p_type text, p_request text, p_rank smallint, p_attempts int,
    p_delay bigint, p_run_at bigint, p_ttl bigint, p_head bytea, p_payload bytea, p_hand boolean, p_cached text[],
    OUT now bigint, OUT channel text, OUT message text
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET enable_bitmapscan = off SET jit = off SET lock_timeout = '100ms' AS $$
DECLARE
    v_seq bigint;
    v_xid bigint;
    v_visible bigint;
    v_waiter {s}.waiters;
    v_token bigint;
    v_deadline bigint;
BEGIN
    PERFORM {s}.check_cache(p_cached);
    IF EXISTS (SELECT FROM {s}.settings WHERE tenant = p_tenant AND max_waiting IS NOT NULL) THEN
        RETURN;
    END IF;
    v_seq := nextval('{s}.seqs');
    INSERT INTO {s}.ids (seq, lane, id) VALUES (v_seq, p_lane, p_id) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_xid := {s}.fresh_xid();
    now := {s}.now_ms();
    v_visible := greatest(now, coalesce(p_run_at, now + p_delay));
    IF p_hand AND v_visible = now AND octet_length(p_head) + octet_length(p_payload) <= 4000 THEN
        v_waiter := {s}.find_waiter(p_queue_id, p_lane, now);
        IF v_waiter.inbox IS NOT NULL THEN
            v_token := nextval('{s}.tokens');
            v_deadline := now + v_waiter.lease;
            SELECT json_build_array(v_waiter.number, now, v_deadline, v_seq, v_token, p_ttl, l.tenant, l.queue, p_id,
                p_type, p_request, encode(p_head, 'hex'), encode(p_payload, 'base64'))::text
            INTO message FROM {s}.lanes l WHERE l.lane = p_lane AND NOT l.paused;
            IF octet_length(message) < 7900 THEN
                channel := v_waiter.channel;
                UPDATE {s}.waiters SET sent = sent + 1, handed_off = handed_off || (v_seq || ':' || v_token)
                WHERE inbox = v_waiter.inbox;
            END IF;
        END IF;
    END IF;
    IF channel IS NULL THEN
        INSERT INTO {s}.jobs (seq, visible_at, enqueued_at, result_ttl, logged, queue_id, lane, state, rank, id, type,
            request_id, head, payload)
        VALUES (v_seq, v_visible, now, p_ttl, v_xid, p_queue_id, p_lane,
            CASE WHEN v_visible > now THEN {state:scheduled} ELSE {state:ready} END, p_rank,
            p_id, p_type, p_request, p_head, p_payload);
        PERFORM {s}.log(v_xid, now, 1, '{{event:enqueued}}', ARRAY[p_lane], ARRAY[p_id], ARRAY[p_type], '{0}', '{0}',
            '{""}',
            ARRAY[p_rank::bigint], ARRAY[p_attempts::bigint], ARRAY[v_visible], NULL, '{1}',
            ARRAY[p_lane, 0, {record_bytes} + octet_length(p_payload), 0, (v_visible > now)::int,
                (v_visible <= now)::int, 0, 0,
                0, 0, 0]);
    ELSE
        INSERT INTO {s}.jobs (seq, visible_at, enqueued_at, result_ttl, logged, queue_id, lane, state, rank, id, type,
            request_id, head, payload, token, deadline, claimed_at, attempts, events, worker)
        VALUES (v_seq, v_visible, now, p_ttl, v_xid, p_queue_id, p_lane, {state:leased}, p_rank, p_id, p_type, p_request,
            p_head, p_payload,
            v_token, v_deadline, now, 1, 2, v_waiter.worker);
        PERFORM {s}.log(v_xid, now, 2, '{{event:enqueued},{event:claimed}}', ARRAY[p_lane], ARRAY[p_id, p_id],
            ARRAY[p_type], '{0,1}',
            ARRAY[0, v_token], ARRAY['', v_waiter.worker], ARRAY[p_rank, v_visible], ARRAY[p_attempts, v_deadline],
            ARRAY[v_visible, NULL], NULL, '{1,2}',
            ARRAY[p_lane, 0, {record_bytes} + octet_length(p_payload), 0, 0, 0, 0, 1, 0, 0, 0]);
    END IF;
END $$;

-- As `complete`, for one job. With p_notify, `record` is the finished job, for the processes that wait for it, if it is small and
-- is kept. See notifications.py. [LEASE-1, RESULT-1, RESULT-2]
CREATE FUNCTION {s}.complete_one(
    p_lane int, p_id text, p_token bigint, p_result bytea, p_seq bigint, p_lock_ms int, p_notify boolean, p_cached text[],
    OUT now bigint, OUT record text
) LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_seq bigint := p_seq;
    v_job {s}.jobs;
    v_xid bigint;
BEGIN
    PERFORM {s}.check_cache(p_cached);
    IF p_lock_ms IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    END IF;
    IF v_seq IS NULL THEN
        SELECT seq INTO v_seq FROM {s}.ids WHERE lane = p_lane AND id = p_id;
    END IF;
    DELETE FROM {s}.jobs j
    WHERE j.seq = v_seq AND j.state + 0 = {state:leased} AND j.token = p_token AND j.lane = p_lane AND j.id = p_id
    RETURNING j.* INTO v_job;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    now := {s}.now_ms();
    IF v_job.deadline <= now THEN
        RAISE SQLSTATE 'HF001';
    END IF;
    v_xid := greatest(v_job.logged, {s}.xid());
    INSERT INTO {s}.done (seq, visible_at, enqueued_at, result_ttl, logged, token, claimed_at, finished_at, expires_at,
        queue_id, lane, attempts, events, state, rank, id, type, request_id, worker, key, head, payload, extra, result)
    VALUES (v_job.seq, v_job.visible_at, v_job.enqueued_at, v_job.result_ttl, v_xid, v_job.token, v_job.claimed_at, now,
        now + v_job.result_ttl, v_job.queue_id, v_job.lane, v_job.attempts, v_job.events + 1, {state:completed},
            v_job.rank, v_job.id,
        v_job.type, v_job.request_id, v_job.worker, v_job.key, v_job.head, v_job.payload, v_job.extra, p_result);
    IF v_job.key IS NOT NULL THEN
        DELETE FROM {s}.keys k WHERE k.lane = p_lane AND k.type = v_job.type AND k.key = v_job.key AND k.job_id = p_id
            AND k.policy IN ('until_terminal', 'until_started');
    END IF;
    PERFORM {s}.log(v_xid, now, 1, '{{event:completed}}', ARRAY[p_lane], ARRAY[p_id], ARRAY[v_job.type],
        ARRAY[v_job.attempts],
        ARRAY[p_token], ARRAY[v_job.worker], NULL, NULL, NULL, NULL, ARRAY[v_job.events + 1],
        ARRAY[p_lane, 0, coalesce(octet_length(p_result), 0), 0, 0, 0, 0, -1, 1, 0, 0]);
    IF p_notify AND v_job.result_ttl > 0
        AND octet_length(v_job.payload) + octet_length(v_job.head) + coalesce(octet_length(v_job.extra), 0)
            + coalesce(octet_length(p_result), 0) <= 4000 THEN
        record := json_build_array(v_job.seq, v_job.visible_at, v_job.enqueued_at, v_job.result_ttl, v_job.token,
            v_job.claimed_at, now, v_job.attempts, v_job.events + 1, v_job.type, v_job.request_id, v_job.worker,
                encode(v_job.head, 'hex'),
            encode(v_job.payload, 'base64'), encode(v_job.extra, 'base64'), encode(p_result, 'base64'))::text;
    END IF;
EXCEPTION WHEN SQLSTATE 'HF001' THEN
    now := NULL;
END $$;

-- Always notifies the other listeners, and waiting claims (p_ready) unless the job was handed off. NULL channels: sends
-- only a hand-off.
CREATE PROCEDURE {s}.enqueue_one_and_notify(
    p_channels text[], p_hints text[], p_ready text[], p_tenant text, p_queue_id int, p_lane int, p_id text, p_type text,
    p_request text, p_rank smallint, p_attempts int, p_delay bigint, p_run_at bigint, p_ttl bigint, p_head bytea,
    p_payload bytea, p_cached text[], INOUT p_now bigint, INOUT p_handed_off boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_channel text;
    v_message text;
BEGIN
    SELECT e.now, e.channel, e.message INTO p_now, v_channel, v_message
    FROM {s}.enqueue_one(p_tenant, p_queue_id, p_lane, p_id, p_type, p_request, p_rank, p_attempts, p_delay, p_run_at,
        p_ttl,
        p_head, p_payload, true, p_cached) e;
    p_handed_off := v_channel IS NOT NULL;
    IF p_handed_off THEN
        CALL {s}.commit_and_notify(ARRAY[v_channel] || p_channels, ARRAY[v_message] || p_hints);
    ELSIF p_now IS NOT NULL AND p_channels IS NOT NULL THEN
        CALL {s}.commit_and_notify(p_ready[1] || p_channels, p_ready[2] || p_hints);
    END IF;
END $$;

-- Notifies the processes that wait for the job (p_done), with its record if that fits into a notification.
CREATE PROCEDURE {s}.complete_one_and_notify(
    p_channels text[], p_hints text[], p_done text[], p_lane int, p_id text, p_token bigint, p_result bytea, p_seq bigint,
    p_lock_ms int, p_cached text[], INOUT p_now bigint
) LANGUAGE plpgsql AS $$
DECLARE
    v_message text;
BEGIN
    SELECT c.now, left(p_done[2], -1) || ',' || c.record || ']' INTO p_now, v_message
    FROM {s}.complete_one(p_lane, p_id, p_token, p_result, p_seq, p_lock_ms, true, p_cached) c;
    IF p_now IS NOT NULL THEN
        CALL {s}.commit_and_notify(p_done[1] || p_channels,
            CASE WHEN octet_length(v_message) < 7900 THEN v_message ELSE p_done[2] END || p_hints);
    END IF;
END $$;
