"""The settings of the service."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network

from msgspec import Struct

from holdfast.core.errors import InvalidOption

MIN_KEY = 32
KIB, MIB = 1024, 1024 * 1024
MIN_SHARE = 16


class TokenSettings(Struct, frozen=True, kw_only=True):
    """How to verify tokens."""

    hs256_key: str | None = None
    """A shared secret of at least 32 bytes."""
    jwks: str | None = None
    """The public keys: a file, or an https:// URL."""
    issuer: str = "holdfast"
    audience: str = "holdfast"
    tenant_claim: str = "tid"
    leeway_s: float = 10.0
    """The clock difference to allow between the issuer of a token and the service."""

    def check(self) -> TokenSettings:
        """Return the settings if they can verify tokens. Raises InvalidOption, without the key."""
        if self.hs256_key is None and self.jwks is None:
            reason = "no key to verify tokens; set HOLDFAST_JWT_HS256_KEY or HOLDFAST_JWKS_URL"
            raise InvalidOption("tokens", reason)
        if self.hs256_key is not None and len(self.hs256_key.encode()) < MIN_KEY:
            reason = f"a key for HS256 needs at least {MIN_KEY} bytes; `holdfast keys new` makes one"
            raise InvalidOption("hs256_key", reason)
        if not self.issuer or not self.audience or not self.tenant_claim:
            raise InvalidOption("tokens", "issuer, audience and tenant claim must not be empty")
        return self


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of clients. Those of a tenant are defaults: its own budgets override them. [TENANT-5]"""

    body: int = 1 * MIB
    batch_body: int = 4 * MIB
    header_bytes: int = 32 * KIB
    token_bytes: int = 8 * KIB
    header_s: float = 10.0
    """From the connection, or the end of the previous answer, to the end of the headers."""
    body_s: float = 30.0
    send_s: float = 30.0
    """How long a client may accept no data."""
    connections: int = 10_000
    """Open connections in a process. Further ones are answered 503."""
    tenant_connections: int | None = None
    """Connections of one tenant, without those of waiting requests. None: a tenth of all; 0: no limit."""
    address_connections: int | None = None
    """Connections from one address, with a token or without. None: a fifth of all; 0: no limit."""
    tenant_waits: int | None = None
    """Waiting claims and results of one tenant. Those of all tenants: a quarter of the connections.

    None: a tenth of all connections; 0: no limit."""
    tenant_streams: int | None = None
    """Event streams of one tenant. Those of all tenants: a quarter of the connections. None and 0: as above."""
    memory: int = 256 * MIB
    """Bytes in flight in a process: bodies that arrive, answers that are sent. 0: no limit."""
    tenant_memory: int = 64 * MIB
    address_memory: int = 128 * MIB
    rate: float = 0.0
    """Requests per second of each token, in a process; 0: no limit."""
    tenant_rate: int = 1_000
    """Requests per second of each tenant, in a process; 0: no limit."""
    tenant_changes: int = 10_000
    """Jobs and leases that a tenant changes per second, in a process; 0: no limit."""
    bad_tokens: float = 50.0
    """Invalid tokens per second from one address, in a process; 0: no limit."""
    grace_s: float = 30.0
    """How long requests may take to finish after SIGTERM."""

    def share_of_connections(self, limit: int | None, part: int) -> int:
        """The given limit, else a part of all connections, but at least `MIN_SHARE`."""
        return max(MIN_SHARE, self.connections // part) if limit is None else limit


class ServiceSettings(Struct, frozen=True, kw_only=True):
    """All settings. Child processes get a copy."""

    store: str
    tokens: TokenSettings
    limits: Limits = Limits()
    blobs: str | None = None
    upkeep: bool = True
    """Whether to run maintenance: the reaper and the pruner."""
    metrics: bool = True
    """Whether to serve /metrics on the same port."""
    access_log: bool = True
    audit_queue: bool = False
    """Whether to put the audit trail into a reserved queue as well."""
    proxies: str = ""
    """Trusted proxies: addresses and networks, separated by commas, whose X-Forwarded-For counts."""


def check_proxies(text: str) -> str:
    """Return the text if it is a list of addresses and networks. Raises InvalidOption."""
    try:
        proxy_networks(text)
    except ValueError as error:
        raise InvalidOption("trusted_proxies", f"addresses and networks, separated by commas: {error}") from None
    return text


def proxy_networks(text: str) -> list[IPv4Network | IPv6Network]:
    """The networks in such a list. Raises ValueError."""
    return [ip_network(part.strip()) for part in text.split(",")] if text else []
