"""Faults planted into real histories: each edits the rows of one shard and says which events must be found.

A plant is given the rows of a shard in order and answers the rows with the fault in them, and what the audit has to
find: (rule, job, position of the offending event). It raises Unfit where the history has no place for it.
"""

import json
from datetime import timedelta
from itertools import pairwise

TICK = timedelta(milliseconds=1)
JOB = ("tenant", "queue", "job_id")


class Unfit(Exception):
    pass


def job_of(row):
    return tuple(row[name] for name in JOB)


def kinds(events):
    return [event["kind"] for event in events]


def histories(rows):
    found = {}
    for row in rows:
        found.setdefault(job_of(row), []).append(row)
    return found.values()


def pick(rows, *endings, where=lambda events: True):
    """A job whose history ends with these kinds."""
    for events in histories(rows):
        if tuple(kinds(events)[-len(endings) :]) == endings and where(events):
            return events
    raise Unfit


def changed(rows, row, **facts):
    return [other | facts if other is row else other for other in rows]


def inserted(rows, after, **facts):
    """A copy of a row right after it, the last of its job, with other facts, as if the store had logged it."""
    number = 1 if facts.get("kind", after["kind"]) == "enqueued" else after["number"] + 1
    copy = after | {"position": after["position"] + "5", "offset": after["offset"] + "+", "number": number} | facts
    place = next(n for n, row in enumerate(rows) if row is after) + 1
    return [*rows[:place], copy, *rows[place:]], copy


def only(rule, row):
    return {(rule, job_of(row), row["position"])}


def two_live_leases(rows):
    last = pick(rows, "claimed")[-1]
    token = max(row["token"] for row in rows) + 1
    rows, copy = inserted(rows, last, token=token, attempt=last["attempt"] + 1, worker_id="other")
    return rows, only("CLAIM-1", copy)


def a_token_that_shrinks(rows):
    events = pick(rows, "claimed", where=lambda events: kinds(events).count("claimed") > 1)
    first = next(event for event in events if event["kind"] == "claimed")
    return changed(rows, events[-1], token=first["token"]), only("LEASE-5", events[-1])


def a_token_of_another_job(rows):
    for events in histories(rows):
        last = events[-1]
        for other in rows:
            granted = other["kind"] == "claimed" and other["position"] < last["position"]
            if last["kind"] == "claimed" and granted and other["tenant"] == last["tenant"] and other not in events:
                return changed(rows, last, token=other["token"]), only("LEASE-5", last)
    raise Unfit


def a_change_after_the_end(rows):
    last = pick(rows, "claimed", "completed")[-1]
    rows, copy = inserted(rows, last, kind="retried", at=last["at"] + TICK)
    return rows, only("STATE-2", copy)


def attempts_over_the_limit(rows):
    events = pick(rows, "enqueued", "claimed", "retried", "claimed", where=lambda events: len(events) == 4)
    found = only("RETRY-1", events[2]) | only("RETRY-1", events[3])
    return changed(rows, events[0], max_attempts=1), found


def an_attempt_that_was_not_counted(rows):
    last = pick(rows, "enqueued", "claimed", where=lambda events: events[-2]["max_attempts"] == 3)[-1]
    return changed(rows, last, attempt=3), only("RETRY-1", last)


def an_ack_after_the_cancel(rows):
    last = pick(rows, "claimed", "canceled")[-1]
    rows, copy = inserted(rows, last, kind="completed", at=last["at"] + TICK)
    return rows, only("CANCEL-1", copy)


def a_foreign_tenants_event(rows):
    last = pick(rows, "claimed", "completed")[-1]
    moved = last | {"tenant": "stranger-" + last["tenant"]}
    return [moved if row is last else row for row in rows], only("EVENT-3", moved)


def a_gap_in_the_middle(rows):
    events = pick(rows, "enqueued", "claimed", "completed")
    return [row for row in rows if row is not events[-2]], only("EVENT-1", events[-1])


def a_gap_at_the_beginning(rows):
    events = pick(rows, "enqueued", "claimed", where=lambda events: len(events) == 2)
    return [row for row in rows if row is not events[0]], only("EVENT-1", events[1])


def a_late_ack(rows):
    events = pick(rows, "claimed", "completed")
    return changed(rows, events[-1], at=events[-2]["deadline"]), only("LEASE-1", events[-1])


def an_event_read_twice(rows):
    last = pick(rows, "claimed")[-1]
    return [*rows, last], only("EVENT-1", last)


def an_event_recorded_twice(rows):
    last = pick(rows, "claimed", "completed")[-1]
    rows, copy = inserted(rows, last)
    return rows, only("EVENT-1", copy)


def a_claim_before_its_time(rows):
    events = pick(rows, "enqueued", "claimed")
    return changed(rows, events[-2], visible_at=events[-1]["at"] + TICK), only("ENQ-5", events[-1])


