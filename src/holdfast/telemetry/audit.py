"""The audit log: one line on the logger `holdfast.audit` for each administrative action and its outcome.

No line has a payload, a result or a token. Texts from clients are cut to a bounded length.
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
"""The most ids in a line. `count` has the full number."""

_log = get_logger(LOGGER)


@contextmanager
def audited(
    action: str, *, also: Callable[[dict[str, Any]], None] | None = None, **facts: Any
) -> Generator[dict[str, Any]]:
    """Log the outcome of the block with its facts, without empty ones. `also` is called with the same facts.

    The outcome is `done`, the code of the error, or `unknown` if the block is interrupted: then the action may have
    taken effect.
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
    """The facts about a list of ids."""
    found = list(ids)
    return {"ids": found[:MAX_IDS], "count": len(found)}


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}..."
    if isinstance(value, list):
        return [_bounded(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value
