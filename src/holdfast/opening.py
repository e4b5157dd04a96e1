"""Store URLs: parse, check, show and open them. `kinds` has what differs between stores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from msgspec import Struct

from holdfast.core.budgets import DEFAULTS, MAX_BUDGET, RESULT_TTL_CEILING, STORED, Budgets
from holdfast.core.errors import (
    InvalidOption,
)
from holdfast.core.job import (
    DAY,
    LONGEST,
)
from holdfast.core.lifecycle import Retention
from holdfast.kinds import find_opener, kind_of, known_schemes
from holdfast.store import EVENTS_BOUND, Store


class StoreUrl(Struct, frozen=True):
    """A parsed store URL: `scheme:rest?options`."""

    url: str
    scheme: str
    rest: str
    options: dict[str, str]


def parse_url(url: str) -> StoreUrl:
    """Parse a store URL. Raises InvalidOption, which says what to write instead."""
    head, _, query = url.partition("?")
    scheme, colon, rest = head.partition(":")
    if not colon or not scheme:
        # The message leaves out the URL: it may contain a password.
        raise InvalidOption("store", "that is not a store URL; write for example 'file:./data' or 'redis://localhost'")
    if rest.startswith("//") and "@" in query and kind_of(url).place == "server":
        reason = "there is an '@' after the '?': in a password write '?' as %3F, in an option '@' as %40"
        raise InvalidOption("store", f"{scheme}: {reason}")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        pairs = [("", "")]
    if not all(_OPTION.fullmatch(name) for name, _ in pairs):
        # The message leaves out the text: it may be part of a password.
        reason = "the options are not name=value&name=value; in a password write '?' as %3F"
        raise InvalidOption("store", f"{scheme}: {reason}")
    options = dict(pairs)
    if len(options) != len(pairs):
        raise InvalidOption("store", f"the {scheme}: URL has an option twice")
    return StoreUrl(url, scheme, unquote(rest), options)


async def open_store(url: str) -> Store:
    """Open the store at `url`, by the entry point named like its scheme."""
    store = make_store(url)
    await store.open()
    return store


def make_store(url: str) -> Store:
    """The store at `url`, not opened yet."""
    parsed = parse_url(url)
    try:
        opener = find_opener(parsed.scheme)
        if opener is not None:
            return opener(parsed)
    except ModuleNotFoundError as error:
        install = kind_of(url).install
        command = f"install it with: pip install '{install}'" if install else "install it"
        raise InvalidOption("store", f"{parsed.scheme}: needs {error.name}; {command}") from error
    raise _not_registered(parsed.scheme)


def _not_registered(scheme: str) -> InvalidOption:
    family, plus, driver = scheme.partition("+")
    schemes = known_schemes()
    if plus and family in schemes and not any(other.startswith(f"{family}+") for other in schemes):
        reason = f"{scheme}: names {driver}, a driver for SQLAlchemy; Holdfast brings its own, so write {family}:"
        return InvalidOption("store", reason)
    known = ", ".join(f"{name}:" for name in schemes)
    return InvalidOption("store", f"no store is registered for {scheme}:; there are {known}")


_OPTION = re.compile(r"[a-zA-Z0-9_]+")
_LOGIN = re.compile(r"([^:/?#]+://)(.*)@", re.DOTALL)
"""Up to the last `@`, wherever it is: a password that was not percent-encoded may contain anything."""
_SECRETS = re.compile(r"([?&][a-z_]*password=)[^&]*", re.IGNORECASE)


def existing(url: str) -> str:
    """The same store, but never created: a mistyped directory or database must not become an empty queue."""
    option = kind_of(url).create_option
    if not option or f"{option}=" in url.partition("?")[2]:
        return url
    return f"{url}{'&' if '?' in url else '?'}{option}=0"


def absolute(url: str) -> str:
    """The same store, for processes in other working directories: a relative path becomes absolute."""
    head, mark, query = url.partition("?")
    scheme, _, rest = head.partition(":")
    if kind_of(url).place != "directory" or not rest or rest.startswith("/"):
        return url
    return f"{scheme}:{quote(str(Path(unquote(rest)).expanduser().absolute()))}{mark}{query}"


def check_shared(option: str, url: str, reason: str) -> None:
    """Raise InvalidOption for a store that other processes cannot open. `reason` says why this one is of no use."""
    if kind_of(url).place == "process":
        raise InvalidOption(option, f"a {url.partition(':')[0]}: store {reason}")


def shown_url(url: str) -> str:
    """A store's URL without its passwords, for logs and reports."""
    # In a URL without a server, an `@` is part of a name.
    found = _LOGIN.match(url) if kind_of(url).place == "server" else None
    if found is not None:
        user, colon, _ = found[2].partition(":")
        url = f"{found[1]}{user}{':***' if colon else ''}@{url[found.end() :]}"
    return _SECRETS.sub(r"\1***", url)


class CommonOptions(Struct, frozen=True):
    """Options that every store has, from the query parameters of its URL."""

    test_clock: str
    """"0": the real clock; "1": it can be shifted; "frozen": it moves only by shifts."""
    all_events: bool
    """`events=all` also records `extended` and `progressed`."""
    keep_events: int
    """How many events to keep when no registered reader waits for them."""
    retention: Retention
    budgets: Budgets
    """The budgets of a tenant that has none of its own. 0: no limit. [TENANT-5]"""
    max_result_ttl_ms: int
    """The longest `result_ttl` and the longest life of an idempotency key; 0: no ceiling."""


class Options:
    """The options of a store URL. Each is read once by name; `finish` refuses the rest."""

    def __init__(self, url: StoreUrl) -> None:
        self._scheme = url.scheme
        self._left = dict(url.options)
        self._known: list[str] = []

    def text(self, name: str, default: str, allowed: Sequence[str] | None = None) -> str:
        self._known.append(name)
        value = self._left.pop(name, default)
        if allowed is not None and value not in allowed:
            raise InvalidOption(name, f"{value!r} is not one of {', '.join(map(repr, allowed))}")
        return value

    def number(self, name: str, default: int, least: int, most: int) -> int:
        text = self.text(name, str(default))
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise InvalidOption(name, f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    def common(self) -> CommonOptions:
        """The options that every store has."""
        return CommonOptions(
            test_clock=self.text("test_clock", "0", ("0", "1", "frozen")),
            all_events=self.text("events", "transitions", ("transitions", "all")) == "all",
            keep_events=self.number("keep_events", 100_000, 0, EVENTS_BOUND),
            retention=Retention(
                failed_ms=1000 * self.number("keep_failed_s", 7 * DAY // 1000, 0, 10 * 365 * DAY // 1000),
                canceled_ms=1000 * self.number("keep_canceled_s", DAY // 1000, 0, 10 * 365 * DAY // 1000),
            ),
            budgets=Budgets(**{name: self.number(name, getattr(DEFAULTS, name), 0, MAX_BUDGET) for name in STORED}),
            max_result_ttl_ms=1000 * self.number("max_result_ttl_s", RESULT_TTL_CEILING // 1000, 0, LONGEST // 1000),
        )

    def finish(self) -> None:
        """Raise InvalidOption for the first option that the store does not have."""
        for name in self._left:
            known = ", ".join(sorted(self._known)) or "none"
            raise InvalidOption(name, f"{self._scheme}: has no such option; it has: {known}")
