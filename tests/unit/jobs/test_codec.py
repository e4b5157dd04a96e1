from __future__ import annotations

import dataclasses
import enum
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import InvalidOption, InvalidPayload, PayloadTooLarge, UnknownCodec
from holdfast.core.job import PAYLOAD_LIMIT
from holdfast.jobs import codec

CODECS = ["json", "msgpack"]

good_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(codec.INT_MIN, codec.INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), inner, max_size=5
        )
    ),
    max_leaves=30,
)
bad_leaves = st.sampled_from(
    [math.nan, math.inf, -math.inf, 2**64, -(2**63) - 1, 10**40, "\ud800", "a\udfff", "\x00", "x\x00y"]
)


def nested(depth: int, inside: Any = None) -> Any:
    for _ in range(depth):
        inside = [inside]
    return inside


@pytest.mark.parametrize("name", CODECS)
@given(value=good_values)
def test_a_valid_value_is_returned_unchanged(name, value):
    assert codec.decode(codec.encode(value, name), name) == value


@pytest.mark.parametrize("name", CODECS)
@given(bad=bad_leaves, around=st.lists(st.sampled_from(["list", "dict", "tuple"]), max_size=10))
def test_an_invalid_value_is_refused_at_any_depth(name, bad, around):
    value: Any = bad
    for kind in around:
        value = {"list": [1, value], "dict": {"a": value, "b": None}, "tuple": (value,)}[kind]
    with pytest.raises(InvalidPayload) as caught:
        codec.encode(value, name)
    assert caught.value.path.startswith("$")


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("key", ["a\x00", "\ud800"])
def test_an_invalid_key_is_refused(name, key):
    with pytest.raises(InvalidPayload, match="key"):
        codec.encode({"outer": [{key: 1}]}, name)


@pytest.mark.parametrize(
    "value, path, reason",
    [
        ({"a": [1, {"b": math.nan}]}, "$.a[1].b", "nan is not a number"),
        ([2**64], "$[0]", "beyond 64 bits"),
        ({"text": "\x00"}, "$.text", "NUL"),
        ({"text": "\udc00"}, "$.text", "unpaired surrogate"),
    ],
)
def test_a_refusal_says_where_and_why(value, path, reason):
    with pytest.raises(InvalidPayload, match=reason) as caught:
        codec.encode(value)
    assert caught.value.path == path


@pytest.mark.parametrize("number", [codec.INT_MIN, codec.INT_MAX, 0, 10**18])
@pytest.mark.parametrize("name", CODECS)
def test_integers_of_64_bits_are_allowed(name, number):
    assert codec.decode(codec.encode([number], name), name) == [number]


def test_a_text_that_looks_like_an_escaped_nul_is_allowed():
    assert codec.decode(codec.encode("\\u0000 and null and 12345678901234567890123")) == (
        "\\u0000 and null and 12345678901234567890123"
    )


@pytest.mark.parametrize("name", CODECS)
def test_a_hundred_levels_are_allowed_and_one_more_is_not(name):
    assert codec.decode(codec.encode(nested(100), name), name) == nested(100)
    with pytest.raises(InvalidPayload, match="nested deeper than 100"):
        codec.encode(nested(101), name)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("depth", [5_000, 200_000])
def test_deep_nesting_never_ends_in_a_recursion_error(name, depth):
    with pytest.raises(InvalidPayload, match="nested deeper than 100"):
        codec.encode(nested(depth), name)


@pytest.mark.parametrize("name", CODECS)
def test_a_value_that_contains_itself_is_refused(name):
    loop: list[Any] = []
    loop += [loop, loop]
    with pytest.raises(InvalidPayload, match="nested deeper than 100"):
        codec.encode(loop, name)


@pytest.mark.parametrize("name", CODECS)
def test_an_object_that_cannot_be_encoded_is_named(name):
    with pytest.raises(InvalidPayload, match=r"objects of type object cannot be encoded"):
        codec.encode({"a": object()}, name)


# JSON from outside -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": 1e999}',
        b"[NaN]",
        b"[Infinity]",
        b"[18446744073709551616]",
        b"[-9223372036854775809]",
        b'"\\u0000"',
        b'{"a\\u0000": 1}',
        b'"\\ud800"',
        b'"\xed\xa0\x80"',
        b"\xff",
        b"",
        b"{",
        b"[" * 101 + b"]" * 101,
        b"[" * 100_000,
        '["\ud800"]',
    ],
)
def test_invalid_json_text_is_refused(text):
    with pytest.raises(InvalidPayload):
        codec.decode_json_text(text)


@given(good_values)
def test_valid_json_text_is_accepted(value):
    assert codec.decode_json_text(msgspec.json.encode(value)) == value


def test_json_text_may_have_a_hundred_levels():
    assert codec.decode_json_text(b"[" * 100 + b"]" * 100) is not None


# Types ---------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Order(msgspec.Struct):
    id: int
    at: datetime
    color: Color = Color.RED


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    name: str
    since: datetime


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("value", [Point(1.5), Order(1, AT), Customer(name="Ada", since=AT), [Point(1), Point(2)]])
def test_structs_dataclasses_and_models_are_decoded_to_their_types(name, value):
    kind: Any = list[Point] if isinstance(value, list) else type(value)
    assert codec.decode(codec.encode(value, name), name, kind) == value


@pytest.mark.parametrize("name", CODECS)
def test_a_bad_value_inside_a_dataclass_or_struct_is_found(name):
    with pytest.raises(InvalidPayload) as caught:
        codec.encode({"at": [Point(math.inf)]}, name)
    assert caught.value.path == "$.at[0].x"


def test_a_value_of_another_type_is_refused_with_its_place():
    with pytest.raises(InvalidPayload, match="expected `float`, got `str`") as caught:
        codec.decode(b'[{"x": 1}, {"x": "a"}]', "json", list[Point])
    assert caught.value.path == "$[1].x"


def test_a_model_that_does_not_validate_is_an_invalid_payload():
    with pytest.raises(InvalidPayload, match="since"):
        codec.decode(b'{"name": "Ada"}', "json", Customer)


# Size and registry ---------------------------------------------------------------------------------------------


def test_the_size_limit_is_exact():
    assert codec.check_size(b"x" * PAYLOAD_LIMIT)
    with pytest.raises(PayloadTooLarge) as caught:
        codec.check_size(b"x" * (PAYLOAD_LIMIT + 1))
    assert (caught.value.size, caught.value.limit) == (PAYLOAD_LIMIT + 1, PAYLOAD_LIMIT)


def test_an_unknown_codec_is_named():
    with pytest.raises(UnknownCodec, match="'cbor'"):
        codec.get("cbor")
    with pytest.raises(UnknownCodec):
        codec.encode(1, "cbor")
    with pytest.raises(UnknownCodec):
        codec.decode(b"1", "cbor")


class Shouting:
    name = "shouting"

    def encode(self, value: Any, /) -> bytes:
        return str(value).upper().encode()

    def decode(self, data: bytes, type: Any = Any, /) -> Any:
        return data.decode().lower()


def test_a_registered_codec_is_found_and_obeys_the_same_rule():
    shouting = Shouting()
    codec.register(shouting)
    codec.register(shouting)
    assert codec.decode(codec.encode("hello", "shouting"), "shouting") == "hello"
    with pytest.raises(InvalidPayload):
        codec.encode([math.nan], "shouting")
    with pytest.raises(InvalidOption, match="already registered"):
        codec.register(Shouting())
