-- The doctor. All but `durability` need no schema, and work on a replica.

-- name: durability
SELECT current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit;
-- name: doctor_server
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
    current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('full_page_writes') AS full_page_writes, current_setting('autovacuum') AS autovacuum,
    current_setting('synchronous_standby_names') AS synchronous_standby_names, pg_is_in_recovery() AS replica,
    current_setting('transaction_read_only') AS read_only, current_user::text AS role,
    (SELECT setting::int FROM pg_settings WHERE name = 'lock_timeout') AS lock_ms,
    (SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout') AS statement_ms,
    (SELECT setting::int FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout') AS idle_ms,
    current_setting('max_connections')::int AS max_connections,
    current_setting('superuser_reserved_connections')::int
        + coalesce(current_setting('reserved_connections', true), '0')::int AS reserved,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connected,
    (SELECT count(*) FROM pg_stat_activity WHERE query = '<insufficient privilege>') AS hidden,
    (SELECT max(age(datfrozenxid)) FROM pg_database) AS oldest_xid,
    extract(epoch FROM clock_timestamp())::float8 AS clock;
-- name: doctor_transactions
SELECT pid, coalesce(usename, '')::text AS role, coalesce(application_name, '') AS program, coalesce(state, '') AS state,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s
FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
ORDER BY xact_start LIMIT 1;
-- name: doctor_prepared
SELECT gid, owner::text AS role, database::text AS database,
    extract(epoch FROM clock_timestamp() - prepared)::float8 AS age_s
FROM pg_prepared_xacts ORDER BY prepared LIMIT 1;
-- name: doctor_slots
SELECT slot_name::text AS name FROM pg_replication_slots WHERE NOT active ORDER BY 1;
-- name: doctor_standbys
SELECT coalesce(application_name, '') AS name, coalesce(state, '') AS state, coalesce(sync_state, '') AS sync_state,
    extract(epoch FROM replay_lag)::float8 AS lag_s
FROM pg_stat_replication WHERE state <> 'backup' ORDER BY 1;
-- name: doctor_tables
SELECT relname::text AS name, n_live_tup AS live, n_dead_tup AS dead, pg_total_relation_size(relid) AS size,
    extract(epoch FROM clock_timestamp() - greatest(last_autovacuum, last_vacuum))::float8 AS vacuumed_s
FROM pg_stat_user_tables WHERE schemaname = $1::text ORDER BY 1;
-- name: doctor_indexes
SELECT c.relname::text AS name, t.relname::text AS on_table, i.indisvalid AND i.indisready AS valid,
    CASE WHEN c.relkind = 'i' THEN pg_relation_size(c.oid) ELSE 0 END AS size
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1::text ORDER BY 1;
