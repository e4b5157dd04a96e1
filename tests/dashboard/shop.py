"""A shop's jobs of the last hours, as the pages show them: for looking at pages, in tests and for the docs."""

import json
from datetime import timedelta
from random import Random

from msgspec.structs import replace

import holdfast
from holdfast import Flow, Queue
from holdfast.core.budgets import TenantSettings
from holdfast.core.job import (
    HOUR,
    SECOND,
    AttemptError,
    ClaimRequest,
    Envelope,
    Finish,
    JobKey,
    NewJob,
    Progress,
    Report,
    Result,
)
from holdfast.core.policy import TypeInfo
from holdfast.maintenance.handlers import SYSTEM_HANDLERS
from holdfast.store import WorkerInfo
from holdfast.testing.conformance import RULES
from holdfast.testing.inline import _InlineContext

MINUTE = 60 * SECOND
TYPES = {
    "emails": ("send_welcome", "send_receipt"), "thumbnails": ("resize_image",), "webhooks": ("deliver_webhook",),
    "invoices": ("render_invoice",), "reports": ("monthly_report",), "finance": ("load_orders",),
}  # fmt: skip
TIMEOUT = AttemptError(
    "ConnectTimeout",
    "hooks.globex.example did not answer within 10 s",
    'Traceback (most recent call last):\n  File "/app/jobs/webhooks.py", line 41, in deliver_webhook\n'
    "    answer = await client.post(url, content=body, timeout=10)\n"
    '  File "/app/.venv/lib/python3.13/site-packages/httpx/_client.py", line 1859, in post\n'
    "    return await self.request(\n           ^^^^^^^^^^^^^^^^^^^\n"
    "httpx.ConnectTimeout: hooks.globex.example did not answer within 10 s",
)
BOUNCED = AttemptError(
    "MailboxUnavailable",
    "550 5.1.1 <kim@initech.example>: user unknown",
    'Traceback (most recent call last):\n  File "/app/jobs/emails.py", line 18, in send_receipt\n'
    "    raise MailboxUnavailable(reply)\njobs.emails.MailboxUnavailable: 550 5.1.1 user unknown",
)
CORRUPT = AttemptError("DecompressionBombError", "Image size (320000000 pixels) exceeds limit of 178956970 pixels")
SLOW = AttemptError(
    "OperationalError",
    "canceling statement due to statement timeout",
    'Traceback (most recent call last):\n  File "/app/jobs/reports.py", line 63, in monthly_report\n'
    "    rows = await db.fetch(QUERY, region)\n"
    "asyncpg.exceptions.QueryCanceledError: canceling statement due to statement timeout",
)
PAUSED_AT, REPORT_AT, FLOWS_AT = 55, (98, 106), (84, 95, 109)
AGO_S = 600
"""How long ago the busy time began: the chart shows ten minutes."""


@holdfast.job(queue="finance")
async def load_orders(day: str) -> int:
    return len(day)


