"""What an operator can set."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network

from msgspec import Struct

from holdfast.core.errors import InvalidOption

LEAST_KEY = 32
KIB, MIB = 1024, 1024 * 1024
LEAST_SHARE = 16


class TokenSettings(Struct, frozen=True, kw_only=True):
    """How tokens are checked."""

    hs256_key: str | None = None
    """A secret that both sides know, of 32 bytes or more."""
    jwks: str | None = None
    """Where the public keys are: a file, or an https:// URL."""
    issuer: str = "holdfast"
    audience: str = "holdfast"
    tenant_claim: str = "tid"
    leeway_s: float = 10.0
    """How far the clocks of those who issue tokens may be off."""

    def check(self) -> TokenSettings:
        """Return itself if tokens can be checked with it. Raises InvalidOption, without the key."""
        if self.hs256_key is None and self.jwks is None:
            reason = "no key to check tokens with; set HOLDFAST_JWT_HS256_KEY or HOLDFAST_JWKS_URL"
            raise InvalidOption("tokens", reason)
        if self.hs256_key is not None and len(self.hs256_key.encode()) < LEAST_KEY:
            reason = f"a key of HS256 needs {LEAST_KEY} bytes or more; `holdfast keys new` makes one"
            raise InvalidOption("hs256_key", reason)
        if not self.issuer or not self.audience or not self.tenant_claim:
            raise InvalidOption("tokens", "issuer, audience and the tenant's claim must not be empty")
        return self


class Limits(Struct, frozen=True, kw_only=True):
    """How much a client may ask for. What is a tenant's holds where its own budgets say nothing else. [TENANT-5]"""

    body: int = 1 * MIB
    batch_body: int = 4 * MIB
    header_bytes: int = 32 * KIB
    token_bytes: int = 8 * KIB
    header_s: float = 10.0
    """From the connection, or the end of the last answer, to the end of the headers."""
    body_s: float = 30.0
    send_s: float = 30.0
    """How long a client may take nothing of what is sent to it."""
    connections: int = 10_000
    """Open ones in a process; further ones are answered 503."""
    tenant_connections: int | None = None
    """Of one tenant, without those on which a request waits. None: a tenth of all; 0: any number."""
    address_connections: int | None = None
    """From one address, with a token or without. None: a fifth of all; 0: any number."""
    tenant_waits: int | None = None
    """Claims and results that wait, of one tenant; those of all: a quarter of the connections.

    None: a tenth of all connections; 0: any number."""
    tenant_streams: int | None = None
    """Event streams of one tenant; those of all: a quarter of the connections. None and 0: as above."""
    memory: int = 256 * MIB
    """Bytes in flight in a process: bodies on their way in, answers on their way out. 0: any number."""
    tenant_memory: int = 64 * MIB
    address_memory: int = 128 * MIB
    rate: float = 0.0
    """Requests per second for each token, in a process; 0: any number."""
    tenant_rate: int = 1_000
    """Requests per second of each tenant, in a process; 0: any number."""
    tenant_changes: int = 10_000
    """Jobs and leases per second that requests of a tenant change, in a process; 0: any number."""
    bad_tokens: float = 50.0
    """Tokens per second that are not accepted, from one address, in a process; 0: any number."""
    grace_s: float = 30.0
    """How long requests may go on after SIGTERM."""

    def share_of_connections(self, said: int | None, part: int) -> int:
        """A limit that was given, or a part of all connections that leaves a few at least."""
        return max(LEAST_SHARE, self.connections // part) if said is None else said


class Settings(Struct, frozen=True, kw_only=True):
    """All of it. Travels to child processes."""

    store: str
    tokens: TokenSettings
    limits: Limits = Limits()
    blobs: str | None = None
    upkeep: bool = True
    """Whether to run the reaper and the pruner."""
    metrics: bool = True
    """Whether /metrics is served with the rest."""
    access_log: bool = True
    audit_queue: bool = False
    """Whether lines of the audit trail become jobs of a reserved queue as well."""
    proxies: str = ""
    """Addresses and networks, with commas, whose X-Forwarded-For is believed."""


def check_proxies(text: str) -> str:
    """Return it if it is a list of addresses and networks. Raises InvalidOption."""
    try:
        proxy_networks(text)
    except ValueError as error:
        raise InvalidOption("trusted_proxies", f"addresses and networks, with commas between them: {error}") from None
    return text


def proxy_networks(text: str) -> list[IPv4Network | IPv6Network]:
    """The networks of such a list. Raises ValueError."""
    return [ip_network(part.strip()) for part in text.split(",")] if text else []
