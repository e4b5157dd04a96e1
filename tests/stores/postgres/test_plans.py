"""Whatever the planner thinks, a claim takes no more than its limit and goes by the index that it is meant to."""

import json

import asyncpg
import pytest

from holdfast.stores.postgres.literals import numbers, texts
from tests.stores.postgres.support import claim, complete, fill, opened

MOODS = {
    "as it is": "",
    "nested loops alone": "SET enable_hashjoin = off; SET enable_mergejoin = off",
    "no nested loops": "SET enable_nestloop = off",
    "generic plans": "SET plan_cache_mode = force_generic_plan",
    "custom plans": "SET plan_cache_mode = force_custom_plan",
    "sequential scans alone": "SET enable_indexscan = off; SET enable_indexonlyscan = off",
}


@pytest.mark.parametrize("mood", MOODS)
async def test_a_claim_never_takes_more_than_its_limit(postgres, database, mood):
    async with opened(postgres.url(database)) as store:
        await fill(store, 50)
        await store._client.close()
        store._client._closed = False
        connect = store._client.connect

        async def in_this_mood():
            connection = await connect()
            if MOODS[mood]:
                await connection.execute(MOODS[mood])
            return connection

        store._client.connect = in_this_mood
        seen = []
        for limit in (1, 3, 7, 20):
            jobs = await claim(store, limit)
            assert len(jobs) == limit
            seen += [job.id for job in jobs]
            fair = await claim(store, limit // 4, tenant=None)
            assert len(fair) == limit // 4
            seen += [job.id for job in fair]
        assert seen == [f"job-{n:07}" for n in range(len(seen))]


async def test_stale_statistics_change_no_plan(postgres, database):
    """Analyzed when it was empty, then filled: completions still go by the primary key."""
    async with opened(postgres.url(database)) as store:
        connection = await asyncpg.connect(postgres.url(database))
        await connection.execute("ALTER TABLE holdfast.jobs SET (autovacuum_enabled = off)")
        for table in ("jobs", "ids", "done"):
            await connection.execute(f"VACUUM ANALYZE holdfast.{table}")
        await fill(store, 5000)
        plans = []
        await connection.execute(
            "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;"
            "SET auto_explain.log_format = json; SET client_min_messages = log"
        )
        connection.add_log_listener(lambda _, message: plans.append(message.message))
        jobs = await claim(store, 200)
        await connection.fetchval(
            store._client.sql["complete"],
            [store._cache.find("acme", "mail").number],
            texts([job.id for job in jobs]),
            numbers(job.token for job in jobs),
            [None] * len(jobs),
            None,
            None,
            store._cache.fingerprint(),
        )
        await connection.close()
        indexes = set()
        for plan in plans:
            _, _, text = plan.partition("plan:")
            _indexes(json.loads(text)["Plan"], indexes)
        assert "jobs_leased" not in indexes
        assert {"jobs_pkey", "ids_pkey"} <= indexes
        assert len(await claim(store, 100)) == 100


def _indexes(plan, found):
    if "Index Name" in plan:
        found.add(plan["Index Name"])
    for child in plan.get("Plans", ()):
        _indexes(child, found)


async def test_completing_twice_in_one_batch_is_answered_twice_and_done_once(postgres, database):
    async with opened(postgres.url(database)) as store:
        await fill(store, 3)
        jobs = await claim(store, 3)
        answers = await complete(store, [*jobs, jobs[0]])
        assert [answer.state for answer in answers] == ["completed"] * 4
