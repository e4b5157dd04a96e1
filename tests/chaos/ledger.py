"""What must be true of a store whatever happened to its workers, worked out from its event log."""

from collections import defaultdict

from holdfast.core.job import JobKey, JobState
from tests.log import all_events

ENDS_LEASE = {"completed", "retried", "released", "expired", "failed", "canceled"}


async def all_jobs(store, keys):
    """The jobs under these keys, in any number."""
    jobs = []
    for start in range(0, len(keys), 1000):
        jobs += await store.get(keys[start : start + 1000])
    return jobs


async def check(store, tenant, ids):
    """Every job exists in one state, leases never overlap, attempts are exact, and no job completed twice.

    Returns the jobs by id.
    """
    jobs = await _jobs(store, tenant, ids)
    histories = defaultdict(list)
    for event in await all_events(store, tenant):
        histories[event.job_id].append(event)
    assert set(histories) == set(ids), "an event for each job, and for no other"
    tokens = []
    for id_, events in histories.items():
        tokens += _check_one(jobs[id_], events)
    assert len(set(tokens)) == len(tokens), "a token was used twice"
    return jobs


async def _jobs(store, tenant, ids):
    found = await all_jobs(store, [JobKey(tenant, "default", id_) for id_ in ids])
    lost = [id_ for id_, job in zip(ids, found, strict=True) if job is None]
    assert not lost, f"jobs were lost: {lost}"
    return dict(zip(ids, found, strict=True))


def _check_one(job, events):
    kinds = [event.kind for event in events]
    assert kinds[0] == "enqueued", kinds
    assert kinds.count("enqueued") == 1, kinds
    assert kinds.count("completed") <= 1, f"{job.id} completed twice: {kinds}"
    attempts, leased, tokens = 0, False, []
    for event in events[1:]:
        if event.kind == "claimed":
            assert not leased, f"two live leases of {job.id}: {kinds}"
            leased, attempts = True, attempts + 1
            assert not tokens or event.token > tokens[-1], "the fence must grow"
            tokens.append(event.token)
            assert event.attempt == attempts
        elif event.kind in ENDS_LEASE:
            assert leased or event.kind == "canceled", f"{event.kind} of {job.id} without a lease: {kinds}"
            leased = False
            if event.kind == "released":
                attempts -= 1
            assert not tokens or event.token == tokens[-1], "an outcome under a token that was not the last one"
    assert job.attempts == attempts, f"{job.id}: {job.attempts} attempts, {attempts} by its events: {kinds}"
    assert leased == (job.state is JobState.LEASED)
    if job.state is JobState.COMPLETED:
        assert kinds[-1] == "completed"
    return tokens
