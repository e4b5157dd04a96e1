"""Bugs in the names of operators: an event does not say who canceled, replayed or purged, in each store."""

from __future__ import annotations

from typing import Any

from holdfast.core import lifecycle
from tests.mutants.planting import STORES, Bug, Planted, mutant


@mutant("EVENT-1", stores=STORES, seen_by="a_canceled_event_names_the_operator")
def a_canceled_event_lacks_its_operator(bug: Bug) -> None:
    """The event of a cancel does not say who canceled."""
    _drop(bug, "cancel")
    for store in ("redis", "shards"):
        bug.at(store).lua("cancel", "EVENT_CANCELED, item[5]", "EVENT_CANCELED, ''")


@mutant("EVENT-1", stores=STORES, seen_by="a_replayed_event_names_the_operator")
def a_replayed_event_lacks_its_operator(bug: Bug) -> None:
    """The event of a replay does not say who replayed."""
    _drop(bug, "replay")
    for store in ("redis", "shards"):
        bug.at(store).lua("replay", "[EXTRA_REPLAYS], by)", "[EXTRA_REPLAYS], '')")


@mutant("EVENT-1", stores=STORES, seen_by="a_purged_event_names_the_operator")
def a_purged_event_lacks_its_operator(bug: Bug) -> None:
    """The event of a purge does not say who purged."""
    _drop(bug, "purge")
    for store in ("redis", "shards"):
        bug.at(store).lua("purge", "number, series, item[5]", "number, series, ''")


def _drop(bug: Bug, transition: str) -> None:
    """The stores in Python give the operator as the last argument."""

    def dropped(original: Planted, *args: Any) -> Any:
        return original(*args[:-1], "")

    bug.around(lifecycle, transition, dropped)
