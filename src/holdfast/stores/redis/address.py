"""Parses store URLs of the redis family.

    redis://[USER:PASSWORD@]HOST[:6379][/DB]              one server; rediss:// with TLS
    redis+unix://[USER:PASSWORD@]/PATH/TO.SOCK[?db=DB]    one server, through a Unix socket
    redis+sentinel://[USER:PASSWORD@]H1[:26379],H2/SERVICE[?db=DB]    the primary that Sentinel names
    redis+cluster://[USER:PASSWORD@]H1[:6379],H2          a cluster; a few of its nodes are enough

`valkey` and `valkeys` can be written for `redis` and `rediss` everywhere. Special characters in a user name, a password
or a path are percent-encoded. This module does no I/O.
"""

from __future__ import annotations

import re
from enum import StrEnum
from urllib.parse import unquote

from msgspec import Struct

from holdfast.core.errors import InvalidOption
from holdfast.opening import CommonOptions, Options, StoreUrl

_FAMILIES = {"redis": False, "valkey": False, "rediss": True, "valkeys": True}
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGITS = re.compile(r"[0-9]{1,9}")
_MAX_PORT = 65535
_MAX_DB = 1_000_000
_MAX_SHARDS = 256
_SENTINEL_PORT = 26379
_SERVER_PORT = 6379


class Topology(StrEnum):
    """How the server is found."""

    SINGLE = ""
    UNIX = "unix"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


