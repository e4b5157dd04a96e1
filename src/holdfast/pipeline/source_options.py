"""The options for reading with `format("holdfast")`, and the checks that writing shares."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from holdfast.core.errors import InvalidOption
from holdfast.core.events import EventKind
from holdfast.core.job import JobState
from holdfast.opening import absolute, parse_url

if TYPE_CHECKING:
    from holdfast.pipeline.reader import EventFilter

EARLIEST, LATEST = "earliest", "latest"
STORE_VARIABLE = "HOLDFAST_STORE"
_READING = frozenset({
    "store", "table", "tenant", "queue", "kind", "states", "payload", "startingoffset", "endingoffset",
    "eventsperpartition", "maxeventsperbatch", "acceptgap", "gaps", "into", "path",
})  # fmt: skip


class ReadOptions:
    """The checked options of a read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in _READING:
                raise InvalidOption(name, "there is no such option for reading")
        self.store = store_url(given)
        self.table = given.get("table", "events")
        if self.table not in ("events", "jobs"):
            raise InvalidOption("table", f"{self.table!r} is neither 'events' nor 'jobs'")
        self.tenants, self.queues = _words(given.get("tenant")), _words(given.get("queue"))
        self.kinds = _known("kind", _words(given.get("kind")), get_args(EventKind))
        states = _known("states", _words(given.get("states")), list(JobState))
        self.states = frozenset(JobState(state) for state in states) if states else frozenset(JobState)
        self.payload = _flag("payload", given.get("payload", "false"))
        self.start, self.end = given.get("startingoffset", EARLIEST), given.get("endingoffset", LATEST)
        self.per_partition = number("eventsPerPartition", given.get("eventsperpartition", "100000"))
        self.per_batch = number("maxEventsPerBatch", given.get("maxeventsperbatch", "1000000"))
        self.accept_gap = given.get("acceptgap")
        self.gaps = given.get("gaps", "warn")
        if self.gaps not in ("warn", "fail"):
            raise InvalidOption("gaps", f"{self.gaps!r} is neither 'warn' nor 'fail'")
        self.into = given.get("into")

    def event_filter(self) -> EventFilter:
        """The events that the options ask for."""
        from holdfast.pipeline.reader import EventFilter

        return EventFilter(self.tenants, self.queues, self.kinds)


def store_url(options: Mapping[str, str]) -> str:
    """The URL of the store, valid in every process.

    Raises InvalidOption. The message does not repeat the URL, because it may contain a password.
    """
    url = options.get("store") or options.get("path") or os.environ.get(STORE_VARIABLE)
    if not url:
        raise InvalidOption("store", f"not given; use .option('store', URL) or set {STORE_VARIABLE}")
    parse_url(url)
    return absolute(url)


def number(option: str, text: str) -> int:
    """A whole number of at least one. Raises InvalidOption."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidOption(option, f"{text!r} is not a whole number above 0")
    return int(text)


def _words(text: str | None) -> frozenset[str] | None:
    return None if text is None else frozenset(word.strip() for word in text.split(",") if word.strip())


def _known(option: str, words: frozenset[str] | None, known: Sequence[str]) -> frozenset[str] | None:
    if words is not None and (unknown := words - set(known)):
        raise InvalidOption(option, f"{min(unknown)!r} is unknown; there are {', '.join(known)}")
    return words


def _flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidOption(option, f"{text!r} is neither 'true' nor 'false'")
    return text.lower() == "true"
