"""EVENT-1: the event of an operator's cancel, replay or purge names the operator, and no other event does."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.events import Event
from holdfast.core.job import Cancel, JobKey, JobState, Purge
from holdfast.testing.conformance.expect import expect_equal
from holdfast.testing.conformance.harness import Harness
from holdfast.testing.conformance.rules import rule

NAMES = ("ann@example.com", "", "Ünal 'x' \u2192 " + 150 * "é")
"""Operators, and "" for a program."""


async def expect_named(h: Harness, kind: str, wanted: Sequence[tuple[JobKey, str]]) -> list[Event]:
    """Fail unless the log has these events of one kind, each with the operator that is given or with none."""
    found = [event for event in await h.events() if event.kind == kind]
    seen = [(event.queue, event.job_id, event.data.get("by", "")) for event in found]
    expect_equal(seen, [(key.queue, key.id, by) for key, by in wanted], f"who acted, by the {kind} events")
    unnamed = [by for event, (_, by) in zip(found, wanted, strict=True) if ("by" in event.data) != bool(by)]
    expect_equal(unnamed, [], "events of programs that name an operator")
    return found


@rule("EVENT-1")
async def a_canceled_event_names_the_operator(h: Harness) -> None:
    """Alone and in a batch, from waiting and from running. A repeat makes no second event."""
    jobs = [await h.job_in(state) for state in (JobState.READY, JobState.LEASED) for _ in range(2 * len(NAMES))]
    named = [(job.key, NAMES[n % len(NAMES)]) for n, job in enumerate(jobs)]
    alone, together = named[::2], named[1::2]
    for key, by in alone:
        expect_equal(await h.store.cancel([Cancel(key, by=by)]), ["canceled"], "cancel of one")
    await h.store.cancel([Cancel(key, by=by) for key, by in together])
    for key, _ in named:
        expect_equal(await h.store.cancel([Cancel(key, by="bob")]), ["canceled"], "cancel again")
    await expect_named(h, "canceled", [*alone, *together])


@rule("EVENT-1")
async def a_replayed_event_names_the_operator(h: Harness) -> None:
    """Alone and in a batch. A repeat makes no second event."""
    wanted: list[tuple[JobKey, str]] = []
    for by in NAMES:
        keys = [(await h.job_in(JobState.FAILED)).key for _ in range(3)]
        for some in (keys[:1], keys[1:]):
            await h.store.replay(some, by=by)
            wanted += [(key, by) for key in some]
        await h.store.replay(keys, by="bob")
    found = await expect_named(h, "replayed", wanted)
    expect_equal([event.data.get("replays") for event in found], [1] * len(found), "replays by the events")


@rule("EVENT-1")
async def a_purged_event_names_the_operator(h: Harness) -> None:
    """Alone and in a batch of two queues. A repeat makes no second event, and each event still has its number."""
    keys = [(await h.job_in(state)).key for state in (JobState.COMPLETED, JobState.FAILED) for _ in range(len(NAMES))]
    named = [(key, NAMES[n % len(NAMES)]) for n, key in enumerate(keys)]
    for key, by in named[:3]:
        expect_equal(await h.store.purge([Purge(key, by=by)]), ["purged"], "purge of one")
    await h.store.purge([Purge(key, by=by) for key, by in named[3:]])
    for key, _ in named:
        expect_equal(await h.store.purge([Purge(key, by="bob")]), ["not_found"], "purge again")
    found = await expect_named(h, "purged", named)
    expect_equal([event.data.get("purge") for event in found], list(range(1, len(found) + 1)), "numbers of the purges")
