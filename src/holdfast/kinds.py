"""What a store declares about itself: where its data is, what it needs, how its offsets are built.

The decorator is on the opener that an entry point names, in a module that loads without the store's driver:

    @store_kind(install="holdfast-tiny[driver]", space_option="prefix")
    def open_tiny(url: StoreUrl) -> TinyStore:
        from tiny_store.store import TinyStore
        ...

An opener without the decorator gets the defaults. No other module asks for the name of a store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar

from msgspec import Struct

GROUP = "holdfast.stores"
"""The entry-point group that lists stores by scheme: Holdfast's own and those of other packages."""
_KIND = "holdfast_store_kind"


class OffsetForm(Struct, frozen=True):
    """How the offsets of a store become positions. An offset is a text of whole numbers, joined by dots.

    Positions are strings that sort in log order within a shard; see `pipeline.positions`.
    """

    by_shard: bool = False
    """Whether each number is the position in one shard. If not, all of them together are one position."""
    used: int | None = None
    """The first numbers, this many, make positions. The others are check values. None: all make positions."""


class StoreKind(Struct, frozen=True):
    """The properties of a store that are known before it is opened."""

    install: str = ""
    """What pip installs to get the store's driver, like `holdfast[redis]`."""
    place: Literal["server", "directory", "process"] = "server"
    """What the URL names after the scheme: a server, a directory, or a name within this process."""
    create_option: str = ""
    """The option of the URL that decides whether a missing store is created. Empty: `open` creates none."""
    space_option: str = ""
    """The option of the URL that keeps several stores on one server apart, like `prefix`."""
    offsets: OffsetForm = OffsetForm()


Opener = TypeVar("Opener", bound=Callable[..., Any])


def store_kind(
    *,
    install: str = "",
    place: Literal["server", "directory", "process"] = "server",
    create_option: str = "",
    space_option: str = "",
    offsets: OffsetForm = OffsetForm(),  # noqa: B008 - it is frozen
) -> Callable[[Opener], Opener]:
    """Declare the kind of the store that the decorated function opens."""
    kind = StoreKind(install, place, create_option, space_option, offsets)

    def declare(opener: Opener) -> Opener:
        setattr(opener, _KIND, kind)
        return opener

    return declare


@cache
def find_opener(scheme: str) -> Callable[..., Any] | None:
    """The opener that is registered for a scheme. Raises ModuleNotFoundError if it does not load without a driver."""
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP, name=scheme)
    return next(iter(found)).load() if found else None


def known_schemes() -> list[str]:
    """The schemes for which a store is registered."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP).names)


def kind_of(url: str) -> StoreKind:
    """What the store at `url` declares; the defaults if it declares nothing, is not registered, or does not load."""
    try:
        return getattr(find_opener(url.partition(":")[0]), _KIND, StoreKind())
    except ModuleNotFoundError:
        return StoreKind()
