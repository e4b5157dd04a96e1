"""Assertions that also hold under `python -O`, each with a sentence about what was expected."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class Broken(AssertionError):
    """A store did not do what the rule says."""


class Skipped(Exception):
    """The store declares that it lacks what the check is about; the text names it."""


def expect(held: object, what: str) -> None:
    """Fail with `what` unless `held`."""
    if not held:
        raise Broken(what)


def expect_equal(got: object, want: object, what: str) -> None:
    """Fail unless both are equal."""
    if got != want:
        raise Broken(f"{what}: got {got!r}, want {want!r}")


def expect_between(got: int, low: int, high: int, what: str) -> None:
    """Fail unless `low <= got <= high`."""
    if not low <= got <= high:
        raise Broken(f"{what}: got {got}, want {low} to {high}")


def expect_a(got: object, kind: type[T], what: str) -> T:
    """Fail unless `got` is of exactly this kind; returns it."""
    if type(got) is not kind:
        raise Broken(f"{what}: got {got!r}, want {kind.__name__}")
    return got


def expect_some(got: T | None, what: str) -> T:
    """Fail on None; returns what is there."""
    if got is None:
        raise Broken(f"{what}: got None")
    return got
