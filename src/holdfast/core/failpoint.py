"""Named steps at which a test can stop, kill or fail the process. Nothing happens in production.

Code calls `hit("worker.after_claim")`; `holdfast.testing.failpoints` installs what to do there.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def hit(name: str) -> None:
    """Pass the step called `name`."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Call `hook(name)` at every step from now on; None ends it."""
    global _hook  # noqa: PLW0603 - one process, one hook
    _hook = hook
