"""The address of the server: parses a store URL of PostgreSQL.

    postgresql://[USER[:PASSWORD]@]HOST[:5432][,HOST2...]/DATABASE[?OPTIONS]       also postgres://
    postgresql:///DATABASE?host=/run/postgresql                                    by a socket in the file system

Options of our own are taken out; `host`, `user`, `password`, `sslmode` and the other words of libpq that the driver
knows are passed to it unchanged. This module reads text and opens nothing.
"""

from __future__ import annotations

import re
from urllib.parse import urlencode

from msgspec import Struct

from holdfast.core.errors import InvalidOption
from holdfast.opening import CommonOptions, Options, StoreUrl, shown_url

_SCHEMA = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,59}")
_HOSTS = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]{1,5})?")
DRIVER_OPTIONS = (
    "host", "port", "dbname", "database", "user", "password", "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert",
    "sslcrl", "sslpassword", "ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs",
)  # fmt: skip


class PostgresAddress(Struct, frozen=True):
    """A store URL of PostgreSQL, read and checked."""

    dsn: str
    """The address for the driver."""
    shown: str
    """The URL for people: without password and without options."""
    schema: str
    migrate: bool
    listen: bool
    notify: bool
    """Whether a change in a caller's transaction sends hints with the caller's commit."""
    connections: int
    timeout_s: int
    connect_timeout_s: int
    wait_s: int
    common: CommonOptions

    @property
    def identity(self) -> tuple[str, str]:
        """Identifies the data: stores with the same identity share one cache."""
        return self.dsn, self.schema


def read(url: StoreUrl) -> PostgresAddress:
    """Parse the URL. Raises InvalidOption with what to write instead."""
    head = url.url.partition("?")[0]
    rest = head.partition(":")[2]
    if not rest.startswith("//"):
        raise InvalidOption("store", f"{url.scheme}: two slashes follow: {url.scheme}://USER@HOST:5432/DATABASE")
    _check_login(url, rest[2:])
    options = Options(url)
    common = options.common()
    driver = {name: value for name in DRIVER_OPTIONS if (value := options.text(name, ""))}
    address = PostgresAddress(
        dsn=f"postgresql:{rest}?{urlencode(driver)}" if driver else f"postgresql:{rest}",
        shown=shown(f"{url.scheme}:{rest}"),
        schema=checked_schema(options.text("schema", "holdfast")),
        migrate=options.text("migrate", "1", ("0", "1")) == "1",
        listen=options.text("listen", "1", ("0", "1")) == "1",
        notify=options.text("notify", "1", ("0", "1")) == "1",
        connections=options.number("connections", 10, 2, 1000),
        timeout_s=options.number("timeout_s", 10, 1, 300),
        connect_timeout_s=options.number("connect_timeout_s", 5, 1, 300),
        wait_s=options.number("wait_s", 5, 1, 300),
        common=common,
    )
    options.finish()
    return address


def shown(url: str) -> str:
    """A URL for people: without password and without options."""
    return shown_url(url.partition("?")[0]).replace(":***@", "@").replace("//@", "//")


def _check_login(url: StoreUrl, rest: str) -> None:
    """Raise InvalidOption for a URL that the driver would parse wrongly: its error would show part of a password."""
    authority, _, path = rest.partition("/")
    hosts = authority.rpartition("@")[2].split(",")
    if "@" in path or "#" in rest or not all(_HOSTS.fullmatch(host) for host in hosts):
        reason = "in a user name or password '/' is written %2F, '#' %23, '?' %3F, '@' %40; a port is a number"
        raise InvalidOption("store", f"{url.scheme}: {reason}: {url.scheme}://USER:PASSWORD@HOST:5432/DATABASE")


def checked_schema(name: str) -> str:
    """The name of a schema, if it is valid. Raises InvalidOption."""
    if not _SCHEMA.fullmatch(name) or name.startswith("pg_"):
        raise InvalidOption("schema", f"{name!r} is not 1 to 60 letters, digits, '_' or '-', or begins with 'pg_'")
    return name
