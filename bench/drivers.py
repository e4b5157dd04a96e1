"""`python -m bench.drivers`: asyncpg beside psycopg, on what a store asks of a driver. See ADR 8.

One connection each, on one server, in turns; statements are prepared, values go in binary form in both directions.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.metadata import version

import asyncpg
import psycopg
from rich.console import Console
from rich.table import Table

from bench.measure import Figures
from bench.tables import cell
from holdfast.testing.postgres import PostgresServer

BATCH = 200
TOGETHER = 10
PAYLOAD = b"x" * 100

SCHEMA = """
CREATE TABLE jobs (
    tenant text, id text, seq bigserial, token bigint DEFAULT 7, attempt int DEFAULT 1, visible_at timestamptz,
    payload bytea, PRIMARY KEY (tenant, id)
)
"""
ONE = "SELECT token, payload FROM jobs WHERE tenant = 'bench' AND id = {0}"
INSERT = """
INSERT INTO jobs (tenant, id, visible_at, payload)
SELECT 'bench', * FROM unnest({0}::text[], {1}::timestamptz[], {2}::bytea[]) RETURNING id, seq
"""
CLAIM = """
SELECT id, seq, token, attempt, visible_at, payload FROM jobs WHERE tenant = 'bench' AND id = ANY({0}::text[])
"""


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.drivers")
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    figures = Figures()
    with PostgresServer() as server:
        server.sql(SCHEMA)
        first = await asyncpg.connect(server.url())
        second = await psycopg.AsyncConnection.connect(server.url(), autocommit=True, prepare_threshold=0)
        subjects = {
            f"asyncpg {version('asyncpg')}": Asyncpg(first),
            f"psycopg {version('psycopg')}": Psycopg(second),
        }
        for number in range(rounds):
            for name, driver in list(subjects.items())[:: -1 if number % 2 else 1]:
                server.sql("TRUNCATE jobs")
                await _measure(figures, name, driver)
        await first.close()
        await second.close()
    _show(figures, list(subjects), rounds)


class Asyncpg:
    """It keeps the statements that it has prepared by their text."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def run(self, text: str, *values: object) -> list:
        return await self._connection.fetch(text.format("$1", "$2", "$3"), *values)

    async def run_together(self, text: str, values: list) -> list:
        return [row for value in values for row in await self.run(text, value)]


class Psycopg:
    """The C implementation. `executemany` sends its statements in a pipeline: of its two ways to one, the cheaper."""

    def __init__(self, connection: psycopg.AsyncConnection) -> None:
        self._connection = connection
        assert psycopg.pq.__impl__ == "binary"

    async def run(self, text: str, *values: object) -> list:
        cursor = self._connection.cursor(binary=True)
        await cursor.execute(text.format("%b", "%b", "%b"), values, prepare=True)
        return await cursor.fetchall()

    async def run_together(self, text: str, values: list) -> list:
        cursor = self._connection.cursor(binary=True)
        await cursor.executemany(text.format("%b"), [(value,) for value in values], returning=True)
        rows = await cursor.fetchall()
        while cursor.nextset():
            rows += await cursor.fetchall()
        return rows


async def _measure(figures: Figures, subject: str, driver: Asyncpg | Psycopg) -> None:
    now = datetime.now(UTC)
    batches = [[f"{batch:06}-{n:06}-0123456789abcdef" for n in range(BATCH)] for batch in range(40)]
    assert len(await driver.run(INSERT, ["warm"], [now], [PAYLOAD])) == 1

    async def timed(measure: str, rows: int, times: int, ask: Callable[[int], Awaitable[list]]) -> None:
        assert len(await ask(0)) == rows
        began, cpu = time.perf_counter(), time.process_time()
        for n in range(1, times):
            await ask(n)
        figures.add(f"{measure}, ms", subject, (time.perf_counter() - began) / (times - 1) * 1000)
        used = (time.process_time() - cpu) / (times - 1) / rows
        figures.add(f"{measure}, µs of client a row", subject, used * 1e6)

    await timed(
        f"insert {BATCH} rows by arrays",
        BATCH,
        40,
        lambda n: driver.run(INSERT, batches[n], [now] * BATCH, [PAYLOAD] * BATCH),
    )
    await timed(f"read {BATCH} rows", BATCH, 40, lambda n: driver.run(CLAIM, batches[n]))
    await timed("read one row", 1, 400, lambda n: driver.run(ONE, batches[0][n % BATCH]))
    await timed(
        f"read one row, {TOGETHER} statements together",
        TOGETHER,
        40,
        lambda n: driver.run_together(ONE, batches[n][:TOGETHER]),
    )


def _show(figures: Figures, subjects: list[str], rounds: int) -> None:
    table = Table(title=f"Median of {rounds} rounds", title_justify="left")
    for header in ("", *subjects):
        table.add_column(header, justify="right" if header else "left")
    table.add_column("psycopg / asyncpg", justify="right", style="bold")
    for measure in figures.as_dict():
        ratio = figures.median(measure, subjects[1]) / figures.median(measure, subjects[0])
        table.add_row(measure, *(cell(figures, measure, subject, "{:,.2f}") for subject in subjects), f"{ratio:.2f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    asyncio.run(main())
