"""The audit trail of the service: the caller of an operator's route, its address, what it acted on, and the outcome.

It covers the routes with an `action`: those that need `jobs:admin`, and canceling if the token has `jobs:admin`.
Refused calls are included. Requests without a valid token name no caller: only the access log has them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from holdfast.core.errors import HoldfastError
from holdfast.core.job import Envelope, JobKey, NewJob
from holdfast.core.names import AUDIT, OPERATOR
from holdfast.ids import new_id
from holdfast.protocol import answers, operating, requests
from holdfast.queue.coalesce import Coalescer
from holdfast.service.call import Reply, Route, Scope, ServiceCall, Stream
from holdfast.service.tokens import ADMIN, OPERATOR_SCOPE, Caller
from holdfast.store import EnqueueAnswer, Store, TenantSettings
from holdfast.telemetry.audit import audited, named
from holdfast.telemetry.logging import get_logger

if TYPE_CHECKING:
    from asyncio import Future

_log = get_logger("holdfast.service")


MAX_WAITING = 100_000
"""The most lines in the queue. Further lines are only logged, with a warning."""


class TrailQueue:
    """The trail as jobs of the operator's tenant, in a reserved queue. `holdfast trail` reads and consumes them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lines = Coalescer[NewJob, EnqueueAnswer](store.enqueue)

    async def open(self) -> None:
        """Limit the length of the queue."""
        await self._store.set_tenant(OPERATOR, TenantSettings(AUDIT, max_waiting=MAX_WAITING))

    async def close(self) -> None:
        """Wait for lines in flight."""
        await self._lines.settle()

    def put(self, facts: dict[str, Any]) -> None:
        """Add a line. The call does not wait for it, and does not fail with it."""
        id = new_id()
        line = msgspec.json.encode({"at": datetime.now(UTC), **facts})
        new = NewJob(JobKey(OPERATOR, AUDIT, id), Envelope("audit", line, result_ttl_ms=0, request_id=id))
        self._lines(new).add_done_callback(_note)


def _note(answer: Future[EnqueueAnswer]) -> None:
    if answer.cancelled():
        return
    error = answer.exception() or answer.result()
    if isinstance(error, BaseException):
        _log.warning("an audit line was not put into the queue, only logged", error=error)


class Trail:
    """The facts about one call so far."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def asked(self, call: ServiceCall[Any, Any]) -> None:
        """Add what the call acts on."""
        self._facts |= _asked(call.body)

    def answered(self, reply: Reply | Stream) -> None:
        """Add the outcome."""
        if isinstance(reply, Reply):
            self._facts |= _answered(reply.value)


def is_audited(route: Route, caller: Caller) -> bool:
    """Whether a call belongs in the trail."""
    return bool(route.action) and (route.scope in (ADMIN, OPERATOR_SCOPE) or ADMIN in caller.scopes)


@contextmanager
def trail(route: Route, scope: Scope, caller: Caller, queue: TrailQueue | None) -> Generator[Trail]:
    """Log the line of a call, and put it into the queue if there is one."""
    also = None if queue is None else queue.put
    client = scope.get("client")
    path = {name: unquote(text, errors="replace") for name, text in scope["path_params"].items()}
    with audited(
        route.action, also=also, via="http", sub=caller.subject, jti=caller.token_id,
        address=client[0] if client else "", **{"tenant": caller.tenant, **path},
        request_id=scope.get("holdfast.request_id"),
    ) as facts:  # fmt: skip
        yield Trail(facts)


def _asked(body: Any) -> dict[str, Any]:
    match body:
        case requests.Replay():
            chosen = {} if body.ids is UNSET else named(body.ids)
            where = body.where
            found = {} if where is UNSET else {"type": where.type, "error": where.error}
            return {**chosen, **found, "dry_run": body.dry_run or None}
        case requests.Purge():
            return {"type": body.type, "error": body.error, "before": body.before, "dry_run": body.dry_run or None}
        case operating.CancelWhere():
            return {**asdict(body.where), "running": body.running or None, "dry_run": body.dry_run or None}
        case operating.PutSettings():
            return {name: value for name, value in asdict(body).items() if value is not None}
        case requests.PutSchedule():
            return {"queue": body.queue, "type": body.type, "cron": body.cron, "every_s": body.every_s}
        case list():
            items = cast("list[Any]", body)
            return named(item.id for item in items if not isinstance(item, HoldfastError))
        case _:
            return {}


def _answered(value: Any) -> dict[str, Any]:
    match value:
        case answers.Purged():
            return {"count": value.purged}
        case operating.Step():
            return {"answers": {"canceled": 0 if value.dry_run else value.count, **value.refused}}
        case answers.Canceled():
            return {"answers": {value.status: 1}}
        case answers.Replays() | answers.Items():
            return {"answers": _counted(cast("Any", value).items)}
        case _:
            return {}


def _counted(items: Iterable[Any]) -> dict[str, int]:
    """The number of items for each status or error code."""
    return dict(Counter(getattr(item, "status", None) or item.error.code for item in items))