class Shop:
    """Fills a store whose clock the test moves: what happened in the past is done with the clock set back."""

    def __init__(self, store, tenant="acme"):
        self.store, self.tenant, self.random, self.number = store, tenant, Random(7), 1041

    async def enqueue(self, queue, payload=None, *, id="", type="", delay_ms=0, tenant="", **options):
        self.number += self.random.randint(1, 3)
        type = type or self.random.choice(TYPES[queue])
        id = id or f"{type.replace('_', '-')}-{self.number}"
        payload = payload or {"order": self.number, "customer": f"c-{self.number * 7 % 9973}", "locale": "en-GB"}
        key = JobKey(tenant or self.tenant, queue, id)
        data = json.dumps(payload).encode()
        await self.store.enqueue([NewJob(key, Envelope(type, data, **options), delay_ms=delay_ms)])
        return key

    async def claim(self, queue, worker="worker-eu-1-7f3a", count=1, lease_ms=10 * MINUTE):
        request = ClaimRequest(self.tenant, (queue,), count, lease_ms, worker, 0.5)
        return (await self.store.claim(request)).jobs

    async def end(self, job, error=None, *, outcome="", result=b'{"sent": true}', delay_ms=None):
        outcome = outcome or ("complete" if error is None else "fail")
        kept = Result(result) if error is None else None
        await self.store.finish([Finish(job.key, job.token, outcome, kept, error, delay_ms=delay_ms, random=0.5)])

    async def fill(self):
        """Everything, up to now."""
        now = self.store.shift_clock
        await now(-2 * HOUR)
        await self._workers(0)
        await self._early()
        await now(2 * HOUR - AGO_S * SECOND)
        await self._busy()
        await self._waiting()
        await self._schedules()
        await self._others()
        await self._workers(4)

    async def _early(self):
        """Two hours ago: dead letters in groups."""
        for error, queue, count in ((TIMEOUT, "webhooks", 14), (BOUNCED, "emails", 5), (CORRUPT, "thumbnails", 2)):
            for _ in range(count):
                await self.enqueue(queue, max_attempts=1)
                (job,) = await self.claim(queue)
                message = error.message.replace("globex", self.random.choice(("globex", "hooli", "initech")))
                await self.end(job, replace(error, message=message))
                await self.store.shift_clock(20 * SECOND)
        await self.store.shift_clock(-21 * 20 * SECOND)

    async def _busy(self):
        """The last ten minutes: jobs come and end, with a wave in the middle."""
        flows = self._flows()
        for n in range(AGO_S // 5):
            wave = 4 if 50 < n < 85 else 1
            for _ in range(self.random.randint(wave // 2, wave + 1)):
                queue = self.random.choice(("emails", "emails", "thumbnails", "webhooks", "invoices"))
                await self.enqueue(queue)
                for job in await self.claim(queue):
                    fails = self.random.random() < (0.3 if queue == "webhooks" else 0.02)
                    await self.end(
                        job,
                        TIMEOUT if fails else None,
                        outcome="retry" if fails else "",
                        delay_ms=HOUR if fails else None,
                    )
            if n == PAUSED_AT:
                await self.store.pause(self.tenant, "invoices", paused=True)
            if n in FLOWS_AT:
                await anext(flows)
            if n in REPORT_AT:
                await self._report(n)
            await self.store.shift_clock(5 * SECOND)

    async def _report(self, n):
        """One long job: its first attempt fails, the second one runs now."""
        if n == REPORT_AT[0]:
            payload = {"month": "2026-10", "format": "pdf", "regions": ["EU", "US", "APAC"]}
            await self.enqueue("reports", payload, id="monthly-report-2026-10", type="monthly_report", max_attempts=5)
        (job,) = await self.claim("reports", "worker-eu-2-19cc" if n == REPORT_AT[0] else "worker-eu-1-7f3a")
        if n == REPORT_AT[0]:
            await self.store.shift_clock(4 * SECOND)
            await self.end(job, SLOW, outcome="retry", delay_ms=20 * SECOND)
            await self.store.shift_clock(-4 * SECOND)
        else:
            await self.store.report([Report(job.key, job.token, Progress(0.62, "31 of 50 regions"))])

    async def _waiting(self):
        """What waits, is due later and runs now."""
        for _ in range(12):
            await self.enqueue("emails")
        for minutes in (4, 25, 50):
            await self.enqueue("emails", delay_ms=minutes * MINUTE, type="send_reminder")
        for queue in ("thumbnails", "webhooks"):
            for _ in range(3):
                await self.enqueue(queue)
            await self.claim(queue, "worker-eu-1-7f3a", 3)

    async def _flows(self):
        """Two flows, in steps: of one all but the last steps end."""
        async with Queue(store=self.store, tenant=self.tenant) as queue:
            for id in ("close-2026-11-18", "close-2026-11-17"):
                await queue.start(self._flow(id))
        await self._coordinate()
        for count in (4, 3):
            held = await self.claim("finance", "worker-eu-2-19cc", count)
            yield
            for job in held:
                await self.end(job, result=b"4711")
            await self._coordinate()
        await self.claim("finance", "worker-eu-2-19cc")
        yield

    async def _schedules(self):
        async with Queue(store=self.store, tenant=self.tenant) as queue:
            nightly = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "queue": "reports"}
            await queue.schedule("nightly-close", {"day": "yesterday"}, **nightly)
            await queue.schedule("clean-carts", {"older_than_h": 48}, every=timedelta(hours=1), queue="webhooks")
            await queue.schedule("weekly-digest", {"top": 10}, cron="0 8 * * 1", queue="emails")
            await queue.schedule("send-invoices", {"batch": 500}, every=timedelta(minutes=15), queue="invoices")

    @staticmethod
    def _flow(id):
        flow = Flow("close_the_day", id)
        load = flow.add(load_orders.message("2026-11-18"), name="load-orders")
        stock = flow.add(load_orders.message("stock"), name="load-stock")
        parts = [
            flow.add(load_orders.message(part), name=part, after=[load, stock])
            for part in ("sum-eu", "sum-us", "sum-apac")
        ]
        check = flow.add(load_orders.message("check"), name="cross-check", after=parts)
        books = flow.add(load_orders.message("book"), name="book", after=[check])
        flow.add(load_orders.message("mail"), name="mail-finance", after=[books])
        flow.add(load_orders.message("keep"), name="archive", after=[books])
        return flow

    async def _coordinate(self):
        """What a worker's coordinator does, once for each flow and schedule."""
        request = ClaimRequest(self.tenant, tuple(SYSTEM_HANDLERS), 100, HOUR, "upkeep")
        for job in (await self.store.claim(request)).jobs:
            finish = await SYSTEM_HANDLERS[job.queue].run(job, _InlineContext(self.store))
            await self.store.finish([replace(finish, delay_ms=0)])

    async def _others(self):
        """Other tenants: shares, quotas, a backlog."""
        for tenant, weight, quota, waiting in (
            ("globex", 4.0, None, 240), ("hooli", None, 500, 61), ("initech", None, None, 3), ("umbrella", 0.5, 100, 0),
        ):  # fmt: skip
            await self.store.set_tenant(tenant, TenantSettings(weight=weight, max_waiting=quota))
            for _ in range(waiting):
                await self.enqueue("emails", tenant=tenant)
        await self.store.set_tenant(self.tenant, TenantSettings(weight=2.0, max_waiting=10_000))

    async def _workers(self, late_s):
        """Seen so long ago. They stay for an hour, so that a long test still sees them."""
        types = tuple(TypeInfo(name, queue) for queue, names in TYPES.items() for name in names)
        await self.store.shift_clock(-late_s * SECOND)
        for number, (id, held) in enumerate(
            (("worker-eu-1-7f3a", 7), ("worker-eu-2-19cc", 1), ("worker-us-1-c04d", 0))
        ):
            host = f"{id[7:11]}.shop.example"
            worker = WorkerInfo(id, None, host, 4100 + number, tuple(TYPES), 8, held, types=types)
            await self.store.beat(worker, HOUR)
        await self.store.shift_clock(late_s * SECOND)


def prove(directory):
    """A certificate and an audit as the commands write them, for the page Proof."""
    rules = [{"rule": rule, "held": True, "seconds": 0.1} for rule in RULES]
    checks = [{"check": "a"} for _ in range(214)]
    (directory / "conformance.json").write_text(
        json.dumps({"url": "memory:shop", "held": True, "rules": rules, "checks": checks})
    )
    audit = {
        "events": 1_284_310, "accepted": 412_077, "waiting": 49, "total": 0,
        "rules": [str(rule) for rule in RULES][:28],
        "counts": {}, "violations": [], "notes": [],
    }  # fmt: skip
    (directory / "audit.json").write_text(json.dumps(audit))
