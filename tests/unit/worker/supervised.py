"""A program for the tests of the supervisor: `python -m tests.unit.worker.supervised FOLDER WAY`."""

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from holdfast.worker import supervisor


def child(folder, way, number):
    Path(folder, f"{number}-{os.getpid()}").touch()
    if way == "dies" and len(list(Path(folder).glob(f"{number}-*"))) < 3:
        os._exit(7)
    if way == "ends":
        return
    reported = threading.Event()
    signals = []

    def on_term(*_):
        signals.append(1)
        Path(folder, f"signaled-{number}-{len(signals)}").touch()
        if way != "stubborn":
            reported.set()

    signal.signal(signal.SIGTERM, on_term)
    Path(folder, f"ready-{number}-{os.getpid()}").touch()
    while not reported.is_set():
        time.sleep(0.01)
    if way == "fails":
        sys.exit(3)


if __name__ == "__main__":
    supervisor.FIRST_PAUSE_S = 0.05
    supervisor.KILL_S = 0.3
    sys.exit(supervisor.supervise(partial(child, sys.argv[1], sys.argv[2]), 2))
