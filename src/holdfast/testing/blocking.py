"""The inline queue for tests without an event loop: `with inline_queue(tenant="acme") as queue`, without await."""

from __future__ import annotations

from holdfast import blocking
from holdfast.testing import inline

__all__ = ["InlineQueue", "inline_queue"]


class InlineQueue(blocking.Queue):
    """`holdfast.testing.InlineQueue` without await."""

    _kind = inline.InlineQueue


inline_queue = InlineQueue
