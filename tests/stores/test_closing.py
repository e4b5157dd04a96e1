"""A store whose close is canceled at any point.

Invariants verified:
- it leaves no connection open: not those at rest, nor the one that listens
"""

import asyncio
import contextlib

import pytest

from holdfast.opening import open_store
from tests.eventually import eventually
from tests.stores.load import new


@pytest.mark.parametrize("turns", [1, 3, 6, 15, 30])
async def test_a_close_that_is_canceled_closes_every_connection(far_url, proxy, turns):
    store = await open_store(far_url.replace("timeout_s=1", "timeout_s=30"))
    store.listen(lambda signal: None)
    await asyncio.gather(*(store.now() for _ in range(3)))
    await eventually(lambda: proxy.open_connections, lambda count: count >= 3)
    await store.enqueue([new("a")])
    closing = asyncio.create_task(store.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await closing
    await eventually(lambda: proxy.open_connections, lambda count: count == 0)
