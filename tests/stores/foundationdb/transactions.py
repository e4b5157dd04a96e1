"""A caller's own transaction of FoundationDB."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from holdfast.opening import make_store


def of_a_cluster(url: str) -> AbstractAsyncContextManager[Any]:
    """Commits at the end. An exception rolls it back."""
    store: Any = make_store(url)
    return store.own_transaction()
