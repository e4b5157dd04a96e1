"""A password never appears in a message, whatever characters it has, and whether it was percent-encoded or not."""

import itertools
import traceback
from urllib.parse import quote

import pytest

from holdfast.blobs import Blobs
from holdfast.core.errors import HoldfastError, InvalidOption
from holdfast.opening import make_store, shown_url
from holdfast.service.keys import Keys

PIECES = ("hunter", "secret", "w0rd", "leak", "tail")
MARKS = ("@/:#?%", "?@%#:/", "#%?/@:", "%:@?/#", "////@", "::::@", "@@@@?", "&=&=@", "/:#?%", ":#/%?", "?/:%#", "&:%/#")
PASSWORDS = ["".join(itertools.chain(*itertools.zip_longest(PIECES, marks[:5], fillvalue=""))) for marks in MARKS]
SCHEMES = (
    "redis://", "rediss://", "valkey://", "redis+sentinel://", "redis+cluster://", "redis+unix://", "postgresql://",
    "postgres://", "http://", "https://", "unheard-of://",
)  # fmt: skip
PLACES = ("127.0.0.1:1/0", "127.0.0.1:1/", "127.0.0.1:1", "", "127.0.0.1:1/0?connect_timeout_s=1", "127.0.0.1/0?a&b")


def reported(error):
    """All that a person could see of an error: its text and its traceback, with what it came from."""
    return f"{error} {error!r} {''.join(traceback.format_exception(error))}"


def clean(text):
    # A traceback shows lines of source, and this file's have the pieces.
    return not any(piece in line for piece in PIECES for line in text.splitlines() if "PIECES" not in line)


def urls(scheme):
    for password, place in itertools.product(PASSWORDS, PLACES):
        for written in (password, quote(password, safe="")):
            yield f"{scheme}user:{written}@{place}"
            yield f"{scheme}:{written}@{place}"
        if "@" not in password:
            yield f"{scheme}user:{password}{place}"  # The `@` before the host was forgotten.


NOT_OPENED = {"https", "rediss"}
"""There would be a TLS context for each of their URLs."""


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_no_error_of_a_store_shows_a_password(scheme):
    opened = 0
    for url in urls(scheme):
        try:
            store = make_store(url)
        except HoldfastError as error:
            shown = reported(error)
            assert clean(shown), (url, shown)
            continue
        assert clean(repr(store)), url
        if scheme.partition("+")[0] in NOT_OPENED or opened > 12:
            continue
        opened += 1
        with pytest.raises(HoldfastError) as refused:
            await store.open()
        await store.close()
        assert clean(reported(refused.value)), (url, reported(refused.value))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_url_is_shown_without_its_password(scheme):
    for password in PASSWORDS:
        for written in (password, quote(password, safe="")):
            shown = shown_url(f"{scheme}user:{written}@host:6379/0?prefix=x")
            assert shown == f"{scheme}user:***@host:6379/0?prefix=x"
    assert shown_url("postgresql://h/db?password=hunter&sslpassword=leak&a=b").count("***") == 2
    assert clean(shown_url("redis+sentinel://h/s?sentinel_password=secret"))
    assert shown_url("postgresql://user@h/db") == "postgresql://user@h/db"
    assert shown_url("file:///a:b@c") == "file:///a:b@c"


async def test_neither_blobs_nor_keys_show_a_password():
    for password in PASSWORDS:
        with pytest.raises(InvalidOption) as refused:
            Blobs.open(f"nonsense://user:{password}@host/x")
        assert clean(str(refused.value)), str(refused.value)
        with pytest.raises(InvalidOption) as refused:
            await Keys(None, f"https://user:{password}@127.0.0.1:1/x").open()
        assert clean(str(refused.value)), str(refused.value)