def a_retry_before_its_time(rows):
    events = pick(rows, "retried", "claimed")
    return changed(rows, events[-2], visible_at=events[-1]["at"] + TICK), only("CLAIM-2", events[-1])


def a_priority_that_does_not_exist(rows):
    last = pick(rows, "enqueued")[-1]
    return changed(rows, last, priority=12), only("CLAIM-2", last)


def a_purge_of_a_live_job(rows):
    last = pick(rows, "claimed")[-1]
    rows, copy = inserted(rows, last, kind="purged", at=last["at"] + TICK)
    return rows, only("KEEP-1", copy)


def an_id_taken_twice(rows):
    last = pick(rows, "enqueued")[-1]
    rows, copy = inserted(rows, last, at=last["at"] + TICK)
    return rows, only("ENQ-2", copy)


def a_replay_of_a_success(rows):
    last = pick(rows, "claimed", "completed")[-1]
    rows, copy = inserted(rows, last, kind="replayed", attempt=0, at=last["at"] + TICK)
    return rows, only("STATE-3", copy)


def an_event_older_than_the_one_before(rows):
    events = pick(rows, "claimed", "completed", where=lambda events: events[-1]["position"] < rows[-1]["position"])
    return changed(rows, events[-1], at=events[-2]["at"] - timedelta(seconds=1)), only("EVENT-2", events[-1])


def an_expiry_before_the_deadline(rows):
    events = pick(rows, "claimed", "expired")
    return changed(rows, events[-2], deadline=events[-1]["at"] + TICK), only("LEASE-3", events[-1])


def an_ending_by_another_worker(rows):
    last = pick(rows, "claimed", "completed")[-1]
    return changed(rows, last, worker_id="other"), only("LEASE-1", last)


def an_ending_by_an_older_lease(rows):
    events = pick(rows, "claimed", "completed", where=lambda events: kinds(events).count("claimed") > 1)
    first = next(event for event in events if event["kind"] == "claimed")
    return changed(rows, events[-1], token=first["token"]), only("LEASE-1", events[-1])


def a_lease_brought_back(rows):
    last = pick(rows, "claimed", "expired")[-1]
    rows, copy = inserted(rows, last, kind="extended", at=last["at"] + TICK, deadline=last["at"] + timedelta(hours=1))
    return rows, only("LEASE-2", copy)


def a_note_that_is_missing(rows):
    """Only its number tells."""
    for events in histories(rows):
        for note, following in pairwise(events):
            if note["kind"] in ("extended", "progressed") and following["kind"] != "enqueued":
                return [row for row in rows if row is not note], only("EVENT-1", following)
    raise Unfit


def an_event_recorded_twice_with_one_between(rows):
    events = pick(rows, "claimed", "completed")
    copy = events[-2] | {"position": events[-1]["position"] + "5", "offset": events[-1]["offset"] + "+"}
    place = next(n for n, row in enumerate(rows) if row is events[-1]) + 1
    return [*rows[:place], copy, *rows[place:]], only("EVENT-1", copy)


def an_unknown_kind(rows):
    last = pick(rows, "claimed", "completed")[-1]
    return changed(rows, last, kind="vanished"), only("EVENT-1", last)


def purges_of_one_tenant(rows):
    """Of a tenant that has several, in one count."""
    found = {}
    for row in rows:
        if row["kind"] == "purged":
            found.setdefault((row["tenant"], json.loads(row["data"])["series"]), []).append(row)
    for purged in found.values():
        if len(purged) > 1:
            return purged
    raise Unfit


def a_purge_that_is_missing(rows):
    """The record of the job is gone too: only the number of the next purge tells."""
    first, second, *_ = purges_of_one_tenant(rows)
    return [row for row in rows if row is not first], only("EVENT-1", second)


def two_purges_with_one_number(rows):
    *_, before, last = purges_of_one_tenant(rows)
    return changed(rows, last, data=before["data"]), only("EVENT-1", last)


PLANTS = (
    two_live_leases, a_token_that_shrinks, a_token_of_another_job, a_change_after_the_end, attempts_over_the_limit,
    an_attempt_that_was_not_counted, an_ack_after_the_cancel, a_foreign_tenants_event, a_gap_in_the_middle,
    a_gap_at_the_beginning, a_late_ack, an_event_read_twice, an_event_recorded_twice, a_claim_before_its_time,
    a_retry_before_its_time, a_priority_that_does_not_exist, a_purge_of_a_live_job, an_id_taken_twice,
    a_replay_of_a_success, an_event_older_than_the_one_before, an_expiry_before_the_deadline,
    an_ending_by_another_worker, an_ending_by_an_older_lease, a_lease_brought_back, a_note_that_is_missing,
    an_event_recorded_twice_with_one_between, an_unknown_kind, a_purge_that_is_missing, two_purges_with_one_number,
)  # fmt: skip
