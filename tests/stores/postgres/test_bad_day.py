"""What a claim touches does not grow with what has passed: neither with dead rows that a held transaction keeps in
place, nor with finished jobs. Counted in buffers, not in seconds.
"""

import json
import statistics

import asyncpg
import pytest

from tests.stores.postgres.support import claim, complete, fill, opened

JOBS = 8_000
BATCH = 50
EXPLAIN = (
    "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on;"
    "SET auto_explain.log_buffers = on; SET auto_explain.log_timing = off; SET auto_explain.log_format = json;"
    "SET auto_explain.log_nested_statements = on; SET client_min_messages = log"
)


class Plans:
    """What the server says of each statement of a store: its plan, and how many buffers it touched."""

    def __init__(self, store):
        self._said = []
        connect = store._client.connect

        async def explained():
            connection = await connect()
            await connection.execute(EXPLAIN)
            connection.add_log_listener(lambda _, message: self._said.append(message.message))
            return connection

        store._client.drop_idle()
        store._client.connect = explained

    async def of_claim(self, store, tenant):
        """The jobs of a claim, how many buffers it touched, and in which tables it scanned_at."""
        self._said.clear()
        jobs = await claim(store, BATCH, tenant=tenant)
        plans = [json.loads(said.partition("plan:")[2]) for said in self._said if "plan:" in said]
        (whole,) = [plan["Plan"] for plan in plans if plan["Plan"].get("Function Name") == "claim"]
        tables = set()
        for plan in plans:
            _tables(plan["Plan"], tables)
        return jobs, whole["Shared Hit Blocks"] + whole["Shared Read Blocks"], tables


def _tables(plan, found):
    if "Relation Name" in plan:
        found.add(plan["Relation Name"])
    for child in plan.get("Plans", ()):
        _tables(child, found)


async def costs(plans, store, tenant, count=11):
    """The buffers that each of these claims touches."""
    found = []
    for _ in range(count):
        jobs, buffers, _ = await plans.of_claim(store, tenant)
        assert len(jobs) == BATCH
        found.append(buffers)
        await complete(store, jobs)
    return found


async def pass_through(store, count, tenant):
    while count > 0:
        count -= len(jobs := await claim(store, BATCH, tenant=tenant))
        await complete(store, jobs)


@pytest.mark.parametrize("tenants", [1, 20])
async def test_claims_do_not_read_rows_that_an_open_transaction_keeps(postgres, database, tenants):
    """The median of the last claims is no more than twice that of the first ones.

    Once a second a claim looks at everything, for what was committed behind its marks. That one does walk over what is
    dead; the median leaves it out.
    """
    async with opened(postgres.url(database)) as store:
        held = await asyncpg.connect(postgres.url(database))
        await held.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await held.fetchval("SELECT count(*) FROM holdfast.jobs")
        for n in range(tenants):
            await fill(store, JOBS // tenants, tenant=f"t{n}")
        tenant = "t0" if tenants == 1 else None
        plans = Plans(store)
        first = await costs(plans, store, tenant)
        await pass_through(store, JOBS - 23 * BATCH, tenant)
        last = await costs(plans, store, tenant)
        await held.close()
        assert statistics.median(last) <= 2 * statistics.median(first), (first, last)


async def test_claims_do_not_touch_finished_jobs(postgres, database):
    async with opened(postgres.url(database)) as store:
        await fill(store, JOBS)
        plans = Plans(store)
        first = await costs(plans, store, "acme")
        await pass_through(store, JOBS - 24 * BATCH, "acme")
        last = await costs(plans, store, "acme")
        jobs, _, tables = await plans.of_claim(store, "acme")
        assert len(jobs) == BATCH
        assert "jobs" in tables
        assert "done" not in tables
        assert statistics.median(last) <= 2 * statistics.median(first), (first, last)
