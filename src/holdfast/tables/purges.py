"""How many jobs of each tenant were purged. [EVENT-1]"""

from __future__ import annotations

from itertools import islice

from msgspec.structs import replace

from holdfast.core.job import PURGE_COUNT_MS, PURGE_COUNTS_DROPPED, Job, PurgeCount
from holdfast.paging import name_page
from holdfast.store import PurgePage


class PurgeTable:
    """The counts by tenant. A count is dropped some time after the last purge."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[PurgeCount, int]] = {}
        """Each count with the instant of its last purge, the oldest first."""

    def count(self, job: Job, now: int) -> PurgeCount:
        """Count the purge of a job, and drop old counts."""
        before, _ = self._counts.pop(job.tenant, (PurgeCount(job.tenant, job.seq, 0), now))
        counted = replace(before, count=before.count + 1)
        self._counts[job.tenant] = counted, now  # Inserted at the end: the dict stays in order of age.
        for tenant, (_, at) in list(islice(self._counts.items(), PURGE_COUNTS_DROPPED)):
            if at >= now - PURGE_COUNT_MS:
                break
            del self._counts[tenant]
        return counted

    def page(self, tenant: str | None, cursor: str | None, limit: int) -> PurgePage:
        """A tenant's count. With None: a page of all tenants' counts."""
        names, following = name_page((name for name in self._counts if tenant in (None, name)), cursor or "", limit)
        return PurgePage([self._counts[name][0] for name in names], following)
