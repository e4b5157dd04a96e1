"""`holdfast trail`: prints the audit trail that `serve --audit-queue` keeps in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import Store
from holdfast.cli.output import note, say
from holdfast.cli.session import with_store

if TYPE_CHECKING:
    from holdfast.core.job import Job
    from holdfast.store import Store as OpenStore

PAGE = 100
LEASE_MS = 60_000


def trail(
    *,
    take: Annotated[bool, typer.Option("--take", help="Remove the lines from the store after printing them.")] = False,
    store: Store = None,
) -> None:
    """Print the audit trail as JSON lines, the oldest first. `holdfast serve --audit-queue` keeps it in the store."""
    count = with_store(store, _take if take else _show)
    if not count:
        note("The trail is empty. The service keeps one with --audit-queue.")


async def _show(store: OpenStore) -> int:
    from holdfast.core.job import JobState
    from holdfast.core.names import AUDIT, OPERATOR
    from holdfast.store import ListQuery

    waiting = frozenset({JobState.READY, JobState.LEASED, JobState.RETRYING})
    count, cursor = 0, None
    while True:
        page = await store.list(ListQuery(OPERATOR, AUDIT, waiting, cursor=cursor, limit=PAGE))
        _print(page.jobs)
        count += len(page.jobs)
        cursor = page.cursor
        if cursor is None:
            return count


async def _take(store: OpenStore) -> int:
    """Print and remove the lines. If this process dies in between, the next one prints them again a minute later."""
    from holdfast.core.job import ClaimRequest, Finish, Result
    from holdfast.core.names import AUDIT, OPERATOR

    count = 0
    while jobs := (await store.claim(ClaimRequest(OPERATOR, (AUDIT,), PAGE, LEASE_MS, "trail", 0.5))).jobs:
        _print(jobs)
        await store.finish([Finish(job.key, job.token, "complete", Result(b"null", "json")) for job in jobs])
        count += len(jobs)
    return count


def _print(jobs: list[Job]) -> None:
    for job in jobs:
        say(job.envelope.payload.decode())
