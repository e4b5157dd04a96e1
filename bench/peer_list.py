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
    "RedisBroker, -p 2 -t 8, hiredis",
    "bulk enqueue, events",
    6_000,
)
TASKIQ = Peer(
    "taskiq",
    "taskiq",
    ("driver.py", "taskiq_app"),
    ("taskiq", "worker", "taskiq_app:broker", "--workers", "1", "--max-async-tasks", "100", "--log-level", "WARNING"),
    _taskiq_left,
    "RedisStreamBroker, uvloop, 100 tasks",
    "bulk enqueue, events",
    3_000,
)
HUEY = Peer(
    "huey",
    "huey",
    ("driver.py", "huey_app"),
    ("huey_consumer", "huey_app.huey", "-k", "process", "-w", "2", "-q"),
    _huey_left,
    "RedisHuey, 2 process workers, notify_result",
    "acknowledgements, leases, bulk enqueue, events",
    6_000,
)
BULLMQ = Peer(
    "BullMQ",
    "bullmq",
    ("bullmq_driver.cjs",),
    ("node", "bullmq_worker.cjs"),
    _bullmq_left,
    "concurrency 50",
    "",
    12_000,
)
PEERS = (DRAMATIQ, TASKIQ, HUEY, BULLMQ)
