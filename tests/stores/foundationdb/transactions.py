"""A caller's own transaction of FoundationDB."""

from contextlib import asynccontextmanager

from holdfast.opening import parse_url
from holdfast.stores.foundationdb import address


@asynccontextmanager
async def of_a_cluster(url):
    """Commits at the end. An exception rolls it back."""
    database = await address.open_database(address.read(parse_url(url)))
    transaction = database.transaction()
    yield transaction
    await transaction.commit()
