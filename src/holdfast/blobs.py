"""Large results and payloads in an object store, by reference. Needs `pip install 'holdfast[blobs]'`.

A blob's name begins with its tenant, and every part of it is percent-encoded. No two addresses share a name,
and no name leads out of its tenant. [TENANT-3]
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from msgspec import Struct

from holdfast.core.errors import InvalidOption, InvalidPayload, StoreUnavailable
from holdfast.core.job import JobKey
from holdfast.opening import shown_url
from holdfast.store import Finding

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# File systems allow 255 bytes for one part of a path.
_PART_LIMIT = 200
_OWNER, _GROUP = 0o700, 0o770

_in_memory: dict[str, ObjectStore] = {}


class BlobRef(Struct, frozen=True):
    """The name, size and hash of a blob. A payload can contain it like any other value."""

    name: str
    size: int
    sha256: str


class _BlobDirectory(Struct, frozen=True):
    """A directory of blobs, and the mode of the directories in it."""

    directory: Path
    mode: int

    def make(self, path: Path) -> None:
        """Create a directory and its parents, unless they exist. Raises StoreUnavailable."""
        try:
            for place in reversed([path, *path.parents]):
                if not place.exists():
                    inside = place.is_relative_to(self.directory)
                    place.mkdir(mode=_OWNER if inside else 0o777, exist_ok=True)
                    if inside and self.mode != _OWNER:
                        place.chmod(self.mode)
        except OSError as error:
            raise StoreUnavailable(f"the blob store failed: cannot make {path}: {error.strerror}") from error


class Blobs:
    """A blob store: `file:./dir` or a path, `s3://bucket/prefix`, `gs://`, `az://`; `memory://` for tests.

    In a directory, only the owner can read what it makes, whatever the umask. `file:./dir?group=1` adds the group.
    """

    def __init__(self, store: ObjectStore, place: _BlobDirectory | None = None) -> None:
        self._store = store
        self._place = place

    @classmethod
    def open(cls, url: str | os.PathLike[str]) -> Blobs:
        """The blob store at `url`. Sends nothing yet. Raises InvalidOption, also if obstore is missing."""
        text = os.fspath(url)
        try:
            from obstore.store import LocalStore, MemoryStore, from_url
        except ModuleNotFoundError as error:
            reason = f"{shown_url(text)!r} needs obstore; install it with: pip install 'holdfast[blobs]'"
            raise InvalidOption("blobs", reason) from error
        scheme, colon, rest = text.partition(":")
        if colon and scheme == "memory":
            return cls(_in_memory.setdefault(text, MemoryStore()))
        if not colon or scheme == "file":
            path, _, query = rest.partition("?") if colon else (text, "", "")
            if query not in ("", "group=0", "group=1"):
                raise InvalidOption("blobs", "a directory has the option group=1 and no other")
            directory = Path(unquote(path.removeprefix("//")) if colon else text).absolute()
            place = _BlobDirectory(directory, _GROUP if query == "group=1" else _OWNER)
            place.make(directory)
            return cls(LocalStore(prefix=directory), place)
        try:
            return cls(from_url(text))
        except Exception as error:  # obstore raises many kinds, some of them private
            shown = shown_url(text)
            if shown != text:
                raise InvalidOption("blobs", f"{shown!r} is not a blob store") from None  # The cause has the password.
            raise InvalidOption("blobs", f"{text!r} is not a blob store: {_first_line(error)}") from error

    def doctor(self) -> list[Finding]:
        """Check a directory of blobs. Other blob stores are not checked."""
        if self._place is None:
            return []
        directory, mode = self._place.directory, self._place.mode
        wide = [path for path in (directory, *directory.rglob("*")) if path.stat().st_mode & 0o777 & ~mode]
        if not wide:
            return [Finding("ok", "blobs", f"{directory} is closed to other users")]
        cure = f"chmod -R {'go' if mode == _OWNER else 'o'}-rwx {directory}"
        return [Finding("warn", "blobs", f"other users can reach {len(wide)} files, {wide[0]} among them", cure)]

    async def put(self, name: str, data: bytes) -> None:
        """Store `data` under `name`. When this returns, the blob store has acknowledged it."""
        from obstore import put_async

        if self._place is None:
            await _translated(put_async(self._store, name, data))
            return
        # Restrict the directory before anything is in it.
        path = self._place.directory / name
        self._place.make(path.parent)
        await _translated(put_async(self._store, name, data))
        with contextlib.suppress(FileNotFoundError):
            path.chmod(self._place.mode & 0o666)

    async def get(self, name: str) -> bytes | None:
        """The bytes stored under `name`, or None."""
        from obstore import get_async

        found = await _translated(get_async(self._store, name))
        return None if found is None else bytes(await found.bytes_async())

    async def delete(self, names: Iterable[str]) -> None:
        """Delete blobs. A missing one is no error."""
        from obstore import delete_async

        for name in names:
            await _translated(delete_async(self._store, name))

    async def add(self, tenant: str, data: bytes) -> BlobRef:
        """Store a tenant's payload under a name made from its content."""
        digest = hashlib.sha256(data).hexdigest()
        # The name is made from content and size: equal bytes are one blob, so a repeated put is harmless.
        ref = BlobRef(f"{_part(tenant)}/payloads/{digest}", len(data), digest)
        await self.put(ref.name, data)
        return ref

    async def read(self, ref: BlobRef) -> bytes:
        """The bytes of a blob. Raises InvalidPayload if they are missing or have changed."""
        data = await self.get(ref.name)
        if data is None:
            raise InvalidPayload(f"blob {ref.name!r} is not in the blob store")
        if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
            raise InvalidPayload(f"blob {ref.name!r} is not what its reference says")
        return data

    def read_sync(self, ref: BlobRef) -> bytes:
        """`read` for a thread without an event loop: it blocks."""
        import asyncio

        return asyncio.run(self.read(ref))


def result_name(key: JobKey, token: int) -> str:
    """The name for the result of one lease of a job. A late writer never overwrites another lease's result."""
    return "/".join([_part(key.tenant), "results", _part(key.queue), _part(key.id), str(token)])


def check_owner(ref: BlobRef, tenant: str) -> BlobRef:
    """Return `ref` if it is that tenant's. Another tenant's blob gets the same error as a missing one. [TENANT-2]"""
    if ref.name != f"{_part(tenant)}/payloads/{ref.sha256}":
        raise InvalidPayload(f"blob {ref.name!r} is not in the blob store")
    return ref


def _part(name: str) -> str:
    encoded = quote(name, safe="").replace(".", "%2E") if not name.strip(".") else quote(name, safe="")
    if len(encoded) <= _PART_LIMIT:
        return encoded
    # Quoting never makes a "=", so a digest equals no other name.
    return "=" + hashlib.sha256(name.encode()).hexdigest()


async def _translated(operation: Any) -> Any:
    from obstore.exceptions import BaseError

    try:
        return await operation
    except FileNotFoundError:
        return None
    except (BaseError, OSError) as error:
        raise StoreUnavailable(f"the blob store failed: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
