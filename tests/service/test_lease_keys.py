"""The keys of lease proofs, as every store keeps them."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from holdfast.core.errors import InvalidOption
from holdfast.core.job import JobKey
from holdfast.core.names import LEASE_KEYS, OPERATOR
from holdfast.opening import open_store
from holdfast.service.proofs import LeaseKeys

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_processes_that_start_at_the_same_time_share_one_lease_key(url):
    async with AsyncExitStack() as stack:
        stores = [await open_store(url) for _ in range(5)]
        for store in stores:
            stack.push_async_callback(store.close)
        found = await asyncio.gather(*(LeaseKeys(store).ensure() for store in stores))
        assert {tuple((key.kid, key.secret) for key in notify) for notify in found} == {(("1", found[0][0].secret),)}
        made = await asyncio.gather(*(LeaseKeys(store).rotate() for store in stores))
        assert sorted(made) == ["2", "3", "4", "5", "6"]
        assert OPERATOR not in await stores[0].tenants()
        for kid in ("2", "3", "4", "5", "1"):
            await LeaseKeys(stores[1]).drop(kid)
        assert [key.kid for key in await LeaseKeys(stores[2]).all()] == ["6"]
        with pytest.raises(InvalidOption, match="6 is the newest lease key"):
            await LeaseKeys(stores[0]).drop("6")
        with pytest.raises(InvalidOption, match="there is no lease key '1'; there are: 6"):
            await LeaseKeys(stores[0]).drop("1")


async def test_a_dropped_key_is_gone_from_the_store(tmp_path):
    store = await open_store(f"file:{tmp_path}/data")
    keys = LeaseKeys(store)
    (first,) = await keys.ensure()
    await keys.rotate()
    await keys.drop("1")
    assert (await store.get([JobKey(OPERATOR, LEASE_KEYS, "1")])) == [None]
    assert first.secret not in [key.secret for key in await keys.all()]
    await store.close()
