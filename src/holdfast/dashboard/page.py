"""What a page is. Each module of `pages` makes one `WebPage` of it, and has a template of the same name.

A page has fragments: parts that are read, drawn and renewed by themselves. A fragment is a block of the template, of
the same name. What its `read` returns are the variables of that block, beside `view` and `page`. Buttons send an
action: a POST that is checked, recorded and answered with the page again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from holdfast.dashboard.view import View
from holdfast.service.tokens import READ
from holdfast.store import Signal

RENEW_S = 10.0
"""How old a fragment may get on a screen while no hint arrives: heartbeats and settings make no hints."""

Model = Mapping[str, Any]
Read = Callable[[View], Awaitable[Model]]


def of_tenant(view: View, signal: Signal) -> bool:
    """Any hint about the tenant of the page."""
    return signal.tenant in ("", view.tenant)


def of_queue(view: View, signal: Signal) -> bool:
    """Hints about the queue that the parameter `queue` names; without it, about any queue."""
    return of_tenant(view, signal) and (not signal.queue or view.text("queue") in ("", signal.queue))


def of_job(view: View, signal: Signal) -> bool:
    """Hints about the job that the parameters `queue` and `id` name."""
    return of_queue(view, signal) and signal.id in ("", view.text("id"))


class Fragment(Struct, frozen=True):
    """A part of a page that is renewed by itself. `concerns` says which hints of the store are about it."""

    read: Read
    concerns: Callable[[View, Signal], bool] = of_tenant


class Form(Struct, frozen=True):
    """The fields that were sent with an action."""

    fields: Mapping[str, str]

    def text(self, name: str) -> str:
        """A field, "" without it."""
        return self.fields.get(name, "").strip()


class Done(Struct, frozen=True):
    """The outcome of an action: a message, and the address of the page that shows it (by default the same page)."""

    says: str
    to: str = ""
    facts: Mapping[str, Any] = {}
    """For the audit trail."""


class Action(Struct, frozen=True):
    """Something to do, at its own path. `scope` is checked before `act` is called; `name` is for the audit trail."""

    path: str
    name: str
    scope: str
    act: Callable[[View, Form], Awaitable[Done]]
    facts: tuple[str, ...] = ("queue", "id")
    """The parameters and fields that the audit trail keeps."""


async def _nothing(_: View) -> Model:
    return {}


class WebPage(Struct, frozen=True):
    """A page. `template` has a block for each fragment. `nav` is its name in the navigation, "" if it is not there."""

    path: str
    title: str
    template: str
    fragments: Mapping[str, Fragment] = {}
    read: Read = _nothing
    """What the page shows outside of its fragments: it is read once, for the first view."""
    nav: str = ""
    key: str = ""
    """The key that opens it, after `g`."""
    scope: str = READ
    of_tenant: bool = True
    """Whether it shows one tenant. Others show all tenants, to operators alone."""
    actions: tuple[Action, ...] = ()
    parent: str = ""
    """The path of the page to mark in the navigation, if this one is not in it."""
