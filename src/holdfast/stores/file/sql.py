"""The statements of queries.sql by name, and the schema."""

from __future__ import annotations

import re
from importlib.resources import files

from holdfast.core.codes import STATE_CODES
from holdfast.core.job import JobState
from holdfast.stores.file.rows import JOB_COLUMNS

_VALUES = {
    "{job}": JOB_COLUMNS,
    "{leased}": str(STATE_CODES[JobState.LEASED]),
    "{completed}": str(STATE_CODES[JobState.COMPLETED]),
    "{failed}": str(STATE_CODES[JobState.FAILED]),
}


def _read(name: str) -> str:
    """An SQL file with its placeholders filled in."""
    text = files("holdfast.stores.file").joinpath(name).read_text(encoding="utf-8")
    for placeholder, value in _VALUES.items():
        text = text.replace(placeholder, value)
    return text


def _load() -> dict[str, str]:
    text = _read("queries.sql")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    bodies = (re.sub(r"^--.*\n?", "", body, flags=re.MULTILINE).strip() for body in parts[1::2])
    return {name: body.removesuffix(";") for name, body in zip(parts[::2], bodies, strict=True)}


def arms(name: str) -> str:
    """A query that runs the arm `name` once for each rank, highest priority first.

    SQLite runs the arms of a UNION ALL one after another, and stops at the outer LIMIT.
    """
    return " UNION ALL ".join(SQL[name].replace("{rank}", str(rank)) for rank in range(10))


SQL = _load()
ROWS = 100
"""The number of jobs that `ADD_JOBS` adds."""
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_JOBS = SQL["add_job"].replace(_ROW, ", ".join([_ROW] * ROWS))
VISIBLE = f"{arms('visible_arm')} LIMIT ?3 OFFSET ?4"
ANY_VISIBLE = f"{arms('any_visible_arm')} LIMIT 1"
SOONEST = f"SELECT min(at) FROM ({arms('soonest_arm')})"  # noqa: S608 - built from constants only
FUTURE = arms("future_arm")
OLDEST_READY = f"SELECT min(at) FROM ({arms('soonest_arm')}) WHERE at <= ?2"  # noqa: S608
AHEAD = f"SELECT count(*) FROM ({arms('ahead_arm')} UNION ALL {SQL['ahead_of_its_rank']} LIMIT ?6)"  # noqa: S608
SCHEMA = _read("schema.sql")
