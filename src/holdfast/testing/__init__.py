"""Tools for tests: an inline queue for programs that use Holdfast, and the conformance suite for stores.

For a program: `async with inline_queue(tenant="acme") as queue` opens a queue in memory. Its jobs run when the test
calls `await queue.drain()`, and its clock moves when the test calls `await queue.advance(hours=1)`.
`assert_enqueued(queue, send_email, to="a@example.com")` checks that such a job waits.
Without an event loop: `from holdfast.testing.blocking import inline_queue`.

For a store: `conformance` checks every rule of the contract, `traces` compares random traces with the memory store.
For both: `servers` and `postgres` start real servers from wheels, `fdb` simulates FoundationDB, `proxy` breaks
connections, `failpoints` kills a process at a named step.
"""

from holdfast.testing.asserts import assert_enqueued, assert_not_enqueued, enqueued
from holdfast.testing.inline import Drained, Failure, InlineQueue, inline_queue

__all__ = ["Drained", "Failure", "InlineQueue", "assert_enqueued", "assert_not_enqueued", "enqueued", "inline_queue"]
