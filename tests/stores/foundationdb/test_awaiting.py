"""Reads that are awaited together."""

import asyncio

import pytest

from holdfast.stores.foundationdb.awaiting import together


async def test_all_have_ended_before_the_error_of_one_is_raised():
    """Else the others would go on in the transaction's next try: two lanes once got the same pointer that way."""
    ended = []

    async def slow(name):
        for _ in range(3):
            await asyncio.sleep(0)
        ended.append(name)

    async def fails():
        raise KeyError("as planned")

    with pytest.raises(KeyError, match="as planned"):
        await together(slow("a"), fails(), together(slow("b"), fails()))
    assert ended == ["a", "b"]
