"""Watches what Python itself does to names: `pathlib` calls the functions of `os` that are wrapped here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.powerloss.log import Kind, Recorder


def watch(recorder: Recorder) -> None:
    """Wrap them for the life of this process."""
    _wrap(recorder, "mkdir", _one_name(recorder, "make"))
    for name in ("unlink", "remove"):
        _wrap(recorder, name, _one_name(recorder, "unlink"))
    for name in ("rename", "replace"):
        _wrap(recorder, name, _two_names(recorder))
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        # Noted before it is made, unlike the rest: where in doubt, a change came too late for it.
        _note_sync(recorder, descriptor)
        fsync(descriptor)

    os.fsync = watched


def _wrap(recorder: Recorder, name: str, note: Callable[..., None]) -> None:
    function = getattr(os, name)

    def watched(*arguments: Any, **options: Any) -> Any:
        with recorder.lock:
            answer = function(*arguments, **options)
            note(*arguments)
            return answer

    setattr(os, name, watched)


def _one_name(recorder: Recorder, kind: Kind) -> Callable[..., None]:
    def note(path: str, *_: Any) -> None:
        inside = recorder.inside(path)
        if inside is not None:
            recorder.add(kind, data=inside.encode())

    return note


def _two_names(recorder: Recorder) -> Callable[..., None]:
    def note(path: str, target: str, *_: Any) -> None:
        if recorder.inside(path) is not None:
            recorder.add("rename", data=f"{recorder.inside(path)}\0{recorder.inside(target)}".encode())

    return note


def _note_sync(recorder: Recorder, descriptor: int) -> None:
    path = Path(f"/proc/self/fd/{descriptor}").readlink()
    inside = recorder.inside(path)
    if inside is not None:
        if path.is_dir():
            recorder.add("sync_names", data=inside.encode())
        else:
            recorder.add("sync", path.stat().st_ino)
