"""Every change of a few jobs beside every other one; `python -m tests.stores.lives` goes on for longer."""

import asyncio
import itertools
from collections import Counter

import pytest

from holdfast.opening import open_store
from tests.log import all_events
from tests.stores.lives import judge, live

ACTS = 300
KINDS = {"enqueued", "claimed", "completed", "failed", "canceled"}


@pytest.fixture(params=["memory", "file", "valkey", "postgres"])
def kind(request):
    return request.param


async def test_answers_and_events_agree_under_concurrent_calls(plain_url):
    stores = [await open_store(plain_url) for _ in range(2)]
    actors, events = [], []
    while not {event.kind for event in events} >= KINDS:  # A slow machine may need more than one round.
        acts, round_ = itertools.count(), len(actors)
        lives = (live(store, f"{round_}.{n}", lambda acts=acts: next(acts) < ACTS) for n, store in enumerate(stores))
        actors += [actor for group in await asyncio.gather(*lives) for actor in group]
        events = await all_events(stores[0])
    for store in stores:
        await store.close()
    canceled = [id_ for actor in actors for id_ in actor.canceled]
    assert judge(events, sum((actor.said for actor in actors), Counter()), canceled) == []
