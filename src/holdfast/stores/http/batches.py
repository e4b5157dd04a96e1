"""Batches on their way: cut to what the service takes, put together again, in order. [ENQ-4]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw

from holdfast.protocol import answers, requests
from holdfast.stores.http.client import Link
from holdfast.stores.http.errors import TooLarge, not_ours

A = TypeVar("A")

MOST_BYTES = 3 * 1024 * 1024
"""A service takes 4 MiB, unless it is set to less; then parts are cut in half."""


async def send(
    link: Link,
    path: str,
    name: str,
    items: Sequence[bytes],
    type: type[A],
    *,
    headers: Mapping[str, str] | None = None,
    repeat: bool = True,
) -> list[A | answers.ErrorInfo]:
    """The answers to all items of a batch, each in its place."""
    found: list[A | answers.ErrorInfo] = []
    parts = _parts(items)
    while parts:
        part = parts.pop(0)
        body = b'{"%s":[%s]}' % (name.encode(), b",".join(part))
        try:
            told = await link.call("POST", path, answers.Items[Raw], body=body, headers=headers, repeat=repeat)
        except TooLarge:
            if len(part) == 1:
                raise
            parts[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
            continue
        if len(told.items) != len(part):
            raise not_ours(link.shown)
        found += [_item(answer, type, link) for answer in told.items]
    return found


def _parts(items: Sequence[bytes]) -> list[list[bytes]]:
    parts: list[list[bytes]] = []
    size = MOST_BYTES
    for item in items:
        size += len(item) + 1
        if size > MOST_BYTES or len(parts[-1]) == requests.BATCH_LIMIT:
            parts.append([])
            size = len(item)
        parts[-1].append(item)
    return parts


def _item(answer: Raw, type: type[A], link: Link) -> A | answers.ErrorInfo:
    try:
        if bytes(answer).startswith(b'{"error"'):
            return msgspec.json.decode(answer, type=answers.Refused).error
        return msgspec.json.decode(answer, type=type)
    except msgspec.MsgspecError:
        raise not_ours(link.shown) from None
