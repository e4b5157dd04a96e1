"""The numbers that stores write for states, outcomes, reasons, key policies and event kinds.

Rows, records, SQL and Lua get them from these tables. The numbers are part of every store's layout: a new word gets a
new number, and no number is used again.
"""

from __future__ import annotations

from typing import Final, get_args

from holdfast.core.events import EventKind
from holdfast.core.job import DeadReason, JobState, KeyPolicy, Outcome

STATES: Final = (
    JobState.BLOCKED, JobState.SCHEDULED, JobState.READY, JobState.RETRYING,
    JobState.LEASED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELED,
)  # fmt: skip
"""By number. Waiting states come before `LEASED`, terminal ones after it."""
STATE_CODES: Final = {state: code for code, state in enumerate(STATES)}
LEASED: Final = STATE_CODES[JobState.LEASED]

OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
OUTCOME_CODES: Final[dict[str, int]] = {"": 0} | {outcome: code for code, outcome in enumerate(OUTCOMES, 1)}
"""0: the token is unused."""

REASONS: Final[tuple[DeadReason, ...]] = get_args(DeadReason)
REASON_CODES: Final[dict[str, int]] = {"": 0} | {reason: code for code, reason in enumerate(REASONS, 1)}
"""0: the job has not failed."""

KEY_POLICIES: Final[tuple[KeyPolicy, ...]] = get_args(KeyPolicy)
KEY_POLICY_CODES: Final[dict[str, int]] = {policy: code for code, policy in enumerate(KEY_POLICIES, 1)}

EVENT_KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)
EVENT_CODES: Final[dict[str, int]] = {kind: code for code, kind in enumerate(EVENT_KINDS)}
