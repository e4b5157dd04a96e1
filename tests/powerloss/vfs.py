"""Watches SQLite: a VFS before its default one, by ctypes, in the very library that Python's own module uses."""

from __future__ import annotations

import ctypes as c
import os
from typing import Any

from tests.powerloss.log import Recorder

_OK = 0
_pointer, _int, _int64, _text = c.c_void_p, c.c_int, c.c_int64, c.c_char_p

_Open = c.CFUNCTYPE(_int, _pointer, _pointer, _pointer, _int, _pointer)
_Delete = c.CFUNCTYPE(_int, _pointer, _text, _int)
_SetSystemCall = c.CFUNCTYPE(_int, _pointer, _text, _pointer)
_GetSystemCall = c.CFUNCTYPE(_pointer, _pointer, _text)
_OpenDirectory = c.CFUNCTYPE(_int, _text, c.POINTER(_int))
_Close = c.CFUNCTYPE(_int, _pointer)
_Write = c.CFUNCTYPE(_int, _pointer, _pointer, _int, _int64)
_Truncate = c.CFUNCTYPE(_int, _pointer, _int64)
_Sync = c.CFUNCTYPE(_int, _pointer, _int)

_alive: list[Any] = []
"""What C holds pointers to: Python must not free it."""


class PowerLossUnsupported(Exception):
    """This Python does not give access to its SQLite."""


class _Vfs(c.Structure):
    """`sqlite3_vfs`, version 3."""

    _fields_ = (
        ("version", _int), ("size_of_file", _int), ("max_path", _int), ("next", _pointer), ("name", _text),
        ("data", _pointer), ("open", _pointer), ("delete", _pointer), ("access", _pointer), ("full_path", _pointer),
        ("dl_open", _pointer), ("dl_error", _pointer), ("dl_sym", _pointer), ("dl_close", _pointer),
        ("randomness", _pointer), ("sleep", _pointer), ("time", _pointer), ("last_error", _pointer),
        ("time64", _pointer), ("set_system_call", _pointer), ("get_system_call", _pointer),
        ("next_system_call", _pointer),
    )  # fmt: skip


class _Methods(c.Structure):
    """`sqlite3_io_methods`, version 3."""

    _fields_ = (
        ("version", _int), ("close", _pointer), ("read", _pointer), ("write", _pointer), ("truncate", _pointer),
        ("sync", _pointer), ("size", _pointer), ("lock", _pointer), ("unlock", _pointer), ("reserved", _pointer),
        ("control", _pointer), ("sector", _pointer), ("characteristics", _pointer), ("shm_map", _pointer),
        ("shm_lock", _pointer), ("shm_barrier", _pointer), ("shm_unmap", _pointer), ("fetch", _pointer),
        ("unfetch", _pointer),
    )  # fmt: skip


class _File(c.Structure):
    """`sqlite3_file`: what every open file begins with."""

    _fields_ = (("methods", c.POINTER(_Methods)),)


def library() -> c.CDLL:
    """Python's own SQLite: symbols are looked up in the module and in what it is linked with."""
    try:
        import _sqlite3

        found = c.CDLL(getattr(_sqlite3, "__file__", None))
        found.sqlite3_vfs_find.argtypes = [_text]
        found.sqlite3_vfs_find.restype = c.POINTER(_Vfs)
        found.sqlite3_vfs_register.argtypes = [c.POINTER(_Vfs), _int]
        plain = found.sqlite3_vfs_find(None)
    except (ImportError, OSError, AttributeError) as error:
        raise PowerLossUnsupported(f"SQLite's functions cannot be reached in this Python: {error}") from error
    if not plain or plain.contents.version < 3 or plain.contents.name not in (b"unix", b"powerloss"):
        raise PowerLossUnsupported("SQLite's default VFS is not the one of Unix here")
    return found


def watch(recorder: Recorder, library: c.CDLL) -> None:
    """Tell the recorder of everything that SQLite does from now on, and do it."""
    plain: Any = library.sqlite3_vfs_find(None)
    _watch_directories(recorder, plain)
    ours = _Vfs.from_buffer_copy(plain.contents)
    ours.name = b"powerloss"
    ours.open, ours.delete = _keep(_opening(recorder, plain)), _keep(_deleting(recorder, plain))
    _alive.append(ours)
    if library.sqlite3_vfs_register(c.byref(ours), 1) != _OK:
        raise PowerLossUnsupported("SQLite does not take another VFS here")


