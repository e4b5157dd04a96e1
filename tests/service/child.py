"""A server in a process of its own, which dies at a step: python -m tests.service.child STORE [STEP:ACTION]."""

import asyncio
import sys

from holdfast.service.listening import listen
from holdfast.service.server import serve
from holdfast.service.settings import ServiceSettings
from holdfast.testing import failpoints
from tests.service.support import TOKENS


def main(store, spec=""):
    if spec:
        failpoints.arm_spec(spec)
    sock = listen("127.0.0.1", 0, 30)
    settings = ServiceSettings(store=store, tokens=TOKENS, upkeep=False, access_log=False)
    asyncio.run(
        serve(settings, sock, ready=lambda: sys.stdout.write(f"{sock.getsockname()[1]}\n") and sys.stdout.flush())
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
