"""A caller's own transaction, begun in all the ways that a store can join."""

from contextlib import asynccontextmanager

import asyncpg
import psycopg
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine


class Rolled(Exception):
    """Thrown to roll a transaction back."""


@asynccontextmanager
async def of_asyncpg(url):
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def of_a_pool(url):
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection, connection.transaction():
        yield connection


@asynccontextmanager
async def of_psycopg(url):
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@asynccontextmanager
async def of_psycopg_autocommit(url):
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection, connection.transaction():
        yield connection


def of_sqlalchemy(driver, kind):
    @asynccontextmanager
    async def begun(url):
        engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
        try:
            if kind == "connection":
                async with engine.begin() as connection:
                    yield connection
            else:
                async with AsyncSession(engine) as session, session.begin():
                    yield session
        finally:
            await engine.dispose()

    return begun


WAYS = {
    "asyncpg": of_asyncpg,
    "asyncpg pool": of_a_pool,
    "psycopg": of_psycopg,
    "psycopg autocommit": of_psycopg_autocommit,
    "sqlalchemy asyncpg connection": of_sqlalchemy("asyncpg", "connection"),
    "sqlalchemy asyncpg session": of_sqlalchemy("asyncpg", "session"),
    "sqlalchemy psycopg connection": of_sqlalchemy("psycopg", "connection"),
    "sqlalchemy psycopg session": of_sqlalchemy("psycopg", "session"),
}
