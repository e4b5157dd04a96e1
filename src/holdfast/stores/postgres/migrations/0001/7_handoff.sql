-- Direct hand-off: an idle worker registers as a waiter, and an enqueue of one job leases it to that worker at once. [CLAIM-3]
--
-- A waiter has a row in `waiters`, and one in `waiter_queues` for each queue name. Only its worker and the enqueues that use it
-- write to them. The job is leased in the transaction of its enqueue, and sent to the worker after the commit. If it cannot be
-- sent, the enqueue releases it. If the message is lost otherwise, the worker releases it: its row names the jobs sent.
-- A hand-off takes no turn: turns are for tenants that wait. [ENQ-8, TENANT-4]

-- Whether a claim would find nothing: in one lane or, with p_lane 0, in all lanes of the queue. Answers no without reading them
-- all if many lanes have jobs that are due later.
CREATE FUNCTION {s}.nothing_is_visible(p_queue_id int, p_lane int, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_lane int := p_lane;
    v_rank smallint := -1;
    v_at bigint;
BEGIN
    FOR v_step IN 1..8 LOOP
        SELECT j.lane, j.rank, j.visible_at INTO v_lane, v_rank, v_at FROM {s}.jobs j
        WHERE j.queue_id = p_queue_id AND j.state < {state:leased} AND (j.lane, j.rank) > (v_lane, v_rank)
            AND j.lane <= CASE p_lane WHEN 0 THEN 2147483647 ELSE p_lane END
        ORDER BY j.lane, j.rank, j.visible_at LIMIT 1;
        IF NOT FOUND THEN
            RETURN true;
        ELSIF v_at <= p_now THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- The waiter to hand a new job of this lane to, locked; or none. Waiters that no longer listen, because nothing holds their
-- lock, are withdrawn on the way. They stay in the table, because only they name the jobs whose message may be lost.
CREATE FUNCTION {s}.find_waiter(p_queue_id int, p_lane int, p_now bigint) RETURNS {s}.waiters LANGUAGE plpgsql AS $$
DECLARE
    v_waiter {s}.waiters;
    v_lane int;
    v_pages bigint;
    v_nothing_else boolean;
BEGIN
    FOR v_try IN 1..4 LOOP
        SELECT w.inbox, p.lane INTO v_waiter.inbox, v_lane FROM {s}.waiter_queues p JOIN {s}.waiters w ON w.inbox = p.inbox
        WHERE p.queue_id = p_queue_id AND p.lane IN (p_lane, 0) AND w.expires_at > p_now AND w.sent < w.room
        ORDER BY p.lane DESC LIMIT 1 FOR UPDATE OF w SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        EXIT WHEN NOT pg_try_advisory_xact_lock_shared(v_waiter.inbox);
        UPDATE {s}.waiters SET expires_at = -p_now WHERE inbox = v_waiter.inbox;
        DELETE FROM {s}.waiter_queues WHERE queue_id = p_queue_id AND lane = v_lane AND inbox = v_waiter.inbox;
        v_lane := NULL;
    END LOOP;
    IF v_lane IS NULL THEN
        RETURN NULL;
    END IF;
    v_pages := pg_stat_get_xact_blocks_fetched('{s}.jobs'::regclass);
    v_nothing_else := {s}.nothing_is_visible(p_queue_id, v_lane, p_now);
    -- Under a long transaction this read walks over dead entries and takes longer than a claim, which has low-water marks.
    IF pg_stat_get_xact_blocks_fetched('{s}.jobs'::regclass) - v_pages > 500 THEN
        UPDATE {s}.waiters w SET expires_at = -p_now, slow_scan = true FROM (
            SELECT w.inbox FROM {s}.waiter_queues p JOIN {s}.waiters w ON w.inbox = p.inbox
            WHERE p.queue_id = p_queue_id AND p.lane IN (p_lane, 0) FOR UPDATE OF w SKIP LOCKED
        ) x WHERE w.inbox = x.inbox;
    ELSIF v_nothing_else THEN
        SELECT * INTO v_waiter FROM {s}.waiters WHERE inbox = v_waiter.inbox;
        RETURN v_waiter;
    END IF;
    RETURN NULL;
END $$;

-- Registers a waiter and answers whether it is registered. It refuses while old row versions pile up, as under a long
-- transaction.
CREATE FUNCTION {s}.register_waiter(
    p_inbox bigint, p_channel text, p_number bigint, p_queue_ids int[], p_lanes int[], p_room int, p_lease bigint,
    p_lasts_ms bigint, p_worker text, p_cached text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_until bigint := {s}.now_ms() + p_lasts_ms;
BEGIN
    PERFORM {s}.check_cache(p_cached);
    IF greatest(pg_relation_size('{s}.waiters'), pg_relation_size('{s}.waiter_queues')) > 32 * 8192 THEN
        RETURN false;
    END IF;
    INSERT INTO {s}.waiters AS w (inbox, expires_at, number, lease, room, sent, slow_scan, channel, worker)
    VALUES (p_inbox, v_until, p_number, p_lease, p_room, 0, false, p_channel, p_worker)
    ON CONFLICT (inbox) DO UPDATE SET expires_at = v_until, number = p_number, lease = p_lease, room = p_room, sent = 0,
        handed_off = '{}', slow_scan = false, worker = p_worker
    WHERE w.number < p_number;  -- A request that was delayed replaces no newer one.
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO {s}.waiter_queues (queue_id, lane, inbox)
    SELECT u.queue_id, u.lane, p_inbox FROM unnest(p_queue_ids, p_lanes) AS u (queue_id, lane)
    ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

-- Withdraws a waiter. Answers the clock; how many jobs were handed off under this registration, and which, NULL if that is
-- no longer known; and whether to register nothing for a while. With p_leave it is removed from all its queues. The
-- row itself stays, so a repetition after a lost reply answers the same. `drop_waiter` removes it once its worker has the
-- answer.
CREATE FUNCTION {s}.withdraw_waiter(
    p_inbox bigint, p_number bigint, p_leave boolean, p_queue_ids int[], p_lanes int[],
    OUT now bigint, OUT sent int, OUT handed_off text[], OUT slow_scan boolean
) LANGUAGE plpgsql AS $$
BEGIN
    now := coalesce({s}.now_ms(), {s}.no_data());
    UPDATE {s}.waiters w SET expires_at = -now WHERE w.inbox = p_inbox
    RETURNING CASE w.number WHEN p_number THEN w.sent ELSE 0 END, CASE w.number WHEN p_number THEN w.handed_off END,
        w.slow_scan INTO sent, handed_off, slow_scan;
    IF p_leave THEN
        DELETE FROM {s}.waiter_queues p USING unnest(p_queue_ids, p_lanes) AS u (queue_id, lane)
        WHERE p.queue_id = u.queue_id AND p.lane = u.lane AND p.inbox = p_inbox;
    END IF;
END $$;
