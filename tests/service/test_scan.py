"""Large values are checked as text, a slice at a time, by the same rule as decoded ones."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import HoldfastError, InvalidPayload
from holdfast.jobs import codec
from holdfast.service import scan
from holdfast.service.errors import Refusal
from holdfast.service.scan import SLICE

scalars = (
    st.none() | st.booleans() | st.integers(-(2**65), 2**66) | st.floats() | st.text(max_size=8) | st.just("a\x00b")
    | st.sampled_from(["\\", '"', "\\u0000", "null", "\u2028", "1e999", "[", "}"])
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=5)
)


def found(slices):
    try:
        for _ in slices:
            pass
    except HoldfastError as error:
        return error
    return None


def well_formed(text):
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.MsgspecError:
        return False
    return True


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_json_text_is_judged_like_its_value(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    if well_formed(text) and scan_ready(text):
        try:
            codec.decode_json_text(text)
            good = True
        except InvalidPayload:
            good = False
        assert (found(scan.json_text(text)) is None) == good


def scan_ready(text):
    """Checks that `bodies` has made before."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(values)
def test_msgpack_bytes_are_judged_like_their_value(value):
    try:
        data = msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return
    try:
        codec.check_value(value)
        good = True
    except InvalidPayload:
        good = False
    assert (found(scan.msgpack(data)) is None) == good


@given(st.binary(max_size=40))
def test_only_bytes_that_are_not_msgpack_are_refused(data):
    try:
        value = codec.decode(data, "msgpack")
        codec.check_value(value)
    except InvalidPayload:
        assert isinstance(found(scan.msgpack(data)), InvalidPayload)
    else:
        error = found(scan.msgpack(data))
        assert error is None or "key:" in str(error)  # Twice, or a list.


@pytest.mark.parametrize(
    "text, path, reason",
    [
        (b'{"a": [1, {"b": 1e999}]}', "$.a[1].b", "not a number"),
        (b"[[], [0, -99223372036854775809]]", "$[1][1]", "64 bits"),
        (b'{"t": ["\\n", "\\u0000"]}', "$.t[1]", "NUL"),
        (b'{"t": {"\\u0000": 1}}', "$.t", "key: NUL"),
        (b"[" * 101 + b"]" * 101, "$" + "[0]" * 8 + "...", "nested deeper than 100"),
        (b"[" + b"7" * 2000 + b"]", "$[0]", "digits"),
    ],
)
def test_an_error_in_a_json_text_names_its_path(text, path, reason):
    error = found(scan.json_text(text))
    assert isinstance(error, InvalidPayload)
    assert error.path.startswith(path)
    assert reason in str(error)


@pytest.mark.parametrize(
    "text", [b'{"a":1,"a":2}', b'[{"b":{"a":1, "\\u0061" : 2}}]', b'{"a":{},"b":[{"c":1,"c":1}]}'],
)  # fmt: skip
def test_a_duplicate_key_is_refused(text):
    assert isinstance(found(scan.json_text(text)), Refusal)
    assert isinstance(found(scan.json_text(text, rule=False)), Refusal)


@pytest.mark.parametrize(
    "data", [b"\x82\xa1a\x01\xa1a\x02", b"\x82\xa1a\x01\xd9\x01a\x02", b"\x91\x82\x01\x01\xcc\x01\x02"]
)
def test_a_duplicate_key_of_a_msgpack_map_is_an_invalid_payload(data):
    error = found(scan.msgpack(data))
    assert isinstance(error, InvalidPayload)
    assert "duplicate" in str(error)


def test_a_value_that_was_checked_before_is_skipped():
    inner = b"[" * 200 + b"]" * 200
    text = b'{"payload": %s, "id": "x"}' % inner
    assert found(scan.json_text(text, past=inner)) is None
    assert isinstance(found(scan.json_text(b'{"payload":%s,"payload": %s}' % (inner, inner), past=inner)), Refusal)


K256 = 256 * 1024


LARGE = {
    "lists": lambda: scan.json_text(b"[" + b"[]," * (K256 // 3) + b"[]]"),
    "numbers": lambda: scan.json_text(b"[" + b"1," * (K256 // 2) + b"1]"),
    "strings": lambda: scan.json_text(b"[" + b'"",' * (K256 // 3) + b'""]'),
    "escapes": lambda: scan.json_text(b'["' + b"\\\\" * (K256 // 2) + b'"]'),
    "msgpack": lambda: scan.msgpack(b"\xdd" + K256.to_bytes(4, "big") + b"\x90" * K256),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_value_is_checked_in_slices(name):
    assert sum(1 for _ in LARGE[name]()) >= K256 // SLICE - 2
