"""The audit trail of the service: who called an operator's route, from where, on what, and how it ended.

Routes with an `action` are meant: those of `jobs:admin` for every caller, refused ones too, and the others (canceling)
where the token has `jobs:admin`. Requests without a good token name nobody: they are in the access log alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import unquote

from msgspec import UNSET

from holdfast.core import answers, wire
from holdfast.core.errors import HoldfastError
from holdfast.service.call import Call, Reply, Route, Scope, Stream
from holdfast.service.tokens import ADMIN, Caller
from holdfast.telemetry.audit import audited, named


class Trail:
    """What is known of one call so far."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def asked(self, call: Call[Any, Any]) -> None:
        """Note on what the caller wants to act."""
        self._facts |= _asked(call.body)

    def answered(self, reply: Reply | Stream) -> None:
        """Note what became of it."""
        if isinstance(reply, Reply):
            self._facts |= _answered(reply.value)


def is_audited(route: Route, caller: Caller) -> bool:
    """Whether a call is one for the trail."""
    return bool(route.action) and (route.scope == ADMIN or ADMIN in caller.scopes)


@contextmanager
def trail(route: Route, scope: Scope, caller: Caller) -> Generator[Trail]:
    """Write the line of a call."""
    client = scope.get("client")
    path = {name: unquote(text, errors="replace") for name, text in scope["path_params"].items()}
    with audited(
        route.action, via="http", sub=caller.subject, jti=caller.token_id, address=client[0] if client else "",
        tenant=caller.tenant, **path, request_id=scope.get("holdfast.request_id"),
    ) as facts:  # fmt: skip
        yield Trail(facts)


def _asked(body: Any) -> dict[str, Any]:
    match body:
        case wire.Replay():
            chosen = {} if body.ids is UNSET else named(body.ids)
            where = body.where
            return chosen if where is UNSET else {**chosen, "type": where.type, "error": where.error}
        case wire.Purge():
            return {"type": body.type, "error": body.error, "before": body.before}
        case wire.PutSchedule():
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
        case answers.Canceled():
            return {"answers": {value.status: 1}}
        case answers.Replays() | answers.Items():
            return {"answers": _counted(cast("Any", value).items)}
        case _:
            return {}


def _counted(items: Iterable[Any]) -> dict[str, int]:
    """How many items had each answer: a status, or the code of an error."""
    return dict(Counter(getattr(item, "status", None) or item.error.code for item in items))
