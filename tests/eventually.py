"""Waiting for what nothing tells: another process, a thread, a file."""

import asyncio
import inspect


async def eventually(look, wanted=bool, *, patience_s=60.0, every_s=0.01):
    """What `look()` gives, awaited if need be, once it is `wanted`. Raises TimeoutError when patience is over."""
    async with asyncio.timeout(patience_s):
        while True:
            found = look()
            if inspect.isawaitable(found):
                found = await found
            if wanted(found):
                return found
            await asyncio.sleep(every_s)
