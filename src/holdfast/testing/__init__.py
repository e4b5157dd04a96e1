"""For the tests of programs that use Holdfast: a queue that runs its jobs when told to, on a clock that stands still.

`async with inline_queue(tenant="acme") as queue` gives one; `assert_enqueued(queue, send_email, to="a@example.com")`
looks at what waits, `await queue.drain()` runs it, `await queue.advance(hours=1)` moves the clock.
Without an event loop: `from holdfast.testing.blocking import inline_queue`.
"""

from holdfast.testing.asserts import assert_enqueued, assert_not_enqueued, enqueued
from holdfast.testing.inline import Drained, Failure, InlineQueue, inline_queue

__all__ = ["Drained", "Failure", "InlineQueue", "assert_enqueued", "assert_not_enqueued", "enqueued", "inline_queue"]
