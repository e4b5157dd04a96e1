-- Every statement of the file store, by name. sql.py fills in the placeholders: {job} the columns of rows.JOB_COLUMNS,
-- {leased}, {completed} and {failed} the numbers of states. Waiting states are below {leased}, terminal ones above it.

-- name: counters
SELECT seq, token, event, trimmed, gone, shift, frozen_at FROM counters;
-- name: save_counters
UPDATE counters SET seq = ?, token = ?, event = ?;
-- name: shift_clock
UPDATE counters SET shift = shift + ?;

-- name: find_lane
SELECT lane FROM lanes WHERE tenant = ? AND queue = ?;
-- name: add_lane
INSERT INTO lanes (tenant, queue) VALUES (?, ?);
-- name: lane_names
SELECT tenant, queue FROM lanes WHERE lane = ?;
-- name: move_lane
UPDATE lanes SET waiting = waiting + ?, leased = leased + ?, completed = completed + ?, failed = failed + ?,
    canceled = canceled + ?, next_at = CASE WHEN ?6 IS NULL THEN next_at ELSE min(ifnull(next_at, ?6), ?6) END,
    keys = keys + ?8, bytes = bytes + ?9, events = events + ?10
WHERE lane = ?7;

-- name: find_job
SELECT {job} FROM jobs WHERE lane = ? AND id = ?;
-- name: job_key
SELECT tenant, queue, id FROM jobs JOIN lanes USING (lane) WHERE seq = ?;
-- name: add_job
INSERT INTO jobs (seq, lane, id, state, rank, visible_at, origin, head, payload, extra)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (lane, id) DO NOTHING;
-- name: add_leased
INSERT INTO jobs (seq, lane, id, state, rank, visible_at, origin, head, payload, extra, attempts, events, token,
    deadline, held)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (lane, id) DO NOTHING;
-- name: extra_of
SELECT extra FROM jobs WHERE seq = ?;
-- name: add_payload
INSERT INTO payloads VALUES (?, ?);
-- name: save_job
UPDATE jobs SET state = ?, visible_at = ?, extra = ?, attempts = ?, events = ?, token = ?, deadline = ?, held = ?,
    finished_at = ?, expires_at = ?, result = ?
WHERE seq = ?;
-- Claims a whole batch in one statement: tokens count up from ?1 in the order of the array.
-- name: save_claimed
UPDATE jobs SET state = {leased}, attempts = attempts + 1, events = events + 1, token = ?1 + batch.key, deadline = ?2, held = ?3
FROM json_each(?4) AS batch WHERE jobs.seq = batch.value;
-- Completes a whole batch in one statement. It updates only jobs whose lease is still live, that have the expected lane
-- and id (a restored database may have another job under this seq), and whose event number is the expected one.
-- [LEASE-1, TENANT-2, EVENT-1]
-- name: save_completed
UPDATE jobs SET state = {completed}, deadline = 0, events = events + 1, finished_at = ?1, expires_at = batch.value ->> 2,
    result = substr(?2, batch.value ->> 3, batch.value ->> 4)
FROM json_each(?3) AS batch
WHERE jobs.seq = batch.value ->> 0 AND state = {leased} AND token = batch.value ->> 1 AND deadline > ?1
    AND lane = batch.value ->> 5 AND jobs.id = batch.value ->> 6 AND events = batch.value ->> 7;
-- The same for a single job.
-- name: save_one_completed
UPDATE jobs SET state = {completed}, deadline = 0, events = events + 1, finished_at = ?1, expires_at = ?2, result = ?3
WHERE seq = ?4 AND state = {leased} AND token = ?5 AND deadline > ?1 AND lane = ?6 AND id = ?7 AND events = ?8;
-- name: save_deadline
UPDATE jobs SET deadline = ?, events = ? WHERE seq = ?;
-- name: save_progress
UPDATE jobs SET extra = ?, events = ? WHERE seq = ?;
-- name: save_expiry
UPDATE jobs SET expires_at = ?, extra = ? WHERE seq = ?;
-- name: drop_job
DELETE FROM jobs WHERE seq = ?;
-- name: payload_size
SELECT length(payload) FROM payloads WHERE seq = ?;
-- name: drop_payload
DELETE FROM payloads WHERE seq = ?;

