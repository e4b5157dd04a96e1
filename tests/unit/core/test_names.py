"""Which names are allowed, and that no two become one key. [TENANT-3]"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import names
from holdfast.core.errors import InvalidName, InvalidOption

EVERYWHERE = ["a", "A", "0", "a.b", "a_b", "a-b", "x" * 63, "9-"]
NOWHERE = ["", ".a", "_a", "-a", "a b", "a\n", "\na", "a\x00", "é", "a\u200b", "a@b", "a%", "{a}", "a\\b", "x" * 129]
CHECKS = {"tenant": names.check_tenant, "queue": names.check_queue, "job type": names.check_type}


@pytest.mark.parametrize("what", CHECKS)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_plain_name_is_allowed_for_tenants_queues_and_types(what, name):
    assert CHECKS[what](name) == name


@pytest.mark.parametrize("what", CHECKS)
@pytest.mark.parametrize("name", [*NOWHERE, None, 7, b"a"])
def test_a_bad_name_is_refused_with_the_reason(what, name):
    with pytest.raises(InvalidName) as refusal:
        CHECKS[what](name)
    assert refusal.value.what == what
    assert "letters, digits" in str(refusal.value)


@pytest.mark.parametrize("name", ["a:b", "a/b", "a:", "a/", "x" * 64, "x" * 128])
def test_queues_and_types_may_have_more_than_tenants(name):
    assert names.check_queue(name) == names.check_type(name) == name
    with pytest.raises(InvalidName):
        names.check_tenant(name)


@pytest.mark.parametrize("name", ["a", " ", "a b", ":", "/", "é", "😀", "x" * 200, "é" * 100, "\u00a0", "\u2028"])
def test_an_id_may_have_almost_any_characters(name):
    assert names.check_id(name) == name


@pytest.mark.parametrize(
    "name, reason",
    [
        ("", "0 bytes"),
        ("x" * 201, "201 bytes"),
        ("é" * 101, "202 bytes"),
        ("a\n", "control"),
        ("\x00", "control"),
        ("a\x7f", "control"),
        ("\x85", "control"),
        ("\ud800", "surrogate"),
        (7, "string"),
        (None, "string"),
        (b"a", "string"),
    ],
)
def test_a_bad_id_is_refused_with_the_reason(name, reason):
    with pytest.raises(InvalidName, match=reason) as refusal:
        names.check_id(name, "idempotency key")
    assert refusal.value.what == "idempotency key"
    str(refusal.value).encode()  # It can be printed and sent, whatever was in the name.


def taken_apart(key):
    """The names in a key, split by its own lengths."""
    rest, parts = key.encode(), []
    while rest:
        size, _, rest = rest.partition(b":")
        parts.append(rest[: int(size)].decode())
        rest = rest[int(size) :]
    return parts


@given(st.lists(st.text(st.sampled_from("ab01:é")), max_size=5))
def test_a_key_can_be_split_again_so_it_is_unique(parts):
    assert taken_apart(names.join_key(*parts)) == parts


def test_separators_inside_names_do_not_collide():
    assert names.join_key("a:b", "c") != names.join_key("a", "b:c")
    assert names.join_key("a", "b") != names.join_key("a1:b")


@pytest.mark.parametrize("priority", range(10))
def test_a_priority_is_zero_to_nine(priority):
    assert names.check_priority(priority) == priority


@pytest.mark.parametrize("priority", [-1, 10, 5.0, "5", True, None])
def test_another_priority_is_refused(priority):
    with pytest.raises(InvalidOption, match="priority"):
        names.check_priority(priority)


@pytest.mark.parametrize("attempts", [1, 4, 100])
def test_max_attempts_is_one_to_a_hundred(attempts):
    assert names.check_max_attempts(attempts) == attempts


@pytest.mark.parametrize("attempts", [0, -1, 101, 1.0, "4", True, None])
def test_another_number_of_attempts_is_refused(attempts):
    with pytest.raises(InvalidOption, match="max_attempts"):
        names.check_max_attempts(attempts)


def test_reserved_queues_can_be_read_but_not_used():
    assert names.check_queue("holdfast:schedules") == "holdfast:schedules"
    with pytest.raises(InvalidName, match="reserved for schedules and flows"):
        names.check_own_queue("holdfast:schedules")
    assert names.check_own_queue("holdfast") == "holdfast"
