"""A cluster of three processes under load: workers and server processes are killed by SIGKILL, and nothing is lost.

`python -m tests.stores.foundationdb.kills` goes on for longer.
"""

import os
import random

import pytest

from holdfast.testing.fdb.server import FdbServer, missing
from tests.stores.foundationdb.kills import CREW, PROCESSES, Kills

LEFT_OUT = missing()
if LEFT_OUT:
    pytest.skip(f"no process of a FoundationDB server is killed: {LEFT_OUT}", allow_module_level=True)


async def test_no_job_is_lost_and_none_is_leased_twice(zygote, log):
    seed = int(os.environ.get("HOLDFAST_SEED", random.randrange(2**32)))
    print(f"HOLDFAST_SEED={seed}")  # noqa: T201 - shown with a failure, to replay it
    with FdbServer(PROCESSES) as server:
        done = await Kills(server, zygote, seed, log).run(10)
    assert done.jobs
    assert done.servers
    assert done.workers > CREW
