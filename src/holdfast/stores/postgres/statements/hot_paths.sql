-- The hot paths: calls of the functions in migrations/.

-- name: enqueue
SELECT {s}.enqueue($1::text[], $2::int[], $3::int[], $4::text::text[], $5::text[], $6::text::text[], $7::smallint[],
    $8::int[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bytea[], $13::bytea[], $14::text::text[]);
-- name: complete
SELECT {s}.complete($1::int[], $2::text::text[], $3::text::bigint[], $4::bytea[], $5::text::bigint[], $6::int,
    $7::text::text[]);
-- name: extend
SELECT {s}.extend($1::int[], $2::text::text[], $3::text::bigint[], $4::text::bigint[], $5::text::bigint[], $6::int,
    $7::text::text[]);
-- name: enqueue_and_notify
CALL {s}.enqueue_and_notify($1::text[], $2::text[], $3::text[], $4::int[], $5::int[], $6::text::text[], $7::text[],
    $8::text::text[], $9::smallint[], $10::int[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bytea[], $15::bytea[],
    $16::text::text[], NULL);
-- name: complete_and_notify
CALL {s}.complete_and_notify($1::text[], $2::text[], $3::int[], $4::text::text[], $5::text::bigint[], $6::bytea[],
    $7::text::bigint[], $8::int, $9::text::text[], NULL);
-- name: enqueue_one
SELECT now FROM {s}.enqueue_one($1::text, $2::int, $3::int, $4::text, $5::text, $6::text, $7::smallint, $8::int,
    $9::bigint, $10::bigint, $11::bigint, $12::bytea, $13::bytea, false, $14::text::text[]);
-- name: enqueue_one_and_notify
CALL {s}.enqueue_one_and_notify($1::text[], $2::text[], $3::text[], $4::text, $5::int, $6::int, $7::text, $8::text,
    $9::text, $10::smallint, $11::int, $12::bigint, $13::bigint, $14::bigint, $15::bytea, $16::bytea,
    $17::text::text[], NULL, NULL);
-- name: complete_one
SELECT now FROM {s}.complete_one($1::int, $2::text, $3::bigint, $4::bytea, $5::bigint, $6::int, false,
    $7::text::text[]);
-- name: complete_one_and_notify
CALL {s}.complete_one_and_notify($1::text[], $2::text[], $3::text[], $4::int, $5::text, $6::bigint, $7::bytea, $8::bigint,
    $9::int, $10::text::text[], NULL);
-- name: claim
SELECT * FROM {s}.claim($1::text::int[], $2::text::int[], $3::text::int[], $4::text::bigint[], $5::text::boolean[],
    $6::text::int[], $7::text::int[], $8::text::bigint[], $9::text::bigint[], $10::text::int[], $11::text::bigint[], $12,
    $13, $14, $15, $16, $17::text::text[]);
