"""The `holdfast` command. One file per group of commands; `main` is the console script."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from holdfast.cli.output import note

DONE, FAILED, WRONG_USAGE = 0, 1, 2


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run one command (by default the one this process was started with) and exit: 0 done, 1 failed, 2 wrong usage."""
    # Importing a part of this package does not load Typer. Running a command does.
    try:
        from holdfast.cli.app import command
    except ModuleNotFoundError as error:
        note(f"Error: the command needs {error.name}; install it with: pip install typer rich")
        sys.exit(FAILED)

    sys.exit(exit_code_of(lambda: command(args, prog_name="holdfast")))


def exit_code_of(act: Callable[[], object]) -> int:
    """Call `act` and return the exit code. A user's mistake is printed as a message, without a traceback."""
    from holdfast.core.errors import HoldfastError, InvalidName, InvalidOption, InvalidPayload

    try:
        act()
    except (InvalidName, InvalidOption, InvalidPayload) as error:
        return _print_error(error, WRONG_USAGE)
    except (HoldfastError, OSError) as error:
        return _print_error(error, FAILED)
    return DONE


def _print_error(error: Exception, code: int) -> int:
    note("\n".join([f"Error: {error}", *getattr(error, "__notes__", ())]), lines=True)
    return code
