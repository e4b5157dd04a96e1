"""Runs the demo, and turns its result into an exit code."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from rich.console import Console
from rich.text import Text

from holdfast.core.errors import HoldfastError, InvalidOption
from holdfast.core.text import printable
from holdfast.demo import history
from holdfast.demo.directory import NotOurs, fresh, store_url
from holdfast.demo.fleet import WorkerBroke
from holdfast.demo.story import Story

DONE, FAILED, INTERRUPTED = 0, 1, 130


def run(directory: Path, jobs: int, lease_s: float, get_spark: str) -> int:
    """Run the demo. Returns 0 if nothing was lost, else 1. Raises InvalidOption if the directory is not a demo's."""
    console = Console()
    try:
        with fresh(directory):
            nothing_lost = asyncio.run(_run(Story(directory, jobs, lease_s, console)))
            agrees = history.audit_log(console, directory, store_url(directory), get_spark)
    except NotOurs as error:
        raise InvalidOption("dir", str(error)) from None
    except (HoldfastError, WorkerBroke) as error:
        console.print(Text.assemble((type(error).__name__, "red"), f": {printable(str(error))}"), soft_wrap=True)
        return FAILED
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Interrupted. The workers have stopped; the data is still there.", highlight=False)
        return INTERRUPTED
    return DONE if nothing_lost and agrees else FAILED


async def _run(story: Story) -> bool:
    # On Ctrl-C asyncio.run cancels this task. Let SIGTERM do the same.
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await story.run()
