-- Hints, and the caller's transaction. [ENQ-7]

-- name: notify
SELECT set_config('synchronous_commit', 'off', true), pg_notify(channel, hint)
FROM unnest($1::text[], $2::text[]) AS u (channel, hint);
-- A hint that is sent with the caller's own commit. The caller's settings decide whether that commit is flushed.
-- name: notify_joined
SELECT pg_notify(channel, hint) FROM unnest($1::text[], $2::text[]) AS u (channel, hint);
-- Where a connection leads: the same answer on two connections means the same tables on the same server.
-- name: connection_target
SELECT pg_postmaster_start_time() AS started, current_database()::text AS name,
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()) AS number,
    to_regclass($1::text)::oid::bigint AS jobs, pg_is_in_recovery() AS replica;
