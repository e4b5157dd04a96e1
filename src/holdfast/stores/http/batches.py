"""Send a batch in parts that the service accepts, and return the answers in order. [ENQ-4]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec import Raw

from holdfast.protocol import answers, problems, requests
from holdfast.stores.http.client import HttpClient
from holdfast.stores.http.errors import TooLarge, not_ours

A = TypeVar("A")

MAX_BYTES = 3 * 1024 * 1024
"""The default limit of a service is 4 MiB. If it refuses a part as too large, the part is halved."""


async def send(
    client: HttpClient,
    path: str,
    name: str,
    items: Sequence[bytes],
    type: type[A],
    *,
    headers: Mapping[str, str] | None = None,
    repeat: bool = True,
) -> list[A | problems.ErrorInfo]:
    """Return the answers to all items, in order."""
    found: list[A | problems.ErrorInfo] = []
    parts = _parts(items)
    while parts:
        part = parts.pop(0)
        body = b'{"%s":[%s]}' % (name.encode(), b",".join(part))
        try:
            replies = await client.call("POST", path, answers.Items[Raw], body=body, headers=headers, repeat=repeat)
        except TooLarge:
            if len(part) == 1:
                raise
            parts[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
            continue
        if len(replies.items) != len(part):
            raise not_ours(client.shown)
        found += [_item(answer, type, client) for answer in replies.items]
    return found


def _parts(items: Sequence[bytes]) -> list[list[bytes]]:
    parts: list[list[bytes]] = []
    size = MAX_BYTES
    for item in items:
        size += len(item) + 1
        if size > MAX_BYTES or len(parts[-1]) == requests.BATCH_LIMIT:
            parts.append([])
            size = len(item)
        parts[-1].append(item)
    return parts


def _item(answer: Raw, type: type[A], client: HttpClient) -> A | problems.ErrorInfo:
    try:
        if bytes(answer).startswith(b'{"error"'):
            return msgspec.json.decode(answer, type=problems.Refused).error
        return msgspec.json.decode(answer, type=type)
    except msgspec.MsgspecError:
        raise not_ours(client.shown) from None
