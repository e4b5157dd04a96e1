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


DRAMATIQ = Peer(
    "dramatiq",
    "dramatiq",
    ("driver.py", "dramatiq_app"),
    ("dramatiq", "dramatiq_app", "-p", "2", "-t", "8", "--skip-logging"),
    _dramatiq_left,
    "RedisBroker, 2 processes of 8 threads, dramatiq_queue_prefetch=1000, Retries as its only middleware",
    "bulk enqueue and no events",
    5_000,
    variables={"BENCH_MIDDLEWARE": "least", "dramatiq_queue_prefetch": "1000"},
)
TASKIQ = Peer(
    "taskiq",
    "taskiq",
    ("driver.py", "taskiq_app"),
    ("taskiq", "worker", "taskiq_app:broker", "--workers", "1", "--max-async-tasks", "10", "--log-level", "WARNING"),
    _taskiq_left,
    "RedisStreamBroker (with acknowledgements), uvloop, 10 tasks at once, no results but where they are waited for",
    "bulk enqueue and no events",
    1_500,
    together=1_500,
)
HUEY = Peer(
    "huey on Valkey",
    "huey",
    ("driver.py", "huey_app"),
    ("huey_consumer", "huey_app.huey", "-k", "process", "-w", "2", "-q"),
    _huey_left,
    "RedisHuey, 2 process workers, notify_result, no results but where they are waited for",
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
)
PEERS = (DRAMATIQ, TASKIQ, HUEY, BULLMQ)
