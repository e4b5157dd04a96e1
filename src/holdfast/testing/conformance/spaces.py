"""Where the suite works: in spaces of its own beside the given URL. It does not touch existing data.

A space of a store in this process is another name; of one in a directory, a directory below it; of one on a server,
another value of the option that keeps its stores apart (`StoreKind.space_option`). A store without that option passes
a function.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from holdfast.core.errors import InvalidOption
from holdfast.kinds import kind_of
from holdfast.opening import open_store, parse_url

Locate = Callable[[str, str], str]
"""(the URL given, the name of a space) -> the URL of that space, without the options of the suite."""


class Spaces:
    """The spaces of one run."""

    def __init__(self, url: str, locate: Locate | None = None, *, exact: bool = False) -> None:
        self.given = url
        self.exact = exact
        """Whether turns are exact within one process, and quotas for enqueues that join no transaction."""
        self.run = f"conf{uuid.uuid4().hex[:8]}"
        self._locate = locate or _locate
        self._owned = locate is None
        self._made: set[str] = set()

    def url(self, place: str, **options: str) -> str:
        """The URL of a space, with these options in addition to those given."""
        head, _, query = self._locate(self.given, f"{self.run}-{place}").partition("?")
        merged = dict(parse_qsl(query, keep_blank_values=True)) | options
        # Only a store with a test clock can be erased.
        clock = "frozen" if merged.get("test_clock") == "frozen" else "1"
        self._made.add(f"{head}?{urlencode(merged | {'test_clock': clock})}")
        return f"{head}?{urlencode(merged)}" if merged else head

    async def remove(self) -> None:
        """Remove the spaces: their files, or what a store with `erase` has under its prefix."""
        where = kind_of(self.given).place if self._owned else None
        if where == "directory":
            await asyncio.to_thread(self._remove_files)
        elif where == "server":
            for url in self._made:
                await _erase(url)

    def _remove_files(self) -> None:
        root = Path(parse_url(self.given).rest)
        for place in root.glob(f"{self.run}-*"):
            shutil.rmtree(place, ignore_errors=True)


async def _erase(url: str) -> None:
    store = await open_store(url)
    try:
        erase = getattr(store, "erase", None)
        if erase is not None:
            await erase()
    finally:
        await store.close()


def _locate(url: str, place: str) -> str:
    head, mark, query = url.partition("?")
    kind = kind_of(url)
    if kind.place == "process":
        return f"{head}{place}{mark}{query}"
    if kind.place == "directory":
        return f"{head.rstrip('/')}/{place}{mark}{query}"
    if not kind.space_option:
        reason = f"{head.partition(':')[0]}: declares no `space_option`; pass a function `locate` that names spaces"
        raise InvalidOption("store", reason)
    options = dict(parse_qsl(query, keep_blank_values=True))
    options[kind.space_option] = f"{options.get(kind.space_option, 'hf')}-{place}"
    return f"{head}?{urlencode(options)}"
