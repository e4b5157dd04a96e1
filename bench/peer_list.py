"""The peers on Valkey, each with the settings that showed it at its best here."""

from __future__ import annotations

import redis

from bench.peer import Peer


def _dramatiq_left(client: redis.Redis) -> int:
    return client.hlen("dramatiq:bench.msgs")


def _taskiq_left(client: redis.Redis) -> int:
    group = client.xinfo_groups("bench")[0]
    return group["pending"] + group["lag"]


def _huey_left(client: redis.Redis) -> int:
    return client.llen("huey.redis.bench")


def _bullmq_left(client: redis.Redis) -> int:
    return client.llen("bull:bench:wait") + client.llen("bull:bench:active")


def _celery_left(client: redis.Redis) -> int:
    return client.llen("celery") + client.hlen("unacked")


def _rq_left(client: redis.Redis) -> int:
    lists = ("rq:queue:bench", "rq:queue:bench:intermediate")
    return sum(client.llen(name) for name in lists) + client.zcard("rq:wip:bench")


def _arq_left(client: redis.Redis) -> int:
    return client.zcard("arq:queue")


def _saq_left(client: redis.Redis) -> int:
    return client.zcard("saq:bench:incomplete")


def _streaq_left(client: redis.Redis) -> int:
    return client.xlen("streaq:bench:queues:normal")


def _platformatic_left(client: redis.Redis) -> int:
    return client.llen("jq:queue") + sum(client.llen(name) for name in client.keys("jq:processing:*"))


DRAMATIQ = Peer(
    "dramatiq",
    "dramatiq",
    ("driver.py", "dramatiq_app"),
    ("dramatiq", "dramatiq_app", "-p", "{processes}", "-t", "8", "--skip-logging"),
    _dramatiq_left,
    "RedisBroker, 8 threads a process, dramatiq_queue_prefetch=1000, Retries as its only middleware",
    "bulk enqueue and no events",
    5_000,
    variables={"BENCH_MIDDLEWARE": "least", "dramatiq_queue_prefetch": "1000"},
)
TASKIQ = Peer(
    "taskiq",
    "taskiq",
    ("driver.py", "taskiq_app"),
    ("taskiq", "worker", "taskiq_app:broker", "-w", "{processes}", "--max-async-tasks", "10", "--log-level", "WARNING"),
    _taskiq_left,
    "RedisStreamBroker (with acknowledgements), uvloop, 10 tasks at once, no results but where they are waited for",
    "bulk enqueue and no events",
    1_500,
    together=1_500,
    crowded={},
)
HUEY = Peer(
    "huey on Valkey",
    "huey",
    ("driver.py", "huey_app"),
    ("huey_consumer", "huey_app.huey", "-k", "process", "-w", "{processes}", "-q"),
    _huey_left,
    "RedisHuey, process workers, notify_result, no results but where they are waited for",
    "acknowledgements (drained: all were taken), no leases, no bulk enqueue and no events",
    4_000,
)
BULLMQ = Peer(
    "BullMQ",
    "bullmq",
    ("bullmq_driver.cjs",),
    ("node", "bullmq_worker.cjs"),
    _bullmq_left,
    "concurrency 100, addBulk of 1,000, finished jobs removed at once, 100 kept where results are waited for",
    "",
    10_000,
    variables={"BENCH_CONCURRENCY": "100"},
    recovers=True,
    crowded={"BENCH_CONCURRENCY": "10"},
)
CELERY = Peer(
    "Celery",
    "celery",
    ("driver.py", "celery_app"),
    (
        "celery",
        "--app=celery_app",
        "worker",
        "--concurrency={processes}",
        "--loglevel=WARNING",
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
    ),
    _celery_left,
    "prefork, worker_prefetch_multiplier=128, no gossip, mingle, heartbeat; results only where waited for",
    "acknowledgement after a job (it comes before), no bulk enqueue and no events as set here",
    1_500,
)
RQ = Peer(
    "RQ",
    "rq",
    ("driver.py", "rq_app"),
    ("python", "rq_app.py"),
    _rq_left,
    "SimpleWorker (no process for each job), enqueue_many of 1,000, result_ttl=0 but where it is waited for",
    "leases (a job is lost until its registry is cleaned) and no events",
    500,
    singles=300,
)
ARQ = Peer(
    "arq",
    "arq",
    ("driver.py", "arq_app"),
    ("python", "arq_app.py"),
    _arq_left,
    "max_jobs=100, poll_delay=0.01, uvloop, keep_result=0 but where it is waited for, then polled every 1 ms",
    "bulk enqueue and no events; waiting for a job means polling",
    1_000,
    together=1_000,
)
SAQ = Peer(
    "SAQ",
    "saq",
    ("driver.py", "saq_app"),
    ("saq", "saq_app.settings", "--workers={processes}"),
    _saq_left,
    "concurrency 20, hiredis, uvloop, finished jobs removed at once but where they are waited for, by apply every 1 ms",
    "bulk enqueue, no tokens and no log of events",
    1_000,
    together=1_000,
)
STREAQ = Peer(
    "streaq",
    "streaq",
    ("driver.py", "streaq_app"),
    ("streaq", "run", "streaq_app:worker", "--workers={processes}"),
    _streaq_left,
    "concurrency 100, uvloop, enqueue_many of 1,000, ttl=0 but where results are waited for",
    "tokens and no log of events",
    1_000,
    singles=300,
    together=500,
    waits=50,
)
PLATFORMATIC = Peer(
    "@platformatic/job-queue",
    "platformatic",
    ("platformatic_driver.cjs",),
    ("node", "platformatic_worker.cjs"),
    _platformatic_left,
    "RedisStorage on iovalkey, concurrency 100, resultTTL of 1 s; bulk: 1,000 single ones at once",
    "bulk enqueue, no tokens and no log of events",
    10_000,
)
PYTHON = (DRAMATIQ, TASKIQ, HUEY, CELERY, RQ, ARQ, SAQ, STREAQ)
NODE = (BULLMQ, PLATFORMATIC)
PEERS = (*PYTHON, *NODE)
