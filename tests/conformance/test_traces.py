"""Random traces: a store and the memory store take the same steps and never differ.

A failure prints the seed, the step, both answers, and the command that runs the trace again.
"""

import asyncio
import shutil
import tempfile
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace

from holdfast.core.events import Event
from holdfast.stores.file import changes, claims, transaction
from holdfast.stores.file.sql import SQL
from holdfast.testing.conformance.expect import Broken
from holdfast.testing.conformance.spaces import Spaces
from holdfast.testing.fdb import NONE, SOME, drop_simulation, open_simulation
from holdfast.testing.servers import ValkeyCluster
from holdfast.testing.traces import MAKERS, VARIANTS, Difference, History, check_trace, draw, open_pair
from holdfast.testing.traces.steps import WEIGHTS

STEPS = 80
SEEDS = 30
BLOCK = 10

REACHED = {
    "enqueue: Queued ready", "enqueue: Queued scheduled", "enqueue: Queued leased",
    "enqueue: Duplicate ready", "enqueue: Duplicate scheduled", "enqueue: Duplicate leased",
    "enqueue: Duplicate retrying", "enqueue: Duplicate failed", "enqueue: Duplicate",
    "enqueue: AlreadyCompleted", "enqueue: QuotaExceeded",
    "claim: some", "claim: none",
    "finish: Finished completed", "finish: Finished failed", "finish: Finished retrying", "finish: Finished ready",
    "finish: Finished scheduled", "finish: JobNotFound", "finish: LeaseLost", "finish: LeaseExpired",
    "finish: JobCanceled",
    "extend: Extended", "extend: JobNotFound", "extend: LeaseLost", "extend: LeaseExpired",
    "report: Reported", "report: JobNotFound", "report: LeaseLost", "report: LeaseExpired",
    "cancel: canceled", "cancel: processing", "cancel: completed", "cancel: failed", "cancel: not_found",
    "replay: Replayed", "replay: NotReplayable", "replay: JobNotFound", "replay: QuotaExceeded",
    "purge: purged", "purge: not_terminal", "purge: not_found",
    "set_result_ttl: updated", "set_result_ttl: not_terminal", "set_result_ttl: not_found",
    "reap: some", "reap: none", "list: Job", "standing: Standing", "stats: QueueStats", "workers: WorkerInfo",
    "events: Event", "events: Trimmed",
}  # fmt: skip


@pytest.fixture
def url(fast, prefix):
    return f"file:{fast}/{prefix}"


async def test_two_memory_stores_never_differ_and_traces_reach_every_kind_of_answer():
    seen = Counter()
    for seed in range(40):
        seen += await check_trace("memory:", seed, STEPS)
    assert REACHED - set(seen) == set()
    assert {kind.partition(":")[0] for kind in seen} == set(MAKERS)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
async def test_the_file_store_never_differs_from_the_memory_store(url, first):
    for seed in range(first, first + BLOCK):
        await check_trace(url, seed, STEPS)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
async def test_the_redis_store_never_differs_from_the_memory_store(valkey, first):
    for seed in range(first, first + BLOCK):
        await check_trace(valkey.url(), seed, STEPS)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
async def test_the_foundationdb_store_never_differs_from_the_memory_store(first):
    """On a simulated cluster, with faults and without."""
    for seed in range(first, first + BLOCK):
        name = f"traces-{seed}"
        open_simulation(name, seed=seed, faults=SOME if seed % 2 else NONE)
        await check_trace(f"fdb:?simulation={name}", seed, STEPS)
        drop_simulation(name)


async def test_the_redis_store_never_differs_on_a_cluster():
    """In one shard: between shards neither turns nor the order of the log are defined."""
    with ValkeyCluster(3) as cluster:
        for seed in range(BLOCK):
            await check_trace(cluster.url(shards=1), seed, STEPS)


