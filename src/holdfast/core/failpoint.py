"""Named steps at which a test can stop, kill or fail the process. In production they do nothing.

Code calls `hit("worker.after_claim")`; `holdfast.testing.failpoints` installs the action.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def hit(name: str) -> None:
    """Reach the step called `name`."""
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Call `hook(name)` at every step from now on. None removes the hook."""
    global _hook  # noqa: PLW0603 - one process, one hook
    _hook = hook
