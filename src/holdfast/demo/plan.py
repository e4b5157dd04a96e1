"""The jobs of each tenant of the demo. The same number of jobs always gives the same jobs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from msgspec import Struct

from holdfast import Message
from holdfast.demo.jobs import charge_card, decode_broken_video, export_everything, remind, send_email, thumbnail

POISON_ID = "broken-video"
EXPORT_ID = "export"
NEWSLETTER = "newsletter"


class DemoTenant(Struct, frozen=True):
    """A tenant of the demo, and how it enqueues."""

    name: str
    share: float
    trickles: bool
    """Whether it enqueues its jobs one by one; otherwise all at once."""
    habit: str


TENANTS = (
    DemoTenant("acme", 0.75, False, "all at once, in bulk"),
    DemoTenant("globex", 0.15, True, "one by one, as its users click"),
    DemoTenant("initech", 0.10, True, "one by one, and one of its jobs is poison"),
)


class TenantPlan(Struct, frozen=True):
    """The jobs of one tenant. Those in `to_cancel` are due much later, and are canceled before that."""

    tenant: DemoTenant
    messages: list[Message[Any]]
    to_cancel: list[Message[Any]]
    poison: Message[Any] | None
    export: Message[Any] | None

    @property
    def total(self) -> int:
        """The number of jobs of the tenant."""
        return len(self.messages) + len(self.to_cancel) + (self.poison is not None) + (self.export is not None)


def plans(jobs: int) -> list[TenantPlan]:
    """About `jobs` jobs, divided among the tenants."""
    return [_plan(tenant, max(10, round(jobs * tenant.share))) for tenant in TENANTS]


def _plan(tenant: DemoTenant, jobs: int) -> TenantPlan:
    chance = random.Random(tenant.name)
    canceled = max(1, jobs // 50)
    return TenantPlan(
        tenant,
        list(_everyday(chance, jobs - canceled)),
        [_newsletter(n) for n in range(canceled)],
        decode_broken_video.message().options(id=POISON_ID, priority=9) if tenant.name == "initech" else None,
        export_everything.message().options(id=EXPORT_ID, priority=9) if tenant.name == "globex" else None,
    )


def _everyday(chance: random.Random, jobs: int) -> Iterator[Message[Any]]:
    for n in range(jobs):
        kind = chance.random()
        if kind < 0.55:
            yield thumbnail.message(n, round(chance.uniform(0.01, 0.05), 3)).options(id=f"thumbnail-{n}")
        elif kind < 0.80:
            refusals = 0 if chance.random() < 0.8 else chance.randint(1, 2)
            yield send_email.message(f"user{n}@example.com", refusals).options(id=f"email-{n}")
        elif kind < 0.92:
            yield charge_card.message(n, declined=chance.random() < 0.06).options(id=f"charge-{n}")
        else:
            delay = timedelta(seconds=round(chance.uniform(2, 5), 3))
            yield remind.message(n).options(id=f"reminder-{n}", delay=delay)


def _newsletter(n: int) -> Message[Any]:
    message = send_email.message(f"subscriber{n}@example.com")
    return message.options(id=f"{NEWSLETTER}-{n}", delay=timedelta(hours=1))
