"""Where the suite works: spaces of its own next to the given URL, never the data that is there.

A memory store gets another name, a file store a directory below, Redis another `prefix`, PostgreSQL another
`schema`. A third-party store without such an option passes a function of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from holdfast.opening import open_store, parse_url

Locate = Callable[[str, str], str]
"""(the URL given, the name of a place) -> the URL of that place, without the options of the suite."""


class Spaces:
    """The places of one run."""

    def __init__(self, url: str, locate: Locate | None = None, *, exact: bool = False) -> None:
        self.given = url
        self.exact = exact
        """The store promises exact turns to one process, and exact quotas to enqueues that join no transaction."""
        self.run = f"conf{uuid.uuid4().hex[:8]}"
        self._locate = locate or _locate
        self._owned = locate is None
        self._made: set[str] = set()

    def url(self, place: str, **options: str) -> str:
        """The URL of a place, with these options on top of those given."""
        head, _, query = self._locate(self.given, f"{self.run}-{place}").partition("?")
        merged = dict(parse_qsl(query, keep_blank_values=True)) | options
        # Only a store with a test clock can be erased.
        clock = "frozen" if merged.get("test_clock") == "frozen" else "1"
        self._made.add(f"{head}?{urlencode(merged | {'test_clock': clock})}")
        return f"{head}?{urlencode(merged)}" if merged else head

    async def remove(self) -> None:
        """Take away what the run left behind: files, or what a store that can `erase` has under its prefix."""
        if self._owned and self.given.startswith("file:"):
            await asyncio.to_thread(self._remove_files)
        elif self._owned and not self.given.startswith("memory:"):
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
    scheme = head.partition(":")[0]
    if scheme == "memory":
        return f"{head}{place}{mark}{query}"
    if scheme == "file":
        return f"{head.rstrip('/')}/{place}{mark}{query}"
    options = dict(parse_qsl(query, keep_blank_values=True))
    if scheme in ("postgresql", "postgres"):
        options["schema"] = f"{options.get('schema', 'hf')}-{place}"
        return f"{head}?{urlencode(options)}"
    options["prefix"] = f"{options.get('prefix', 'hf')}-{place}"
    return f"{head}?{urlencode(options)}"
