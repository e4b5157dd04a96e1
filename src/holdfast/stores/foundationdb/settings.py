"""Weights and quotas that operators set, cached until one is set. [TENANT-4, TENANT-5]"""

from __future__ import annotations

from msgspec import Struct, msgpack

from holdfast.core import fairness
from holdfast.core.budgets import Budgets, TenantSettings, merged

MAX_CACHED = 20_000

_encode = msgpack.Encoder().encode


class _SettingsRow(Struct, array_like=True):
    weight: float | None
    max_waiting: int | None
    budgets: Budgets | None


_decode = msgpack.Decoder(_SettingsRow).decode


def pack_settings(settings: TenantSettings) -> bytes:
    """Settings as a value; their queue is in the key."""
    return _encode(_SettingsRow(settings.weight, settings.max_waiting, settings.budgets))


def unpack_settings(queue: str, raw: bytes) -> TenantSettings:
    """The settings with this value; queue "": of the whole tenant."""
    row = _decode(raw)
    return TenantSettings(queue or None, row.weight, row.max_waiting, row.budgets)


def changed(old: TenantSettings, new: TenantSettings) -> TenantSettings:
    """The settings after setting what is not None in `new`."""
    return TenantSettings(
        new.queue,
        old.weight if new.weight is None else new.weight,
        old.max_waiting if new.max_waiting is None else new.max_waiting,
        merged(old.budgets, new.budgets),
    )


class SettingsCache:
    """What was read, by tenant and queue, at one version of all settings."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with each change of a setting. 0: there are none."""
        self.known: dict[tuple[str, str], TenantSettings | None] = {}

    def check(self, version: int) -> None:
        """Empty the cache if a setting has changed."""
        if version != self.version or len(self.known) > MAX_CACHED:
            self.version, self.known = version, {}


def cost(of_queue: TenantSettings | None, of_tenant: TenantSettings | None) -> int:
    """What a turn costs a tenant in a queue."""
    for settings in (of_queue, of_tenant):
        if settings is not None and settings.weight is not None:
            return fairness.cost(settings.weight)
    return fairness.STRIDE
