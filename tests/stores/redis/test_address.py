from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidOption
from holdfast.opening import parse_url
from holdfast.stores.redis.address import Host, Tls, Topology, parse_address


def address(url):
    return parse_address(parse_url(url))


def test_a_bare_url_means_the_usual_server():
    found = address("redis://")
    assert (found.topology, found.hosts, found.db) == (Topology.SINGLE, (Host("localhost", 6379),), 0)
    assert (found.username, found.password, found.tls) == (None, None, None)
    assert (found.prefix, found.shards, found.timeout_s, found.connect_timeout_s) == ("hf", None, 5, 5)
    assert found.connections == 32
    assert found.common.test_clock == "0"


@pytest.mark.parametrize(
    "url, hosts, db",
    [
        ("redis://h", (Host("h", 6379),), 0),
        ("valkey://h:7000/", (Host("h", 7000),), 0),
        ("redis://h/3", (Host("h", 6379),), 3),
        ("redis://:7001/15", (Host("localhost", 7001),), 15),
        ("redis://[::1]:7002/1", (Host("::1", 7002),), 1),
        ("redis://[fe80::1]", (Host("fe80::1", 6379),), 0),
        ("redis+sentinel://a,b:7003/jobs", (Host("a", 26379), Host("b", 7003)), 0),
        ("valkey+sentinel://a/jobs?db=4", (Host("a", 26379),), 4),
        ("redis+cluster://a,[::2]:7004", (Host("a", 6379), Host("::2", 7004)), 0),
        ("rediss+cluster://a/0?db=0", (Host("a", 6379),), 0),
    ],
)
def test_hosts_and_databases_are_found(url, hosts, db):
    found = address(url)
    assert (found.hosts, found.db) == (hosts, db)


def test_a_socket_has_a_path_and_no_host():
    found = address("redis+unix:///run/a%20b/valkey.sock?db=2")
    assert (found.topology, found.path, found.hosts, found.db) == (Topology.UNIX, "/run/a b/valkey.sock", (), 2)
    assert address("valkey+unix://u:p@/s.sock").username == "u"


def test_sentinel_has_a_service_and_credentials_of_its_own():
    found = address("redis+sentinel://u:p@a/my%20jobs?sentinel_username=su&sentinel_password=sp%40")
    assert (found.topology, found.service) == (Topology.SENTINEL, "my jobs")
    assert (found.username, found.password) == ("u", "p")
    assert (found.sentinel_username, found.sentinel_password) == ("su", "sp@")


@pytest.mark.parametrize("form", ["", "+cluster", "+sentinel"])
@pytest.mark.parametrize("family", ["rediss", "valkeys"])
def test_a_scheme_with_s_means_tls(family, form):
    place = {"+sentinel": "h/service", "+cluster": "h"}.get(form, "h/0")
    assert address(f"{family}{form}://{place}").tls == Tls("", "", "", verify=True)
    found = address(f"{family}{form}://{place}?tls_ca=/ca.pem&tls_cert=/c.pem&tls_key=/k.pem&tls_verify=none")
    assert found.tls == Tls("/ca.pem", "/c.pem", "/k.pem", verify=False)


def test_options_are_passed_on_unchanged():
    found = address("redis://h?prefix=app.v1-x_&shards=16&timeout_s=30&connect_timeout_s=2&connections=4&test_clock=1")
    assert (found.prefix, found.shards, found.timeout_s) == ("app.v1-x_", 16, 30)
    assert (found.connect_timeout_s, found.connections, found.common.test_clock) == (2, 4, "1")
    assert address("redis://h?shards=auto").shards is None


@given(user=st.text(min_size=1, max_size=20), password=st.text(max_size=20))
def test_credentials_are_parsed_from_the_url_and_never_shown(user, password):
    from urllib.parse import quote

    secret = f"<{password}>"  # Never a part of the rest of the URL.
    try:
        written = f"{quote(user, safe='')}:{quote(secret, safe='')}"
    except UnicodeEncodeError:
        return  # A single surrogate cannot be written into a URL.
    found = address(f"redis://{written}@h:7000/1")
    assert (found.username, found.password) == (user, secret)
    assert (found.hosts, found.db) == ((Host("h", 7000),), 1)
    assert secret not in found.shown
    assert quote(secret, safe="") not in found.shown


@pytest.mark.parametrize(
    "url, shown",
    [
        ("redis://", "redis://localhost"),
        ("redis://:secret@h:1/2?prefix=x", "redis://h:1/2"),
        ("redis+unix://u:secret@/run/v.sock?db=1", "redis+unix://u@/run/v.sock"),
        ("redis+sentinel://u:secret@a,b/jobs?sentinel_password=secret", "redis+sentinel://u@a,b/jobs"),
    ],
)
def test_a_shown_url_has_no_password_and_no_options(url, shown):
    assert address(url).shown == shown


@pytest.mark.parametrize(
    "url, option, says",
    [
        ("redis:h:6379", "store", "two slashes: redis://HOST:6379/0"),
        ("redis://secret@h", "store", ":PASSWORD"),
        ("redis://u:p/q@h", "store", "%2F"),
        ("redis://h:0", "store", "port"),
        ("redis://h:65536", "store", "port"),
        ("redis://h:x", "store", "port"),
        ("redis://::1:6379", "store", "[::1]:6379"),
        ("redis://a,b", "store", "redis+cluster:"),
        ("redis://h/jobs", "store", "number of a database"),
        ("redis://h/-1", "store", "number of a database"),
        ("redis://h?db=1", "db", "no such option"),
        ("redis+unix://host/s.sock", "store", "redis+unix:///run/valkey.sock"),
        ("redis+unix://", "store", "the path of the socket is missing"),
        ("rediss+unix:///s.sock", "store", "is not one of"),
        ("redis+sentinel://a,b", "store", "redis+sentinel://HOST1,HOST2/SERVICE"),
        ("redis+sentinel://a/b/c", "store", "name of the service"),
        ("redis+cluster://a/1", "store", "database 0"),
        ("redis+cluster://a?db=1", "store", "database 0"),
        ("redis://h?sentinel_password=x", "sentinel_password", "no such option"),
        ("redis://h?tls_ca=/x", "tls_ca", "no such option"),
        ("rediss://h?tls_verify=maybe", "tls_verify", "'required', 'none'"),
        ("rediss://h?tls_key=/k", "tls_key", "tls_cert"),
        ("redis://h?prefix=", "prefix", "1 to 64"),
        ("redis://h?prefix=a:b", "prefix", "1 to 64"),
        ("redis://h?prefix=" + "x" * 65, "prefix", "1 to 64"),
        ("redis://h?shards=0", "shards", "1 to 256"),
        ("redis://h?shards=257", "shards", "1 to 256"),
        ("redis://h?shards=many", "shards", "auto"),
        ("redis://h?timeout_s=0", "timeout_s", "1 to 300"),
        ("redis://h?connections=1001", "connections", "1 to 1000"),
        ("redis://h?conections=5", "conections", "connections"),
    ],
)
def test_an_invalid_url_is_refused_with_what_to_write(url, option, says):
    with pytest.raises(InvalidOption) as caught:
        address(url)
    assert caught.value.option == option
    assert says in caught.value.reason
    assert "secret" not in str(caught.value)
