-- Waiters: idle workers that wait for jobs.

-- name: register_waiter
SELECT {s}.register_waiter($1, $2, $3, $4::int[], $5::int[], $6, $7, $8, $9, $10::text::text[]);
-- name: withdraw_waiter
SELECT * FROM {s}.withdraw_waiter($1, $2, $3, $4::int[], $5::int[]);
-- name: drop_waiter
DELETE FROM {s}.waiters WHERE inbox = $1 AND number <= $2 AND expires_at < 0;
-- Remove a hand-off whose message was not sent from its waiter. The caller that removes it releases the job.
-- name: undo_handoff
UPDATE {s}.waiters SET sent = sent - 1, handed_off = array_remove(handed_off,
    $1::text) WHERE $1::text = ANY (handed_off) RETURNING 1;
-- name: find_leased
SELECT l.tenant, l.queue, j.id, j.token FROM unnest($1::bigint[], $2::bigint[]) AS u (seq, token)
JOIN {s}.jobs j ON j.seq = u.seq AND j.token = u.token AND j.state + 0 = {state:leased} JOIN {s}.lanes l ON l.lane = j.lane;
-- name: forget_waiters
DELETE FROM {s}.waiters WHERE inbox IN (
    SELECT inbox FROM {s}.waiters WHERE abs(expires_at) < $1
        AND pg_try_advisory_xact_lock_shared(inbox) FOR UPDATE SKIP LOCKED);
-- name: forget_waiter_queues
DELETE FROM {s}.waiter_queues p WHERE NOT EXISTS (SELECT FROM {s}.waiters o WHERE o.inbox = p.inbox);
-- name: lock_inbox
SELECT pg_advisory_lock($1);
-- name: unlock_inbox
SELECT pg_advisory_unlock($1);