class Machine(RuleBasedStateMachine):
    """The same steps, drawn by Hypothesis, which looks for a shorter trace when one fails."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.runner = asyncio.Runner()
        self.pair = None

    @initialize(options=st.sampled_from(VARIANTS))
    def open(self, options):
        self.pair = self.runner.run(open_pair(Spaces(f"file:{self.directory}"), **options))

    @rule(verb=st.sampled_from(list(Counter(WEIGHTS).elements())), random=st.randoms(use_true_random=False))
    def step(self, verb, random):
        self.runner.run(self.pair.perform(draw(random, self.pair.world, verb)))

    def teardown(self):
        if self.pair is not None:
            self.runner.run(self.pair.close())
        self.runner.close()
        shutil.rmtree(self.directory)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=15,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


# The comparison can fail: a store that breaks a rule is found out. ------------------------------------------------


def _younger_first(monkeypatch):
    monkeypatch.setattr(claims, "VISIBLE", claims.VISIBLE.replace("ORDER BY visible_at, seq", "ORDER BY seq DESC"))


def _expired_leases_stay(monkeypatch):
    monkeypatch.setattr(claims, "reap", lambda t, limit, random: [])


def _keys_are_held_for_ever(monkeypatch):
    monkeypatch.setattr(transaction.Transaction, "drop_key", lambda self, job, lane: None)


def _quotas_bound_nothing(monkeypatch):
    monkeypatch.setattr(transaction.Transaction, "over_quota", lambda self, tenant, queue, lane: None)
    monkeypatch.setattr(transaction.Transaction, "has_quota", lambda self, tenant, queue: False)


def _releases_make_no_event(monkeypatch):
    append = transaction.Transaction.append

    def skip(self, event, lane):
        if event.kind != "released":
            append(self, event, lane)

    monkeypatch.setattr(transaction.Transaction, "append", skip)


def _late_completions_count(monkeypatch):
    for name in ("save_completed", "save_one_completed"):
        monkeypatch.setitem(SQL, name, SQL[name].replace(" AND deadline > ?1", ""))


def _the_second_of_two_queues_comes_first(monkeypatch):
    claim = claims.claim
    monkeypatch.setattr(claims, "claim", lambda t, request: claim(t, _turned(request)))


def _turned(request):
    return type(request)(
        request.tenant, request.queues[::-1], request.limit, request.lease_ms, request.worker_id, request.random
    )


def _canceled_jobs_are_not_counted(monkeypatch):
    monkeypatch.setitem(SQL, "move_lane", SQL["move_lane"].replace("canceled + ?", "canceled + 0 * ?"))


def _a_purge_only_says_so(monkeypatch):
    monkeypatch.setattr(changes, "purge", lambda t, items: ["purged" for _ in items])


def _trimming_forgets_the_readers(monkeypatch):
    monkeypatch.setitem(SQL, "slowest_readers", "SELECT tenant, n FROM readers WHERE 0")


@pytest.mark.parametrize(
    "plant",
    [
        _younger_first,
        _expired_leases_stay,
        _keys_are_held_for_ever,
        _quotas_bound_nothing,
        _releases_make_no_event,
        _late_completions_count,
        _the_second_of_two_queues_comes_first,
        _canceled_jobs_are_not_counted,
        _a_purge_only_says_so,
        _trimming_forgets_the_readers,
    ],
)
async def test_a_planted_difference_is_noticed_and_says_how_to_repeat_it(url, monkeypatch, plant):
    plant(monkeypatch)
    with pytest.raises(Difference) as noticed:
        await _until_noticed(url)
    text = str(noticed.value)
    assert "trace with seed " in text
    assert "step " in text
    assert f"python -m holdfast.testing.traces '{url}' --seed " in text


async def _until_noticed(url):
    for seed in range(60):
        await check_trace(url, seed, STEPS)


# The log by itself. -----------------------------------------------------------------------------------------------


def _event(kind, at, attempt, token, data=None):
    return Event(kind, "t", "q", "1", "send", at, attempt, token, "w", data or {})


BORN = _event("enqueued", 1, 0, 0, {"priority": 5, "max_attempts": 2, "visible_at": 1})
CLAIMED = _event("claimed", 2, 1, 7, {"visible_at": 1, "deadline": 10})
RELEASED = _event("released", 3, 1, 7, {"visible_at": 3})
COMPLETED = _event("completed", 3, 1, 7)
AGAIN = {"visible_at": 3, "deadline": 9}


@pytest.mark.parametrize(
    "events, tag",
    [
        pytest.param([CLAIMED], "STATE-1", id="a claim of nothing"),
        pytest.param([BORN, BORN], "STATE-1", id="a second birth"),
        pytest.param([BORN, CLAIMED, _event("claimed", 3, 2, 8, AGAIN)], "STATE-1", id="two leases at once"),
        pytest.param([BORN, CLAIMED, RELEASED, _event("claimed", 4, 1, 7, AGAIN)], "CLAIM-1", id="a token twice"),
        pytest.param([BORN, CLAIMED, RELEASED, _event("claimed", 4, 1, 6, AGAIN)], "LEASE-5", id="a falling token"),
        pytest.param([BORN, CLAIMED, _event("completed", 3, 2, 7)], "RETRY-1", id="an attempt too many"),
        pytest.param([BORN, CLAIMED, _event("completed", 3, 1, 6)], "LEASE-1", id="an ending by another lease"),
        pytest.param([BORN, CLAIMED, _event("completed", 10, 1, 7)], "LEASE-1", id="an ending at the deadline"),
        pytest.param([BORN, CLAIMED, _event("expired", 9, 1, 7, AGAIN)], "LEASE-1", id="an expiry too early"),
        pytest.param(
            [BORN, CLAIMED, _event("failed", 3, 1, 7, {"reason": "max_attempts"})], "RETRY-1", id="given up too early"
        ),
        pytest.param(
            [BORN, CLAIMED, COMPLETED, _event("replayed", 4, 0, 7, AGAIN)], "STATE-1", id="a replayed success"
        ),
        pytest.param([BORN, _event("canceled", 0, 0, 0)], "EVENT-2", id="time that goes back"),
        pytest.param([BORN, CLAIMED, replace(COMPLETED, number=4)], "EVENT-1", id="a number left out"),
        pytest.param([BORN, CLAIMED, replace(COMPLETED, number=2)], "EVENT-1", id="a number twice"),
        pytest.param(
            [BORN, CLAIMED, COMPLETED, replace(BORN, at=4, number=4)], "EVENT-1", id="a life that goes on counting"
        ),
    ],
)
def test_an_impossible_log_is_refused(events, tag):
    history = History(extensions=True)
    *legal, illegal = (replace(event, number=event.number or n) for n, event in enumerate(events, 1))
    for event in legal:
        history.add(event)
    with pytest.raises(Broken, match=tag):
        history.add(illegal)