-- name: find_key
SELECT job_id, policy, expires_at FROM keys WHERE lane = ? AND type = ? AND key = ?;
-- name: bind_key
INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?, ?);
-- name: drop_key
DELETE FROM keys WHERE lane = ? AND type = ? AND key = ? AND job_id = ? AND policy = ?;
-- name: drop_expired_keys
DELETE FROM keys WHERE (lane, type, key) IN
    (SELECT lane, type, key FROM keys WHERE expires_at IS NOT NULL AND expires_at <= ? LIMIT ?) RETURNING lane;

-- name: add_events
INSERT INTO events VALUES (?, ?, ?, ?, ?, ?);

-- Claiming. The arms of a claim (one for each rank, see sql.py) walk jobs_waiting: a job that is not due yet never
-- precedes one that is.
-- name: visible_arm
SELECT * FROM (SELECT {job} FROM jobs
    WHERE lane = ?1 AND state < {leased} AND rank = {rank} AND visible_at <= ?2 ORDER BY visible_at, seq LIMIT ?3 + ?4)
-- name: any_visible_arm
SELECT * FROM (SELECT 1 FROM jobs WHERE lane = ?1 AND state < {leased} AND rank = {rank} AND visible_at <= ?2 LIMIT 1)
-- name: soonest_arm
SELECT min(visible_at) AS at FROM jobs WHERE lane = ?1 AND state < {leased} AND rank = {rank}
-- name: lane_paused
SELECT paused FROM lanes WHERE lane = ?;
-- name: any_expired
SELECT 1 FROM jobs WHERE state = {leased} AND deadline <= ? LIMIT 1;
-- name: expired_leases
SELECT {job} FROM jobs WHERE state = {leased} AND deadline <= ? ORDER BY deadline, seq LIMIT ?;
-- name: next_deadline
SELECT min(deadline) FROM jobs WHERE state = {leased};
-- name: lanes_in_turns
SELECT time, tenant, lane FROM lanes WHERE queue = ? AND in_turns = 1 ORDER BY time, tenant;
-- name: lanes_entering
SELECT tenant, lane, time FROM lanes
WHERE queue = ? AND in_turns = 0 AND paused = 0 AND next_at IS NOT NULL AND next_at <= ? ORDER BY next_at LIMIT ?;
-- name: lane_state
SELECT paused, waiting FROM lanes WHERE lane = ?;
-- name: lanes_with_work
SELECT lane, waiting FROM lanes WHERE queue = ?1 AND in_turns = 1
UNION ALL SELECT lane, waiting FROM lanes
WHERE queue = ?1 AND in_turns = 0 AND paused = 0 AND next_at IS NOT NULL AND next_at <= ?2 LIMIT ?3;
-- name: next_entering
SELECT min(next_at) FROM lanes WHERE queue = ? AND in_turns = 0 AND paused = 0 AND next_at IS NOT NULL;
-- name: enter_turns
UPDATE lanes SET in_turns = 1, time = ? WHERE lane = ?;
-- name: leave_turns
UPDATE lanes SET in_turns = 0, next_at = ? WHERE lane = ?;
-- name: set_time
UPDATE lanes SET time = ? WHERE lane = ?;
-- name: floor
SELECT floor FROM floors WHERE queue = ?;
-- name: set_floor
INSERT INTO floors VALUES (?, ?) ON CONFLICT (queue) DO UPDATE SET floor = max(floor, excluded.floor);

