"""The faults of a simulated database, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Faults:
    """How often what goes wrong, each as a share of the commits or reads it can befall."""

    conflict: float = 0.0
    """A commit fails with NOT_COMMITTED, though nothing conflicts."""

    too_old: float = 0.0
    """A read or a commit fails with TRANSACTION_TOO_OLD."""

    unknown_applied: float = 0.0
    """A commit is applied and fails with COMMIT_UNKNOWN_RESULT."""

    unknown_not_applied: float = 0.0
    """A commit isn't applied and fails with COMMIT_UNKNOWN_RESULT."""

    behind: float = 0.0
    """A read fails with FUTURE_VERSION or PROCESS_BEHIND."""

    refused: float = 0.0
    """Getting a read version fails with a throttle or a full proxy."""

    slow: int = 0
    """The most turns of the event loop that pass in each wait."""

    unavailable: float = 0.0
    """With a read version or a commit the database stops answering for some dozens of turns."""

    spurious_watch: float = 0.0
    """With a commit, the watches of some key end though it hasn't changed."""

    shared_version: float = 0.0
    """A commit shares the version of the one before, where no reader can tell: they were one batch."""


NONE = Faults()

SOME = Faults(
    conflict=0.02,
    too_old=0.01,
    unknown_applied=0.02,
    unknown_not_applied=0.02,
    behind=0.005,
    refused=0.01,
    slow=4,
    unavailable=0.005,
    spurious_watch=0.05,
    shared_version=0.3,
)
"""A bad day: every fault, and work still gets done."""
