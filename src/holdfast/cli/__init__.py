"""The `holdfast` command. One file per group of commands; `main` is the console script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from holdfast.cli.output import note

DONE, FAILED, WRONG_USAGE = 0, 1, 2


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run one command (by default the one this process was started with) and exit: 0 done, 1 failed, 2 wrong usage."""
    # Typer is loaded by whoever runs a command, not by whoever imports a part of this package.
    try:
        from holdfast.cli.app import command
    except ModuleNotFoundError as error:
        note(f"Error: the command needs {error.name}; install it with: pip install typer rich")
        sys.exit(FAILED)

    sys.exit(told(lambda: command(args, prog_name="holdfast")))


def told(act: Callable[[], object]) -> int:
    """Do something and return the exit code for it; an error that people can act on is told in a line, not a trace."""
    from holdfast.core.errors import HoldfastError, InvalidName, InvalidOption, InvalidPayload

    try:
        act()
    except (InvalidName, InvalidOption, InvalidPayload) as error:
        return _say(error, WRONG_USAGE)
    except (HoldfastError, OSError) as error:
        return _say(error, FAILED)
    return DONE


def _say(error: Exception, code: int) -> int:
    note("\n".join([f"Error: {error}", *getattr(error, "__notes__", ())]), lines=True)
    return code
