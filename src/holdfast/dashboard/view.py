"""One request for a page or an action: who asks, for which tenant, and with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from msgspec import Struct

from holdfast.core.errors import HoldfastError
from holdfast.core.names import RESERVED, as_operator, check_queue, check_tenant
from holdfast.service.tokens import ADMIN, OPERATOR_SCOPE, PRODUCE, READ
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.dashboard.source import Source
    from holdfast.dashboard.tail import LogTail
    from holdfast.queue.queue import Queue


class NotShown(HoldfastError):
    """A request that gets no page: `status` says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Viewer(Struct, frozen=True):
    """Who looks, and what they may see and do. `tenant` None: every tenant."""

    name: str
    tenant: str | None
    scopes: frozenset[str]
    queues: frozenset[str] | None = None
    """The queues of the tenant that they may see; None: all."""
    token_id: str = ""
    issued_at: float | None = None
    expires_at: float | None = None
    session: str = ""
    """Identifies the session; "" without one."""

    def may(self, scope: str) -> bool:
        """Whether they have the scope. An operator may read everything."""
        return scope in self.scopes or (scope == READ and self.is_operator)

    def may_see(self, scope: str) -> bool:
        """Whether they see the pages that ask for a scope. An operator sees all pages."""
        return scope in self.scopes or self.is_operator

    @property
    def is_operator(self) -> bool:
        """Whether they see every tenant."""
        return self.tenant is None and OPERATOR_SCOPE in self.scopes

    @property
    def rights(self) -> tuple[object, ...]:
        """What decides how a page looks: viewers with equal rights share it."""
        return self.tenant, self.scopes, self.queues


EVERYTHING = frozenset({READ, PRODUCE, ADMIN, OPERATOR_SCOPE})


class View:
    """A request, with what a page needs to answer it. `tenant` is "" on pages about all tenants."""

    def __init__(
        self, source: Source, viewer: Viewer, path: str, query: Mapping[str, str], *, base: str, tenant: str
    ) -> None:
        self.source = source
        self.viewer = viewer
        self.path = path
        self.query = query
        self.base = base
        self.tenant = tenant
        self.asked_at = monotonic()
        """Reads that began since may be shared with other fragments."""

    @property
    def store(self) -> Store:
        """The store, for reads that a Queue does not have. Always name `tenant`."""
        return self.source.store

    @property
    def queue(self) -> Queue:
        """The Queue of the tenant."""
        return self.source.queue(self.tenant)

    @property
    def by(self) -> str:
        """Who acts, for the events of the jobs."""
        return as_operator(self.viewer.name)

    def may(self, scope: str) -> bool:
        """Whether the viewer has the scope."""
        return self.viewer.may(scope)

    @property
    def may_act(self) -> bool:
        """Whether the viewer may pause, replay, purge and change schedules."""
        return self.may(ADMIN)

    @property
    def may_cancel(self) -> bool:
        """Whether the viewer may cancel jobs."""
        return self.may(PRODUCE)

    async def tail(self) -> LogTail:
        """The end of the tenant's log, of the queues that the viewer's pages show, as of now."""
        return await self.source.tails.of(self.tenant, self.viewer.queues, self.sees, self.asked_at)

    def sees(self, queue: str) -> bool:
        """Whether the viewer's pages show a queue: none of Holdfast's own, and only those that the token names."""
        return not queue.startswith(RESERVED) and (self.viewer.queues is None or queue in self.viewer.queues)

    def text(self, name: str) -> str:
        """A parameter, "" without it."""
        return self.query.get(name, "").strip()

    def checked_queue(self, name: str) -> str:
        """A queue that a request names. One that the viewer must not see answers like a page that does not exist."""
        if not self.sees(check_queue(name)):
            raise NotShown(404, "There is no such page.")
        return name

    def url(self, path: str, **parameters: object) -> str:
        """The address of a page of the same tenant. Empty parameters are left out."""
        given = {"tenant": self.tenant, **parameters}
        asked = urlencode({name: str(value) for name, value in given.items() if value not in ("", None)})
        return f"{self.base}{path}{'?' if asked else ''}{asked}"

    def again(self, **changes: object) -> str:
        """The address of this page with other parameters."""
        return self.url(self.path, **{**self.query, "tenant": self.tenant, **changes})

    def command(self, *words: str, of: str = "", **options: str) -> str:
        """The shell command for the same. `of`: the id or name that it is about."""
        given = {"tenant": self.tenant, **options}
        flags = (f"--{name.replace('_', '-')} {quote(text)}" for name, text in given.items())
        # An id that begins with a dash must not become an option.
        first, last = ([], ["--", quote(of)]) if of.startswith("-") else ([quote(of)] if of else [], [])
        return " ".join(("holdfast", *map(quote, words), *first, *flags, *last))

    @property
    def here(self) -> str:
        """The address of this page."""
        return self.again()


def tenant_of(viewer: Viewer, asked: str) -> str:
    """The tenant of a request: the viewer's own, or the one that an operator asks for. [TENANT-1, TENANT-2]

    A foreign tenant answers like a page that does not exist.
    """
    if viewer.tenant is None:
        return check_tenant(asked) if asked else ""
    if asked not in ("", viewer.tenant):
        raise NotShown(404, "There is no such page.")
    return viewer.tenant
