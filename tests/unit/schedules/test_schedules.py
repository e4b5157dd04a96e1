"""Schedules as they are kept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import (
    InvalidName,
    InvalidOption,
    JobState,
    Message,
    PayloadTooLarge,
    Queue,
    QuotaExceeded,
    StoreBusy,
    blocking,
    job,
)
from holdfast.core import schedule as core
from holdfast.core.job import Cancel, JobKey
from holdfast.core.names import SCHEDULES
from tests.unit.running import asynchronous, claim, finish, memory_queue


@job(queue="emails", priority=7, max_attempts=2)
async def send_email(to: str, template: str = "welcome") -> str:
    return f"{template} -> {to}"


NIGHTLY = {"cron": "30 2 * * *", "timezone": "Europe/Berlin"}


@asynchronous
async def test_a_schedule_stores_everything_that_its_jobs_need():
    async with memory_queue() as queue:
        made = await queue.schedule("nightly", send_email.message("ops@example.com"), **NIGHTLY, result_ttl=60)
        found = await queue.get_schedule("nightly")
        assert found is not None
        assert found.as_dict() == made.as_dict()
        assert (found.name, found.cron, found.every, found.timezone) == ("nightly", "30 2 * * *", None, "Europe/Berlin")
        assert (found.queue, found.type, found.priority, found.max_attempts) == ("emails", "send_email", 7, 2)
        assert found.payload == {"to": "ops@example.com", "template": "welcome"}
        assert found.state is JobState.SCHEDULED
        assert found.created_at < found.next_at <= found.created_at + timedelta(days=1, hours=1)
        assert "nightly of emails" in repr(found)
        kept = await queue.get("nightly", queue=SCHEDULES)
        assert kept is not None
        assert kept.visible_at == found.next_at
        assert core.read(kept._job.envelope.payload).target.envelope.result_ttl_ms == 60_000


@asynchronous
async def test_a_payload_in_another_codec_is_returned_unchanged():
    async with memory_queue() as queue:
        await queue.schedule("packed", Message.raw({"data": b"\0\xff"}, "t", codec="msgpack"), every=60)
        found = await queue.get_schedule("packed")
        assert found is not None
        assert found.payload == {"data": b"\0\xff"}


@asynchronous
async def test_schedules_of_one_tenant_are_listed_by_name():
    async with memory_queue() as queue, Queue(store=queue.store, tenant="other") as other:
        for name in ("b", "a", "c"):
            await queue.schedule(name, {"n": name}, every=timedelta(hours=1))
        await queue.unschedule("c")
        assert [one.name for one in await queue.schedules()] == ["a", "b"]
        assert await other.schedules() == []
        assert await other.get_schedule("a") is None
        assert await other.unschedule("a") is False
        assert [one.name for one in await queue.schedules()] == ["a", "b"]


@asynchronous
async def test_the_same_again_changes_nothing():
    async with memory_queue() as queue:
        first = await queue.schedule("hourly", send_email.message("a@example.com"), every=3600)
        await queue.store.shift_clock(600_000)
        again = await queue.schedule("hourly", send_email.message("a@example.com"), every=timedelta(hours=1))
        assert (again.next_at, again.created_at) == (first.next_at, first.created_at)
        kinds = [event.kind async for event in queue.events()]
        assert kinds == ["enqueued"]


@asynchronous
async def test_another_message_with_the_same_timing_keeps_the_next_tick():
    """Otherwise deploys that are more frequent than the ticks would keep it from ever running."""
    async with memory_queue() as queue:
        first = await queue.schedule("hourly", send_email.message("a@example.com"), every=3600)
        await queue.store.shift_clock(3_000_000)
        changed = await queue.schedule("hourly", send_email.message("b@example.com"), every=3600)
        assert changed.payload["to"] == "b@example.com"
        assert changed.next_at == first.next_at
        await queue.store.shift_clock(3_000_000)
        overdue = await queue.schedule("hourly", send_email.message("c@example.com"), every=3600)
        assert overdue.next_at == first.next_at
        assert overdue.state is JobState.READY


@asynchronous
async def test_another_timing_begins_now():
    async with memory_queue() as queue:
        first = await queue.schedule("it", {"n": 1}, every=3600)
        await queue.store.shift_clock(600_000)
        changed = await queue.schedule("it", {"n": 1}, every=60)
        assert changed.next_at == first.created_at + timedelta(minutes=11)
        assert len(await queue.schedules()) == 1


@asynchronous
async def test_of_concurrent_changes_to_a_schedule_one_is_last():
    async with memory_queue() as queue:
        await asyncio.gather(*(queue.schedule("it", {"n": n % 3}, every=60) for n in range(9)))
        (only,) = await queue.schedules()
        assert only.payload["n"] in range(3)


@asynchronous
async def test_a_schedule_that_changes_at_every_try_is_given_up(monkeypatch):
    async with memory_queue() as queue:
        await queue.schedule("it", {"n": 0}, every=60)
        ours = queue.store.cancel

        async def cancel(items):
            """Cancels, and another process enqueues the next one first."""
            done = await ours(items)
            timing = core.Timing(every_ms=60_000)
            new = core.Definition(timing, 0, core.Target("default", core.Envelope("", b"{}")))
            await queue.store.enqueue([core.to_job(queue.tenant, "it", new, 2**50, "")])
            return done

        monkeypatch.setattr("holdfast.schedules.schedules.TRIES", 3)
        monkeypatch.setattr(queue.store, "cancel", cancel)
        with pytest.raises(StoreBusy, match="others keep changing"):
            await queue.schedule("it", {"n": 1}, every=60)


@asynchronous
async def test_removing_a_schedule_says_whether_there_was_one():
    async with memory_queue() as queue:
        assert await queue.unschedule("it") is False
        await queue.schedule("it", {"n": 1}, every=60)
        assert await queue.unschedule("it") is True
        assert await queue.unschedule("it") is False
        assert await queue.get_schedule("it") is None
        again = await queue.schedule("it", {"n": 1}, every=60)
        assert again.state is JobState.SCHEDULED


@asynchronous
async def test_a_failed_schedule_is_shown_and_can_be_removed_or_put_again():
    async with memory_queue() as queue:
        for end in (queue.unschedule, lambda name: queue.schedule(name, {"n": 1}, every=60)):
            await queue.schedule("it", {"n": 1}, every=60)
            await queue.store.shift_clock(60_000)
            (held,) = await claim(queue, SCHEDULES)
            await finish(queue, held, "fail")
            (shown,) = await queue.schedules()
            assert shown.state is JobState.FAILED
            assert await end("it")
            assert [one.state for one in await queue.schedules() if one.state is JobState.FAILED] == []


@asynchronous
async def test_a_tenant_at_its_quota_gets_no_new_schedule_and_keeps_its_own():
    async with memory_queue() as queue:
        await queue.schedule("it", {"n": 1}, every=60)
        await queue.set_tenant(max_waiting=1)
        with pytest.raises(QuotaExceeded):
            await queue.schedule("another", {"n": 1}, every=60)
        changed = await queue.schedule("it", {"n": 2}, every=60)
        assert changed.payload == {"n": 2}


@asynchronous
async def test_a_schedule_that_a_tenant_at_its_quota_replaces_stays_unchanged():
    async with memory_queue() as queue:
        first = await queue.schedule("it", {"n": 1}, every=60)
        await queue.enqueue({}, id="another")
        await queue.set_tenant(max_waiting=1)
        with pytest.raises(QuotaExceeded):
            await queue.schedule("it", {"n": 2}, every=60)
        assert [(one.payload, one.next_at) for one in await queue.schedules()] == [({"n": 1}, first.next_at)]
        await queue.set_tenant(max_waiting=2)
        assert (await queue.schedule("it", {"n": 2}, every=60)).payload == {"n": 2}


@asynchronous
async def test_a_replacement_of_a_schedule_waits_for_room(monkeypatch):
    async with memory_queue() as queue:
        first = await queue.schedule("it", {"n": 1}, every=60)
        ours, refusals = queue.store.enqueue, [QuotaExceeded(None, 1, 1), QuotaExceeded(None, 1, 1)]

        async def enqueue(items):
            return [refusals.pop()] if refusals else await ours(items)

        monkeypatch.setattr(queue.store, "enqueue", enqueue)
        changed = await queue.schedule("it", {"n": 2}, every=60)
        assert (changed.next_at, refusals) == (first.next_at, [])
        assert [one.payload for one in await queue.schedules()] == [{"n": 2}]


@asynchronous
async def test_a_schedule_of_a_newer_version_is_not_shown_and_can_be_replaced():
    async with memory_queue() as queue:
        await queue.schedule("it", {"n": 1}, every=60)
        (kept,) = await queue.store.get([JobKey("acme", SCHEDULES, "it")])
        newer = core.NewJob(kept.key, core.Envelope(core.TYPE, kept.envelope.payload[:-1] + b',"format":2}'))
        await queue.store.cancel([Cancel(kept.key)])
        await queue.store.enqueue([newer])
        assert await queue.schedules() == []
        assert await queue.get_schedule("it") is None
        assert (await queue.schedule("it", {"n": 1}, every=60)).payload == {"n": 1}
        assert len(await queue.schedules()) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"id": "x"},
        {"delay": 5},
        {"run_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"idempotency_key": "k"},
        {"replace_failed": True},
    ],
)
@asynchronous
async def test_options_of_a_single_job_are_refused(options):
    async with memory_queue() as queue:
        with pytest.raises(InvalidOption, match="a schedule makes many"):
            await queue.schedule("it", Message.raw({}).options(**options), every=60)
        assert await queue.schedules() == []


@asynchronous
async def test_bad_names_and_large_payloads_are_refused():
    async with memory_queue() as queue:
        with pytest.raises(InvalidName, match="up to 170"):
            await queue.schedule("n" * 171, {}, every=60)
        for size in (300_000, 262_144 - 20):
            with pytest.raises(PayloadTooLarge):
                await queue.schedule("big", {"text": "x" * size}, every=60)
        assert (await queue.schedule("big", {"text": "x" * 261_000}, every=60)).state is JobState.SCHEDULED
        with pytest.raises(InvalidName, match="reserved for schedules and flows"):
            await queue.schedule("it", {}, every=60, queue="holdfast:schedules")


def test_the_job_of_a_tick_is_always_the_same():
    target = core.Target("emails", core.Envelope("send", b"{}"))
    tick = 1_794_794_400_000
    made = core.job_of("acme", "nightly", target, tick, tick + 3_600_000)
    assert made == core.job_of("acme", "nightly", target, tick, tick + 3_600_000)
    assert made.key == JobKey("acme", "emails", "nightly@2026-11-16T02:00:00Z")
    assert made.envelope.request_id == made.key.id
    assert made.envelope.idempotency is not None
    assert made.envelope.idempotency.ttl_ms == 25 * 3_600_000
    assert core.tick_text(tick + 250) == "2026-11-16T02:00:00.250Z"


def test_blocking_code_has_the_same_methods():
    with blocking.Queue("memory:blocking-schedules", tenant="acme") as queue:
        assert queue.schedule("it", send_email.message("a@example.com"), every=60).name == "it"
        assert [one.name for one in queue.schedules()] == ["it"]
        assert queue.get_schedule("it") is not None
        assert queue.unschedule("it") is True