-- Reads.
-- The visible jobs before one: those of a higher priority, then those of its own (see AHEAD in sql.py).
-- name: ahead_arm
SELECT 1 FROM jobs WHERE lane = ?1 AND state < {leased} AND rank = {rank} AND visible_at <= ?2 AND {rank} < ?3
-- name: ahead_of_its_rank
SELECT 1 FROM jobs WHERE lane = ?1 AND state < {leased} AND rank = ?3 AND visible_at < ?4 UNION ALL
SELECT 1 FROM jobs WHERE lane = ?1 AND state < {leased} AND rank = ?3 AND visible_at = ?4 AND seq < ?5
-- name: list_waiting
SELECT {job} FROM jobs
WHERE lane = ? AND state < {leased} AND (rank, visible_at, seq) > (?, ?, ?) ORDER BY rank, visible_at, seq LIMIT ?;
-- name: list_leased
SELECT {job} FROM jobs
WHERE +lane = ? AND state = {leased} AND deadline >= ?2 AND (deadline, seq) > (?2, ?3) ORDER BY deadline, seq LIMIT ?4;
-- name: list_ended
SELECT {job} FROM jobs
WHERE lane = ? AND state > {leased} AND (finished_at, seq) > (?, ?) ORDER BY finished_at, seq LIMIT ?;
-- name: list_dead
SELECT {job} FROM jobs
WHERE lane = ? AND state = {failed} AND (finished_at, seq) > (?, ?) ORDER BY finished_at, seq LIMIT ?;
-- name: newest_waiting
SELECT {job} FROM jobs WHERE lane = ?1 AND state < {leased} AND rank = ?5 AND visible_at BETWEEN ?2 AND ?3
    AND (visible_at, seq) < (?3, ?4) ORDER BY visible_at DESC, seq DESC;
-- name: newest_leased
SELECT {job} FROM jobs WHERE +lane = ?1 AND state = {leased} AND deadline BETWEEN ?2 AND ?3
    AND (deadline, seq) < (?3, ?4) ORDER BY deadline DESC, seq DESC;
-- name: newest_ended
SELECT {job} FROM jobs WHERE lane = ?1 AND state > {leased} AND finished_at BETWEEN ?2 AND ?3
    AND (finished_at, seq) < (?3, ?4) ORDER BY finished_at DESC, seq DESC;
-- name: newest_dead
SELECT {job} FROM jobs WHERE lane = ?1 AND state = {failed} AND finished_at BETWEEN ?2 AND ?3
    AND (finished_at, seq) < (?3, ?4) ORDER BY finished_at DESC, seq DESC;
-- name: queues_of
SELECT queue, paused OR waiting + leased + completed + failed + canceled > 0 FROM lanes
WHERE tenant = ? AND queue > ? ORDER BY queue LIMIT ?;
-- name: lane_counts
SELECT lane, paused, waiting, leased, completed, failed, canceled FROM lanes WHERE tenant = ? AND queue = ?;
-- name: future_arm
SELECT state, count(*) FROM jobs WHERE lane = ?1 AND state < {leased} AND rank = {rank} AND visible_at > ?2 GROUP BY state
-- name: expired_counts
SELECT state, count(*) FROM jobs WHERE state > {leased} AND expires_at <= ? AND +lane = ? GROUP BY state;
-- name: lanes_behind
SELECT tenant, queue, waiting + leased + completed + failed + canceled > 0 FROM lanes
WHERE (tenant, queue) > (?, ?) ORDER BY tenant, queue LIMIT ?;
-- name: count_purge
INSERT INTO purges (tenant, series, count, at) VALUES (?, ?, 1, ?)
ON CONFLICT (tenant) DO UPDATE SET count = count + 1, at = excluded.at RETURNING tenant, series, count;
-- name: drop_purge_counts
DELETE FROM purges WHERE tenant IN (SELECT tenant FROM purges WHERE at < ? ORDER BY at LIMIT ?);
-- name: purge_counts
SELECT tenant, series, count FROM purges WHERE tenant > ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY tenant LIMIT ?3;
-- name: tenants_with_settings
SELECT DISTINCT tenant FROM settings WHERE tenant > ? OR tenant = ? ORDER BY tenant LIMIT ?;
-- name: events
SELECT first, mark, chunk, last, lane FROM events WHERE last > ? ORDER BY last;
-- name: chunk_at
SELECT first, mark FROM events WHERE last >= ? ORDER BY last LIMIT 1;
-- name: first_behind
SELECT first FROM events WHERE last > ? ORDER BY last LIMIT 1;
-- name: cut_of
SELECT n FROM cuts WHERE tenant = ?;
-- name: cut_at
SELECT mark FROM cuts WHERE n = ? AND mark IS NOT NULL LIMIT 1;
-- name: last_cut
SELECT max(n) FROM cuts;
-- name: cuts_behind
SELECT tenant, n FROM cuts WHERE n > ? ORDER BY tenant;
-- name: usage
SELECT ifnull(sum(waiting + leased + completed + failed + canceled), 0), ifnull(sum(keys), 0), ifnull(sum(bytes), 0),
    ifnull(sum(paused OR waiting + leased + completed + failed + canceled > 0), 0), ifnull(sum(events), 0)