class Host(Struct, frozen=True):
    """A host name or address, and a port."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class Tls(Struct, frozen=True):
    """How the connection is encrypted. "" means that an option is not given."""

    ca: str
    cert: str
    key: str
    verify: bool


class RedisAddress(Struct, frozen=True):
    """A parsed and checked store URL."""

    shown: str
    """The URL for people, without password and options."""
    topology: Topology
    hosts: tuple[Host, ...]
    path: str
    """The path of the Unix socket; "" if there is none."""
    service: str
    """The name of the primary in Sentinel; "" without Sentinel."""
    db: int
    username: str | None
    password: str | None
    sentinel_username: str | None
    sentinel_password: str | None
    tls: Tls | None
    prefix: str
    shards: int | None
    """None: one on a single server, 16 on a cluster."""
    timeout_s: int
    connect_timeout_s: int
    connections: int
    common: CommonOptions


SCHEMES = tuple(
    f"{family}+{topology.value}" if topology.value else family
    for topology in Topology
    for family, tls in _FAMILIES.items()
    if not (tls and topology is Topology.UNIX)
)
"""Every scheme that `parse_address` understands."""


def parse_address(url: StoreUrl) -> RedisAddress:
    """Parse and check a URL. Raises InvalidOption with what to write instead."""
    if url.scheme not in SCHEMES:
        raise InvalidOption("store", f"{url.scheme}: is not one of {', '.join(SCHEMES)}")
    family, _, topology_name = url.scheme.partition("+")
    topology = Topology(topology_name)
    userinfo, place, path = _split(url)
    username, password = _credentials(url, userinfo)
    options = Options(url)
    common = options.common()
    sentinel = topology is Topology.SENTINEL
    address = RedisAddress(
        shown=_shown(url, username),
        topology=topology,
        hosts=_hosts(url, topology, place),
        path=_socket(url, path) if topology is Topology.UNIX else "",
        service=_service(url, path) if sentinel else "",
        db=_db(url, topology, path, options),
        username=username,
        password=password,
        sentinel_username=(options.text("sentinel_username", "") or None) if sentinel else None,
        sentinel_password=(options.text("sentinel_password", "") or None) if sentinel else None,
        tls=_tls(options) if _FAMILIES[family] else None,
        prefix=_prefix(options),
        shards=_shards(options),
        timeout_s=options.number("timeout_s", 5, 1, 300),
        connect_timeout_s=options.number("connect_timeout_s", 5, 1, 300),
        connections=options.number("connections", 32, 1, 1000),
        common=common,
    )
    options.finish()
    return address


def _split(url: StoreUrl) -> tuple[str, str, str]:
    """User info, hosts and path, still percent-encoded. In `url.rest`, `%40` is an `@` already."""
    rest = url.url.partition("?")[0].partition(":")[2]
    if not rest.startswith("//"):
        raise _invalid(url, f"the scheme must be followed by two slashes: {_example(url)}")
    authority, slash, path = rest[2:].partition("/")
    if "@" in path:
        reason = "a '/' in a user name or password is written %2F, and an '@' in a path %40"
        raise _invalid(url, f"{reason}: {_example(url)}")
    userinfo, _, place = authority.rpartition("@")
    return userinfo, place, slash + path


def _credentials(url: StoreUrl, userinfo: str) -> tuple[str | None, str | None]:
    if not userinfo:
        return None, None
    username, colon, password = userinfo.partition(":")
    if not colon:
        raise _invalid(url, "write USER:PASSWORD before the '@', or :PASSWORD without a user")
    return unquote(username) or None, unquote(password)


def _hosts(url: StoreUrl, topology: Topology, place: str) -> tuple[Host, ...]:
    if topology is Topology.UNIX:
        if place:
            raise _invalid(url, f"a socket has no host; three slashes start its path: {_example(url)}")
        return ()
    port = _SENTINEL_PORT if topology is Topology.SENTINEL else _SERVER_PORT
    hosts = tuple(_host(url, text, port) for text in place.split(","))
    if topology is Topology.SINGLE and len(hosts) > 1:
        raise _invalid(
            url, f"this scheme takes one host; for several write {url.scheme}+cluster: or {url.scheme}+sentinel:"
        )
    return hosts


def _host(url: StoreUrl, text: str, port: int) -> Host:
    name, colon, digits = text.rpartition(":")
    if not colon or text.endswith("]"):
        name, digits = text, str(port)
    bracketed = name.startswith("[") and name.endswith("]")
    if bracketed:
        name = name[1:-1]
    elif ":" in name or "[" in name or "]" in name:
        raise _invalid(url, f"that is not a host; write an IPv6 address in brackets: [::1]:{port}")
    if not _DIGITS.fullmatch(digits) or not 1 <= int(digits) <= _MAX_PORT:
        # Do not show the text: it may be a password whose '@' is missing.
        raise _invalid(url, f"write a port from 1 to {_MAX_PORT} after the host's ':': {_example(url)}")
    return Host(unquote(name) or "localhost", int(digits))


def _db(url: StoreUrl, topology: Topology, path: str, options: Options) -> int:
    if topology is Topology.SINGLE:
        number = path.removeprefix("/") or "0"
        if not _DIGITS.fullmatch(number) or int(number) > _MAX_DB:
            raise _invalid(url, f"write the number of a database after the host: {_example(url)}")
        return int(number)
    if topology is Topology.CLUSTER:
        if path not in ("", "/", "/0") or options.number("db", 0, 0, _MAX_DB):
            raise _invalid(url, "a cluster has only database 0; leave out path and db")
        return 0
    return options.number("db", 0, 0, _MAX_DB)


def _socket(url: StoreUrl, path: str) -> str:
    if path in ("", "/"):
        raise _invalid(url, f"the path of the socket is missing: {_example(url)}")
    return unquote(path)


def _service(url: StoreUrl, path: str) -> str:
    service = unquote(path.removeprefix("/"))
    if not service or "/" in service:
        raise _invalid(url, f"write the name of the service after the sentinels: {_example(url)}")
    return service


def _tls(options: Options) -> Tls:
    tls = Tls(
        ca=options.text("tls_ca", ""),
        cert=options.text("tls_cert", ""),
        key=options.text("tls_key", ""),
        verify=options.text("tls_verify", "required", ("required", "none")) == "required",
    )
    if tls.key and not tls.cert:
        raise InvalidOption("tls_key", "a key needs its certificate; add tls_cert=PATH")
    return tls


def _prefix(options: Options) -> str:
    prefix = options.text("prefix", "hf")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidOption("prefix", f"{prefix!r} is not 1 to 64 letters, digits, '.', '_' or '-'")
    return prefix


def _shards(options: Options) -> int | None:
    text = options.text("shards", "auto")
    if text == "auto":
        return None
    if not _DIGITS.fullmatch(text) or not 1 <= int(text) <= _MAX_SHARDS:
        raise InvalidOption("shards", f"{text!r} is neither 'auto' nor a whole number from 1 to {_MAX_SHARDS}")
    return int(text)


def _shown(url: StoreUrl, username: str | None) -> str:
    """The URL without options and password."""
    _, place, path = _split(url)
    user = f"{username}@" if username else ""
    if not place and not url.scheme.endswith("+unix"):
        place = "localhost"
    return f"{url.scheme}://{user}{place}{path}"


def _example(url: StoreUrl) -> str:
    kind = url.scheme.partition("+")[2]
    rest = {"unix": "/run/valkey.sock?db=0", "sentinel": "HOST1,HOST2/SERVICE", "cluster": "HOST1,HOST2"}
    return f"{url.scheme}://{rest.get(kind, 'HOST:6379/0')}"


def _invalid(url: StoreUrl, reason: str) -> InvalidOption:
    return InvalidOption("store", f"{url.scheme}: {reason}")
