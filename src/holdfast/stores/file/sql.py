"""The statements of queries.sql by name."""

from __future__ import annotations

import re
from importlib.resources import files

from holdfast.stores.file.rows import JOB_COLUMNS


def _load() -> dict[str, str]:
    text = files("holdfast.stores.file").joinpath("queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)[1:]
    bodies = (re.sub(r"^--.*\n?", "", body, flags=re.MULTILINE).strip() for body in parts[1::2])
    return {
        name: body.removesuffix(";").replace("{job}", JOB_COLUMNS)
        for name, body in zip(parts[::2], bodies, strict=True)
    }


def arms(name: str) -> str:
    """A query that runs the arm `name` for each rank, the first priority first.

    SQLite runs the arms of a UNION ALL one after another and stops at the outer LIMIT.
    """
    return " UNION ALL ".join(SQL[name].replace("{rank}", str(rank)) for rank in range(10))


SQL = _load()
ROWS = 100
"""How many jobs `ADD_JOBS` adds."""
_ROW = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_JOBS = SQL["add_job"].replace(_ROW, ", ".join([_ROW] * ROWS))
VISIBLE = f"{arms('visible_arm')} LIMIT ?3 OFFSET ?4"
ANY_VISIBLE = f"{arms('any_visible_arm')} LIMIT 1"
SOONEST = f"SELECT min(at) FROM ({arms('soonest_arm')})"  # noqa: S608 - no outside text in it
FUTURE = arms("future_arm")
OLDEST_READY = f"SELECT min(at) FROM ({arms('soonest_arm')}) WHERE at <= ?2"  # noqa: S608
SCHEMA = files("holdfast.stores.file").joinpath("schema.sql").read_text(encoding="utf-8")
