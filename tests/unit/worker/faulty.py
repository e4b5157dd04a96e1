"""A store that misbehaves on demand and counts its calls."""

import asyncio
from collections import Counter, defaultdict, deque


class FaultyStore:
    """Passes every call on to `inner`, unless a fault is set for that operation."""

    def __init__(self, inner, shared=None):
        self.inner = inner
        self._shared = shared or (defaultdict(deque), Counter(), defaultdict(list), set())
        self._faults, self.calls, self.batches, self.listening = self._shared

    def fail(self, op, error, times=1, *, after=False):
        """Raise `error` in the next `times` calls of `op`; with `after` they run first, and their reply is lost."""
        self._faults[op].extend([(error, after)] * times)

    def hold(self, op):
        """Let the next call of `op` wait for the event that this returns."""
        gate = asyncio.Event()
        self._faults[op].append((gate, False))
        return gate

    def heal(self):
        """Forget all faults."""
        self._faults.clear()

    async def sibling(self):
        return FaultyStore(await self.inner.sibling(), self._shared)

    def listen(self, listener, hints):
        """Listen to `inner`; `listening` has those that have not stopped."""
        unlisten, token = self.inner.listen(listener, hints), object()
        self.listening.add(token)

        def stop():
            self.listening.discard(token)
            unlisten()

        return stop

    def __getattr__(self, name):
        real = getattr(self.inner, name)
        if name not in ("claim", "finish", "extend", "report", "reap", "prune", "beat", "cancel", "enqueue"):
            return real

        async def call(*args, **kwargs):
            if name == "claim" and args[0].queues[0].startswith("holdfast:"):
                return await real(*args, **kwargs)  # Of the coordinator, in another thread: faults are for the worker.
            self.calls[name] += 1
            if args and isinstance(args[0], (list, tuple)):
                self.batches[name].append(list(args[0]))
            fault, after = self._faults[name].popleft() if self._faults[name] else (None, False)
            if isinstance(fault, asyncio.Event):
                await fault.wait()
            elif fault is not None and not after:
                raise fault
            answer = await real(*args, **kwargs)
            if after:
                raise fault
            return answer

        return call
