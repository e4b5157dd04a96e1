"""The command line of the demo."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from holdfast import HoldfastError
from holdfast.core.text import printable
from holdfast.demo import history
from holdfast.demo.directory import NotOurs, fresh, store_url
from holdfast.demo.fleet import WorkerBroke
from holdfast.demo.story import Story

INTERRUPTED = 130


def main() -> int:
    """Run the demo: 0 if nothing was lost, 1 if something was, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.demo", description="See the queue at work.")
    parser.add_argument(
        "--dir", type=Path, default=Path("demo-data"), help="where the data goes (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=4000, help="about how many, 100 to 20000 (default: %(default)s)")
    parser.add_argument("--lease", type=float, default=2.0, help="in seconds, 1 to 10 (default: %(default)g)")
    parser.add_argument(
        "--get-spark", metavar="COMMAND", default="", help="run it to bring PySpark, if the last part lacks only that"
    )
    arguments = parser.parse_args()
    if not 100 <= arguments.jobs <= 20_000:
        parser.error("--jobs must be from 100 to 20000")
    if not 1 <= arguments.lease <= 10:
        parser.error("--lease must be from 1 to 10")
    console = Console()
    try:
        with fresh(arguments.dir):
            nothing_lost = asyncio.run(_tell(Story(arguments.dir, arguments.jobs, arguments.lease, console)))
            agrees = history.prove(console, arguments.dir, store_url(arguments.dir), arguments.get_spark)
    except NotOurs as error:
        parser.error(str(error))
    except (HoldfastError, WorkerBroke) as error:
        console.print(Text.assemble((type(error).__name__, "red"), f": {printable(str(error))}"), soft_wrap=True)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Interrupted. The workers were ended; the data is still there.", highlight=False)
        return INTERRUPTED
    return 0 if nothing_lost and agrees else 1


async def _tell(story: Story) -> bool:
    # Ctrl-C cancels this task, by asyncio.run; a SIGTERM does the same.
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await story.tell()


if __name__ == "__main__":
    sys.exit(main())
