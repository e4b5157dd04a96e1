"""Small JSON files, written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any, TypeVar

from msgspec import DecodeError
from msgspec import json as msgjson

from holdfast.core.errors import StoreMismatch

T = TypeVar("T")

RESTORE = "Restore it from a backup of the lake, or ingest into a new directory."


def read_json(path: Path, type_: type[T], cure: str = RESTORE) -> T:
    """Read what `write_json` wrote. Raises FileNotFoundError, or StoreMismatch with the cure if it is damaged."""
    try:
        return msgjson.decode(path.read_bytes(), type=type_)
    except (DecodeError, UnicodeDecodeError) as error:
        raise StoreMismatch(f"{path} is damaged: {error}. {cure}") from None


def write_json(path: Path, document: Any) -> None:
    """Write a small file. A crash leaves the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with fresh.open("wb") as file:
        file.write(msgjson.encode(document))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
