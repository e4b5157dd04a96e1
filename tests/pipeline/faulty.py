"""Tasks with faults: what runs on executors, wrapped so that it dies at chosen steps."""

import asyncio
import os
import signal
import threading
from pathlib import Path

from holdfast.core import failpoint


class Faulty:
    """A function of a task that meets faults at failpoints: (step, how often in all processes, what happens)."""

    def __init__(self, inner, place, faults, store=""):
        self.inner, self.place, self.faults, self.store = inner, str(place), faults, store

    def __call__(self, batches):
        failpoint.install(self._pass)
        try:
            yield from self.inner(batches)
        finally:
            failpoint.install(None)

    def _pass(self, step):
        for name, times, act in self.faults:
            for n in range(times if name == step else 0):
                try:
                    (Path(self.place) / f"{step}.{n}").open("x").close()
                except FileExistsError:
                    continue
                self._act(act)

    def _act(self, act):
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if act == "fail again":
            thread = threading.Thread(target=lambda: asyncio.run(self._fail_again()))
            thread.start()
            thread.join()
        raise RuntimeError("a planted fault")

    async def _fail_again(self):
        from holdfast.opening import open_store
        from tests.pipeline.failing import fail_waiting

        store = await open_store(self.store)
        await fail_waiting(store)
        await store.close()
