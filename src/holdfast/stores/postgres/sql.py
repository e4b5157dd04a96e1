"""The statements of statements/ by name, and the steps of migrations/, for a schema."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from holdfast.core.budgets import RECORD_BYTES
from holdfast.core.codes import EVENT_CODES, STATE_CODES
from holdfast.stores.postgres.rows import COLUMNS

_NAMED = re.compile(r"^-- name: ([\w{}]+)\n", re.MULTILINE)
SLOTS = 8
"""How many partitions the log has."""
_COMMENT = re.compile(r"^--.*\n?", re.MULTILINE)
_CODE = re.compile(r"\{(state|event):([a-z_]+)\}")
_CODES: dict[str, dict[str, int]] = {
    "state": {state.value: code for state, code in STATE_CODES.items()},
    "event": EVENT_CODES,
}
_KNOWN = re.compile(r"\{check_cache:([0-9]+)\}")
_COLD = {"deadline": "0::bigint AS deadline"}
_HOT = {
    "finished_at": "NULL::bigint AS finished_at", "expires_at": "NULL::bigint AS expires_at",
    "result": "NULL::bytea AS result",
}  # fmt: skip

Statements = dict[str, str]


@cache
def statements(schema: str) -> Statements:
    """Every statement, for the tables of this schema."""
    parts = _NAMED.split(_text(_folder("statements")))[1:]
    hot = ", ".join(_HOT.get(name, name) for name in COLUMNS)
    cold = ", ".join(_COLD.get(name, name) for name in COLUMNS)
    found: Statements = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        bare = _COMMENT.sub("", body).strip().removesuffix(";")
        bare = _KNOWN.sub(r"{s}.check_cache($\1::text::text[])", bare)
        text = fill(bare.replace("{hot}", hot).replace("{cold}", cold), schema)
        text = text.replace("{slots}", str(SLOTS))
        for slot in range(SLOTS if "{slot}" in name else 1):
            found[name.replace("{slot}", str(slot))] = text.replace("{slot}", str(slot))
    return found


def fill(text: str, schema: str) -> str:
    """SQL with the name of its schema and the numbers of states and events: {s}, {state:leased}, {event:claimed}."""
    coded = _CODE.sub(lambda match: str(_CODES[match[1]][match[2]]), text)
    return coded.replace("{record_bytes}", str(RECORD_BYTES)).replace("{s}", quoted(schema))


@cache
def migrations() -> list[tuple[int, str, str]]:
    """Number, name and text of each version of the schema, in order. A version is a folder of files, by subject."""
    folder = _folder("migrations")
    versions = sorted((entry for entry in folder.iterdir() if entry.name.isdigit()), key=lambda entry: entry.name)
    return [(int(version.name), version.name, _text(version)) for version in versions]


def _folder(name: str) -> Traversable:
    return files("holdfast.stores.postgres").joinpath(name)


def _text(folder: Traversable) -> str:
    """The SQL files of a folder as one text, ordered by name."""
    parts = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def digest(text: str) -> str:
    """A digest of a migration's statements, without comments and layout: 16 characters."""
    plain = " ".join(re.sub(r"--[^\n]*", "", text).split())
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def quoted(name: str) -> str:
    """A name, quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'
