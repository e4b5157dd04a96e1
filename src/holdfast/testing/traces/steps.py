"""The steps of a trace: drawn at random, from few names so that they collide, mostly about jobs that exist.

A step is the same for every store: instants count from the moment a store was opened, a token is the rank at which
it was granted, an offset is a position in the log. `Side` translates them for its store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.core.job import (
    DAY,
    HOUR,
    SECOND,
    WAITING,
    AttemptError,
    Backoff,
    Cancel,
    ClaimRequest,
    Envelope,
    Extend,
    Finish,
    IdempotencyKey,
    Job,
    JobKey,
    JobState,
    NewJob,
    Progress,
    Purge,
    Report,
    Result,
    SetResultTtl,
)
from holdfast.store import ListQuery, TenantSettings, WorkerInfo

T = TypeVar("T")

# Names that a careless encoding would mix up: `a` + `b:q` and `a:b` + `q`, a name inside a name.
TENANTS = ("a", "a.b", "ab")
QUEUES = ("q", "b:q", "b/q")
LIKELY_QUEUES = ("q", "q", "q", "b:q", "b:q", "b/q")
IDS = ("1", "2", "b:q:1", "é")
TYPES = ("send", "send", "k:send")
KEYS = ("k", "q:k")
WORKERS = ("w1", "w:2")
READERS = ("audit", "mirror")
REQUESTS = ("", "", "", "r1", "r:2")
OPERATORS = ("", "ann", "é")

LEASES = (1 * SECOND, 5 * SECOND, 30 * SECOND, 12 * HOUR)
PAUSES = (1, 999, 1 * SECOND, 5 * SECOND, 30 * SECOND, 60 * SECOND)
LONG_PAUSES = (1 * HOUR, 1 * DAY, 8 * DAY)
BACKOFFS = (
    Backoff(1 * SECOND, 1.0, 1 * SECOND, "none"),
    Backoff(5 * SECOND, 2.0, 8 * SECOND, "full"),
    Backoff(2 * SECOND, 3.0, 300 * SECOND, "equal"),
    Backoff(0, 2.0, 0, "full"),
)
RANDOMS = (0.0, 0.25, 0.7310585786300049, 0.999999)
PAYLOADS = (b"{}", b"", b"\x00\xff", b"x" * 1024, b"y" * 3000)
ERRORS = (
    None,
    AttemptError("Boom", "item 17 broke", "Traceback ..."),
    AttemptError("Boom", "item 18 broke"),
    AttemptError("a.b.Timeout", "über 'alles'"),
)


class TraceStep(Struct, frozen=True):
    """One call, through one of the handles on the same data."""

    verb: str
    arguments: tuple[Any, ...] = ()
    handle: int = 0


class World(Struct):
    """What is known about both stores after the steps so far. The next step is drawn from it."""

    now: int = 0
    log: int = 0
    """The number of events so far."""
    marks: list[int] = field(default_factory=lambda: [0])
    """Positions in the log whose offsets are known."""
    keyed: list[tuple[str, str, str, str]] = field(default_factory=list[tuple[str, str, str, str]])
    """Tenant, queue, type and idempotency key of each enqueue with a key, in order."""
    records: dict[JobKey, Job | None] = field(default_factory=dict[JobKey, Job | None])
    """Every job named so far, as the reference has it, with its instants and tokens in the values of a step."""
    grants: list[tuple[JobKey, int]] = field(default_factory=list[tuple[JobKey, int]])
    """Every lease granted so far, in order. The rank of a token is its place here, counted from 1."""
    made: int = 0
    """The number of ids made up."""
    blobs: int = 0


Maker = Callable[[Random, World], TraceStep]


def draw(random: Random, world: World, verb: str | None = None) -> TraceStep:
    """Draw the next step: with this verb, or with any, by `WEIGHTS`."""
    if verb is None:
        verb = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    if verb in ("finish", "extend", "report") and not _live(world) and not _rarely(random, 4):
        verb = "claim"
    step = MAKERS[verb](random, world)
    return TraceStep(step.verb, step.arguments, random.randrange(2))


# Jobs -------------------------------------------------------------------------------------------------------


def enqueue(random: Random, world: World) -> TraceStep:
    """A batch of new jobs: often in one lane, sometimes the same id twice."""
    count = random.choice((1, 1, 2, 3, 6))
    lane = _lane(random)
    spread = _rarely(random, 3)
    return TraceStep("enqueue", ([_new(random, world, _lane(random) if spread else lane) for _ in range(count)],))


def _new(random: Random, world: World, lane: tuple[str, str]) -> NewJob:
    envelope = _envelope(random)
    if envelope.idempotency and world.keyed and _rarely(random, 2):
        # A key that was used before, in its own scope.
        tenant, queue, type_, taken = random.choice(_last(world.keyed, 8))
        lane = (tenant, queue)
        envelope = replace(envelope, type=type_, idempotency=replace(envelope.idempotency, key=taken))
    key = JobKey(*lane, random.choice(IDS))
    if random.random() < (0.8 if envelope.idempotency else 0.4):
        world.made += 1
        key = JobKey(*lane, f"made-{world.made}")
    elif _rarely(random, 3):
        # The same request again, as after a lost reply.
        key = _known(random, world)
        known = world.records.get(key)
        envelope = replace(envelope, request_id=known.envelope.request_id if known else "r1")
    if envelope.idempotency:
        world.keyed.append((key.tenant, key.queue, envelope.type, envelope.idempotency.key))
    run_at: int | None = None
    if _rarely(random, 5):
        run_at = world.now + random.choice((-5 * SECOND, 0, 1, 5 * SECOND, 100 * DAY))
    delay_ms = random.choice((1, 1 * SECOND, 30 * SECOND, 2 * DAY)) if _rarely(random, 4) else 0
    return NewJob(key, envelope, delay_ms, run_at, replace_failed=_rarely(random, 3))


def _envelope(random: Random) -> Envelope:
    idempotency: IdempotencyKey | None = None
    if _rarely(random, 3):
        policy = random.choice(("until_terminal", "until_started", "ttl", "forever"))
        ttl_ms = random.choice((1 * SECOND, 60 * SECOND, 2 * DAY)) if policy == "ttl" else 0
        idempotency = IdempotencyKey(random.choice(KEYS), policy, ttl_ms)
    plain = random.random() < 0.5
    return Envelope(
        random.choice(TYPES),
        random.choice(PAYLOADS),
        "json" if plain else "raw",
        1 if plain else 2,
        5 if plain else random.choice((0, 3, 5, 9)),
        random.choice((1, 2, 3)),
        random.choice(BACKOFFS),
        None if plain else 60 * SECOND,
        random.choice((0, 1 * SECOND, 60 * SECOND, 1 * HOUR, 30 * DAY)),
        random.choice(REQUESTS),
        idempotency,
        None if plain else {"trace": "ü"},
    )


def claim(random: Random, world: World) -> TraceStep:
    """A claim of one tenant or of all, over one queue or several."""
    del world
    tenant = None if random.random() < 0.5 else random.choice(TENANTS)
    queues = random.sample(QUEUES, random.choice((1, 1, 2, 3)))
    if _rarely(random, 20):
        queues.append(queues[0])  # Named twice, and still one lease for each job.
    request = ClaimRequest(
        tenant,
        tuple(queues),
        random.choice((1, 1, 2, 3, 5)),
        random.choice(LEASES),
        random.choice(WORKERS),
        random.choice(RANDOMS),
    )
    return TraceStep("claim", (request,))


def finish(random: Random, world: World) -> TraceStep:
    """A batch of outcomes, mostly for live leases. Some are late, wrong or duplicate."""
    items: list[Finish] = []
    for key, rank in _leases(random, world, random.choice((1, 1, 2, 4))):
        items.append(_outcome(random, world, key, rank))
        if _rarely(random, 8):
            items.append(_outcome(random, world, key, rank))
        if _rarely(random, 10):
            items.append(random.choice(items))
    return TraceStep("finish", (items,))


def _outcome(random: Random, world: World, key: JobKey, rank: int) -> Finish:
    outcome = random.choice(("complete", "complete", "fail", "retry", "retry", "release"))
    result: Result | None = None
    if outcome == "complete":
        world.blobs += 1
        result = random.choice(
            (None, Result(b"1"), Result(b"", "raw"), Result(b"z" * 2000), Result(b"", "json", f"blob-{world.blobs}"))
        )
    error = random.choice(ERRORS) if outcome in ("fail", "retry") else None
    delay_ms = random.choice((None, None, 0, 1 * SECOND, 60 * SECOND)) if outcome in ("retry", "release") else None
    reason = random.choice(("", "unknown_type", "unknown_version")) if outcome == "release" else ""
    return Finish(
        key, rank, outcome, result, error, _rarely(random, 5), delay_ms, random.choice(RANDOMS), reason=reason
    )


def extend(random: Random, world: World) -> TraceStep:
    """Renewals, longer and shorter than the rest of the lease."""
    found = _leases(random, world, random.choice((1, 2)))
    return TraceStep("extend", ([Extend(key, rank, random.choice(LEASES)) for key, rank in found],))


def report(random: Random, world: World) -> TraceStep:
    """Progress."""
    found = _leases(random, world, random.choice((1, 2)))
    return TraceStep(
        "report", ([Report(key, rank, Progress(random.choice((0.0, 0.5, 1.0)), "ü")) for key, rank in found],)
    )


def cancel(random: Random, world: World) -> TraceStep:
    """Cancellations in both modes."""
    aim = (JobState.LEASED,) if _rarely(random, 2) else ()
    found = [_known(random, world, *aim) for _ in range(random.choice((1, 1, 3)))]
    items = [Cancel(key, only_waiting=_rarely(random, 3), by=random.choice(OPERATORS)) for key in found]
    return TraceStep("cancel", (items,))


def replay(random: Random, world: World) -> TraceStep:
    """Replays, mostly of dead letters, sometimes of one twice."""
    found = [_known(random, world, JobState.FAILED) for _ in range(random.choice((1, 1, 3)))]
    return TraceStep("replay", (found,))


def purge(random: Random, world: World) -> TraceStep:
    """Purges, with and without the time at which the job ended."""
    items: list[Purge] = []
    for _ in range(random.choice((1, 2))):
        key = _known(random, world, JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)
        record = world.records.get(key)
        finished_at = record.finished_at if record is not None else None
        items.append(Purge(key, random.choice((None, finished_at, world.now)), by=random.choice(OPERATORS)))
    return TraceStep("purge", (items,))


def set_result_ttl(random: Random, world: World) -> TraceStep:
    """Longer and shorter retention for ended jobs."""
    key = _known(random, world, JobState.COMPLETED, JobState.FAILED, JobState.CANCELED)
    return TraceStep("set_result_ttl", ([SetResultTtl(key, random.choice((0, 1 * SECOND, 1 * HOUR, 10 * DAY)))],))


# Reading ----------------------------------------------------------------------------------------------------


def list_jobs(random: Random, world: World) -> TraceStep:
    """A list, page by page."""
    lane = _known(random, world)[:2]
    states = frozenset(JobState)
    if random.random() < 0.5:
        states = frozenset(random.sample(list(JobState), random.choice((1, 1, 2, 4))))
    type_ = random.choice((None, None, *TYPES))
    error = random.choice((None, None, None, "Boom", "broke", "LeaseExpired", "nothing"))
    query = ListQuery(*lane, states, type_, error, None, random.choice((1, 2, 5, 100)))
    kind = (len(states) + query.limit) % 3
    if kind:
        id_, error = ("b", None) if error == "nothing" else (None, error)
        query = replace(query, newest=True, queue=lane[1] if kind == 1 else "", id=id_, error=error)
    return TraceStep("list", (query,))


def standing(random: Random, world: World) -> TraceStep:
    """What a job waits for in its queue."""
    return TraceStep("standing", (_known(random, world, *WAITING),))


def stats(random: Random, world: World) -> TraceStep:
    """Counts of named queues or of all."""
    del world
    queues = None if random.random() < 0.5 else tuple(random.sample(QUEUES, 2))
    return TraceStep("stats", (random.choice(TENANTS), queues))


def read_events(random: Random, world: World) -> TraceStep:
    """The log, page by page, from its beginning or from a position known before."""
    after = None if random.random() < 0.4 else random.choice(world.marks)
    return TraceStep("events", (random.choice((None, *TENANTS)), after, random.choice((1, 3, 7, 50))))


# Settings, workers, upkeep ----------------------------------------------------------------------------------


def advance(random: Random, world: World) -> TraceStep:
    """Time passes: until a job is due or expires, a little, or so much that results and events expire."""
    moments = [at for job in world.records.values() if job for at in (job.deadline, job.visible_at, job.expires_at)]
    ahead = [at - world.now for at in moments if at is not None and at > world.now]
    if ahead and _rarely(random, 3):
        return TraceStep("advance", (min(random.choice(ahead), 8 * DAY) - _rarely(random, 3),))
    return TraceStep("advance", (random.choice(LONG_PAUSES if _rarely(random, 9) else PAUSES),))


def pause(random: Random, world: World) -> TraceStep:
    """A queue is paused or resumed."""
    del world
    return TraceStep("pause", (*_lane(random), _rarely(random, 3)))


def set_tenant(random: Random, world: World) -> TraceStep:
    """Weights and quotas, of a tenant or of one queue."""
    del world
    queue = random.choice((None, *QUEUES))
    weight = random.choice((None, 0.3, 1.0, 2.0, 7.0))
    max_waiting = random.choice((None, None, 0, 2, 5, 20, 1000, 1000))
    return TraceStep("set_tenant", (random.choice(TENANTS), TenantSettings(queue, weight, max_waiting)))


def set_reader(random: Random, world: World) -> TraceStep:
    """A reader registers or advances."""
    tenant = random.choice((None, TENANTS[0]))
    return TraceStep("set_reader", (tenant, random.choice(READERS), random.choice(world.marks)))


def drop_reader(random: Random, world: World) -> TraceStep:
    """A reader is removed."""
    del world
    return TraceStep("drop_reader", (random.choice((None, TENANTS[0])), random.choice(READERS)))


def beat(random: Random, world: World) -> TraceStep:
    """A worker reports that it is alive, or signs off."""
    del world
    tenant = random.choice((None, *TENANTS))
    worker = WorkerInfo(random.choice(WORKERS), tenant, "host", 1, QUEUES[:2], 4, random.randrange(4))
    return TraceStep("beat", (worker, random.choice((0, 1 * SECOND, 30 * SECOND, 2 * HOUR))))


def workers(random: Random, world: World) -> TraceStep:
    """The live workers."""
    del world
    return TraceStep("workers", (random.choice((None, *TENANTS)),))


def reap(random: Random, world: World) -> TraceStep:
    """End expired leases."""
    del world
    return TraceStep("reap", (random.choice((1, 2, 100)), random.choice(RANDOMS)))


def prune(random: Random, world: World) -> TraceStep:
    """Remove everything that has expired."""
    del world
    return TraceStep("prune", (random.choice((1, 2, 100)),))


def mark(random: Random, world: World) -> TraceStep:
    """Remember the end of the log, to read from it later."""
    del random, world
    return TraceStep("mark")


def reopen(random: Random, world: World) -> TraceStep:
    """Close one of the handles and open it again."""
    del random, world
    return TraceStep("reopen")


MAKERS: dict[str, Maker] = {
    "enqueue": enqueue,
    "claim": claim,
    "finish": finish,
    "extend": extend,
    "report": report,
    "cancel": cancel,
    "replay": replay,
    "purge": purge,
    "set_result_ttl": set_result_ttl,
    "list": list_jobs,
    "stats": stats,
    "events": read_events,
    "advance": advance,
    "pause": pause,
    "set_tenant": set_tenant,
    "set_reader": set_reader,
    "drop_reader": drop_reader,
    "beat": beat,
    "workers": workers,
    "reap": reap,
    "prune": prune,
    "mark": mark,
    "reopen": reopen,
    "standing": standing,
}
WEIGHTS = dict.fromkeys(MAKERS, 1) | {
    "enqueue": 16, "claim": 16, "finish": 14, "advance": 8, "extend": 3, "report": 2, "cancel": 3, "replay": 4,
    "purge": 2, "set_result_ttl": 2, "list": 3, "standing": 2, "events": 3, "reap": 3, "prune": 3, "mark": 2,
    "pause": 2, "beat": 2, "set_tenant": 2, "set_reader": 2,
}  # fmt: skip


def _lane(random: Random) -> tuple[str, str]:
    return random.choice(TENANTS), random.choice(LIKELY_QUEUES)


def _known(random: Random, world: World, *states: JobState) -> JobKey:
    """A job in one of these states if there is one; sometimes any job, or one that never existed."""
    keys = list(world.records)
    if states and not _rarely(random, 4):
        keys = [key for key, job in world.records.items() if job is not None and job.state in states] or keys
    if not keys or _rarely(random, 20):
        return JobKey(*_lane(random), random.choice(IDS))
    return random.choice(keys)


def _live(world: World) -> list[tuple[JobKey, int]]:
    leased = (job for job in world.records.values() if job is not None and job.state is JobState.LEASED)
    return [(job.key, job.token) for job in leased]


def _leases(random: Random, world: World, count: int) -> list[tuple[JobKey, int]]:
    """Jobs and tokens: mostly live ones; else stale, unknown, or of another job."""
    live = _live(world)
    found: list[tuple[JobKey, int]] = []
    for _ in range(count):
        if live and not _rarely(random, 5):
            found.append(random.choice(live))
        elif world.grants and not _rarely(random, 3):
            found.append(random.choice(_last(world.grants, 12)))
        else:
            found.append((_known(random, world), random.choice((0, 1, len(world.grants), 10**6))))
    return found


def _last(items: Sequence[T], count: int) -> Sequence[T]:
    return items[-count:]


def _rarely(random: Random, one_in: int) -> bool:
    return random.randrange(one_in) == 0