FROM lanes WHERE tenant = ?;

-- Settings, workers, upkeep.
-- name: set_reader
INSERT INTO readers VALUES (?, ?, ?) ON CONFLICT (tenant, name) DO UPDATE SET n = max(n, excluded.n);
-- name: drop_reader
DELETE FROM readers WHERE tenant = ? AND name = ?;
-- name: readers
SELECT name, n FROM readers WHERE tenant = ? ORDER BY name;
-- name: pause
UPDATE lanes SET paused = ?1, in_turns = CASE WHEN ?1 THEN 0 ELSE in_turns END, next_at = 0 WHERE lane = ?2;
-- name: settings
SELECT queue, weight, max_waiting, budgets FROM settings WHERE tenant = ? ORDER BY queue;
-- name: budgets
SELECT budgets FROM settings WHERE tenant = ? AND queue = ?;
-- name: lane_settings
SELECT queue, weight, max_waiting FROM settings WHERE tenant = ? AND queue IN (?, '') ORDER BY queue DESC;
-- name: set_settings
INSERT INTO settings VALUES (?, ?, ?, ?, ?) ON CONFLICT (tenant, queue)
DO UPDATE SET weight = ifnull(excluded.weight, weight), max_waiting = ifnull(excluded.max_waiting, max_waiting),
    budgets = excluded.budgets;
-- name: lane_waiting
SELECT waiting FROM lanes WHERE lane = ?;
-- name: tenant_waiting
SELECT ifnull(sum(waiting), 0) FROM lanes WHERE tenant = ?;
-- name: beat
INSERT INTO workers VALUES (?1, ?2, ?3, ?3, ?4)
ON CONFLICT (worker_id) DO UPDATE SET expires_at = ?2, seen_at = ?3, info = ?4,
    started_at = CASE WHEN expires_at <= ?3 THEN ?3 ELSE started_at END;
-- name: sign_off
DELETE FROM workers WHERE worker_id = ?;
-- name: forget_workers
DELETE FROM workers WHERE expires_at <= ?;
-- name: workers
SELECT worker_id, expires_at, info, started_at, seen_at FROM workers WHERE worker_id > ? ORDER BY worker_id LIMIT ?;
-- name: forgotten_jobs
SELECT {job} FROM jobs WHERE state > {leased} AND expires_at <= ? ORDER BY expires_at, seq LIMIT ?;
-- Trimming. The content of a chunk of one lane is read only if the chunk is cut in two.
-- name: slowest_readers
SELECT tenant, min(n) FROM readers GROUP BY tenant;
-- name: kept_events
SELECT tenant, sum(events) FROM lanes WHERE events > 0 GROUP BY tenant;
-- name: cut
SELECT n, mark, seen FROM cuts WHERE tenant = ?;
-- name: log_behind
SELECT last, first, at, lane, mark, CASE WHEN lane IS NULL THEN chunk END FROM events WHERE last > ? ORDER BY last LIMIT ?;
-- name: chunk
SELECT chunk FROM events WHERE last = ?;
-- name: drop_events
DELETE FROM events WHERE last BETWEEN ? AND ?;
-- name: save_cut
INSERT OR REPLACE INTO cuts VALUES (?, ?, ?, ?);
-- name: drop_blob
INSERT OR IGNORE INTO dropped_blobs VALUES (?);
-- name: dropped_blobs
SELECT name FROM dropped_blobs LIMIT ?;
-- name: forget_blob
DELETE FROM dropped_blobs WHERE name = ?;
-- name: set_trimmed
UPDATE counters SET trimmed = ?, gone = ?;
