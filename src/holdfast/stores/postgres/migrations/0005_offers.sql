-- Offers: an idle worker leaves word of what it would take, and an enqueue of one job hands it over at once. [CLAIM-3]
--
-- An offer stands in `offers`, and in `offer_places` once for each queue name; only its worker and enqueues that use it
-- write to it. What is handed over is leased in the same transaction, and sent to the worker after the commit. If it cannot be
-- sent, the enqueue releases it; what does not arrive otherwise, the worker releases, as the offer says what was sent. It takes no turn: turns are for tenants that wait. [ENQ-8, TENANT-4]

-- Whether a claim would find nothing here but what is about to come: in one lane, or (0) in all of the line. Where jobs
-- wait for their time in many lanes it says no without having seen them all.
CREATE FUNCTION {s}.nothing_waits(p_line int, p_lane int, p_now bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_lane int := p_lane;
    v_rank smallint := -1;
    v_at bigint;
BEGIN
    FOR v_step IN 1..8 LOOP
        SELECT j.lane, j.rank, j.visible_at INTO v_lane, v_rank, v_at FROM {s}.jobs j
        WHERE j.line = p_line AND j.state < 4 AND (j.lane, j.rank) > (v_lane, v_rank)
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

-- The offer that a new job of this lane is to be handed over to, locked; or none. Those of workers that do not hear any more,
-- as nothing holds their lock, are taken back on the way. They stay: they alone say what was handed over and may be lost.
CREATE FUNCTION {s}.taker(p_line int, p_lane int, p_now bigint) RETURNS {s}.offers LANGUAGE plpgsql AS $$
DECLARE
    v_offer {s}.offers;
    v_lane int;
    v_pages bigint;
    v_alone boolean;
BEGIN
    FOR v_try IN 1..4 LOOP
        SELECT o.post, p.lane INTO v_offer.post, v_lane FROM {s}.offer_places p JOIN {s}.offers o ON o.post = p.post
        WHERE p.line = p_line AND p.lane IN (p_lane, 0) AND o.until > p_now AND o.sent < o.given
        ORDER BY p.lane DESC LIMIT 1 FOR UPDATE OF o SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        EXIT WHEN NOT pg_try_advisory_xact_lock_shared(v_offer.post);
        UPDATE {s}.offers SET until = -p_now WHERE post = v_offer.post;
        DELETE FROM {s}.offer_places WHERE line = p_line AND lane = v_lane AND post = v_offer.post;
        v_lane := NULL;
    END LOOP;
    IF v_lane IS NULL THEN
        RETURN NULL;
    END IF;
    v_pages := pg_stat_get_xact_blocks_fetched('{s}.jobs'::regclass);
    v_alone := {s}.nothing_waits(p_line, v_lane, p_now);
    -- While a long transaction keeps the dead alive, looking takes longer than the way of a claim, which has its marks.
    IF pg_stat_get_xact_blocks_fetched('{s}.jobs'::regclass) - v_pages > 500 THEN
        UPDATE {s}.offers o SET until = -p_now, tiring = true FROM (
            SELECT o.post FROM {s}.offer_places p JOIN {s}.offers o ON o.post = p.post
            WHERE p.line = p_line AND p.lane IN (p_lane, 0) FOR UPDATE OF o SKIP LOCKED
        ) x WHERE o.post = x.post;
    ELSIF v_alone THEN
        SELECT * INTO v_offer FROM {s}.offers WHERE post = v_offer.post;
        RETURN v_offer;
    END IF;
    RETURN NULL;
END $$;

-- Leave an offer: whether it stands. Not where old versions of others pile up, as they do under a long transaction.
CREATE FUNCTION {s}.make_offer(
    p_post bigint, p_channel text, p_number bigint, p_lines int[], p_lanes int[], p_given int, p_lease bigint,
    p_lasts bigint, p_worker text, p_known text[]
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_until bigint := {s}.now_ms() + p_lasts;
BEGIN
    PERFORM {s}.known(p_known);
    IF greatest(pg_relation_size('{s}.offers'), pg_relation_size('{s}.offer_places')) > 32 * 8192 THEN
        RETURN false;
    END IF;
    INSERT INTO {s}.offers AS o (post, until, number, lease, given, sent, tiring, channel, worker)
    VALUES (p_post, v_until, p_number, p_lease, p_given, 0, false, p_channel, p_worker)
    ON CONFLICT (post) DO UPDATE SET until = v_until, number = p_number, lease = p_lease, given = p_given, sent = 0, handed = '{}',
        tiring = false, worker = p_worker
    WHERE o.number < p_number;  -- One that was long on its way replaces no newer one.
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO {s}.offer_places (line, lane, post) SELECT u.line, u.lane, p_post FROM unnest(p_lines, p_lanes) AS u (line, lane)
    ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

-- Take an offer back: the clock; how many jobs were handed over under this number, and which, NULL if that is not known any more;
-- and whether to offer nothing for a while. With p_leave it goes from all its places. It stays itself: a repetition after a
-- lost reply answers the same. `drop_offer` removes it, once its worker knows the answer.
CREATE FUNCTION {s}.take_back(
    p_post bigint, p_number bigint, p_leave boolean, p_lines int[], p_lanes int[],
    OUT now bigint, OUT sent int, OUT handed text[], OUT tiring boolean
) LANGUAGE plpgsql AS $$
BEGIN
    now := coalesce({s}.now_ms(), {s}.no_data());
    UPDATE {s}.offers o SET until = -now WHERE o.post = p_post
    RETURNING CASE o.number WHEN p_number THEN o.sent ELSE 0 END, CASE o.number WHEN p_number THEN o.handed END,
        o.tiring INTO sent, handed, tiring;
    IF p_leave THEN
        DELETE FROM {s}.offer_places p USING unnest(p_lines, p_lanes) AS u (line, lane)
        WHERE p.line = u.line AND p.lane = u.lane AND p.post = p_post;
    END IF;
END $$;
