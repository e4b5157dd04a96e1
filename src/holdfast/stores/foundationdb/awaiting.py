"""Awaiting several reads of one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import gather as together
else:

    async def together(*steps: Awaitable[Any]) -> list[Any]:
        """Await all steps and return what they return. If one fails, wait for the others before that is raised.

        `asyncio.gather` would let them go on: in the transaction's next try, where they write what is not true there.
        """
        found = await asyncio.gather(*steps, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return found


__all__ = ["together"]
