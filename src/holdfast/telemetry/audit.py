"""Who did what: one line on the logger `holdfast.audit` for each administrative act, however it ended.

No line has a payload, a result or a token. What clients wrote is cut to a bounded length.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.telemetry.logging import get_logger

LOGGER = "holdfast.audit"
MAX_TEXT = 200
MAX_IDS = 100
"""The most ids that a line names; `count` has them all."""

_log = get_logger(LOGGER)


@contextmanager
def audited(
    action: str, *, also: Callable[[dict[str, Any]], None] | None = None, **facts: Any
) -> Generator[dict[str, Any]]:
    """Log how the block ended, with the facts that it has gathered by then; those that are None or empty are left out.

    `also` is called with the same facts.

    The outcome is `done`, the code of the error that was raised, or `unknown` for a block that was interrupted: then
    the act may have been done.
    """
    outcome = "unknown"
    try:
        yield facts
        outcome = "done"
    except HoldfastError as error:
        outcome = error.code
        raise
    except Exception:
        outcome = "internal_error"
        raise
    finally:
        shown = {name: _bounded(value) for name, value in facts.items() if value not in (None, "", {}, [])}
        _log.info("audit", action=action, outcome=outcome, **shown)
        if also is not None:
            also({"action": action, "outcome": outcome, **shown})


def named(ids: Iterable[str]) -> dict[str, Any]:
    """The facts about jobs that were named one by one."""
    found = list(ids)
    return {"ids": found[:MAX_IDS], "count": len(found)}


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}..."
    if isinstance(value, list):
        return [_bounded(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value