def _keep(function: Any) -> Any:
    _alive.append(function)
    return c.cast(function, _pointer)


def _watch_directories(recorder: Recorder, plain: Any) -> None:
    vfs: _Vfs = plain.contents
    address = _GetSystemCall(vfs.get_system_call)(plain, b"openDirectory")
    if not address:
        raise PowerLossUnsupported("SQLite does not let its system calls be watched here")
    plain_open = _OpenDirectory(address)

    @_OpenDirectory
    def open_directory(name: bytes, out: Any) -> int:
        # SQLite opens a directory for one thing: to flush it, for the sake of the file that it names.
        inside = recorder.inside(os.path.dirname(name))  # noqa: PTH120 - bytes
        if inside is not None:
            recorder.add("sync_names", data=inside.encode())
        return plain_open(name, out)

    _SetSystemCall(vfs.set_system_call)(plain, b"openDirectory", _keep(open_directory))


def _deleting(recorder: Recorder, plain: Any) -> Any:
    plain_delete = _Delete(plain.contents.delete)

    @_Delete
    def delete(_: int, name: bytes, sync_names: int) -> int:
        with recorder.lock:
            inside = recorder.inside(name)
            if inside is not None and os.path.exists(name):  # noqa: PTH110 - bytes
                recorder.add("unlink", data=inside.encode())
            return plain_delete(plain, name, sync_names)

    return delete


def _opening(recorder: Recorder, plain: Any) -> Any:
    plain_open = _Open(plain.contents.open)
    files: dict[int, int] = {}  # Open files, by the address of their struct: the inode.
    dressed: dict[int, _Methods] = {}  # Their methods, by the address of those that they had.
    _alive.append(dressed)

    @_Open
    def open_(_: int, name_address: int | None, address: int, flags: int, out: int) -> int:
        with recorder.lock:
            # SQLite keeps the address of the name, not a copy: it must be its own that goes on.
            name = c.string_at(name_address) if name_address else b""
            inside = recorder.inside(name) if name else None
            new = not os.path.exists(name)  # noqa: PTH110 - bytes
            answer = plain_open(plain, name_address, address, flags, out)
            if answer == _OK and inside is not None:
                files[address] = os.stat(name).st_ino  # noqa: PTH116 - bytes
                if new:
                    recorder.add("link", files[address], data=inside.encode())
                file = _File.from_address(address)
                before = c.addressof(file.methods.contents)
                if before not in dressed:
                    dressed[before] = _dress(recorder, files, file.methods.contents)
                file.methods = c.pointer(dressed[before])
            return answer

    return open_


def _dress(recorder: Recorder, files: dict[int, int], plain: _Methods) -> _Methods:
    plain_close, plain_write = _Close(plain.close), _Write(plain.write)
    plain_truncate, plain_sync = _Truncate(plain.truncate), _Sync(plain.sync)

    @_Close
    def close(address: int) -> int:
        files.pop(address, None)
        return plain_close(address)

    # A write is noted when it is made and a flush before it is: where in doubt, it was not flushed.
    @_Write
    def write(address: int, data: int, size: int, offset: int) -> int:
        with recorder.lock:
            answer = plain_write(address, data, size, offset)
            if answer == _OK:
                recorder.add("write", files[address], offset, c.string_at(data, size))
            return answer

    @_Truncate
    def truncate(address: int, size: int) -> int:
        with recorder.lock:
            answer = plain_truncate(address, size)
            if answer == _OK:
                recorder.add("truncate", files[address], size)
            return answer

    @_Sync
    def sync(address: int, flags: int) -> int:
        recorder.add("sync", files[address])
        return plain_sync(address, flags)

    ours = _Methods.from_buffer_copy(plain)
    ours.close, ours.write = _keep(close), _keep(write)
    ours.truncate, ours.sync = _keep(truncate), _keep(sync)
    return ours
