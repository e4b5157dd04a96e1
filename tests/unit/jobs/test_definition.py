from __future__ import annotations

import asyncio
import dataclasses
import inspect
import pickle
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pydantic
import pytest

from holdfast import InvalidName, InvalidOption, InvalidPayload, PayloadTooLarge, Queue, RetryPolicy, UnknownCodec, job
from holdfast.core.job import Backoff, Envelope
from holdfast.jobs.definition import Message, find

if TYPE_CHECKING:
    from decimal import Decimal


@job(queue="emails", max_attempts=5, timeout=30, priority=7)
async def send_email(to: str, template: str = "welcome") -> str:
    """Send one e-mail."""
    return f"{template} -> {to}"


@job
def add(a: int, b: int = 2) -> int:
    return a + b


def payload(message: Message[Any]) -> Any:
    return msgspec.json.decode(message.encode("json")[0])


def envelope(message: Message[Any], **changes: Any) -> Envelope:
    data, codec = message.encode("json")
    return Envelope(message.spec.type, changes.pop("payload", data), codec, **changes)


def test_a_job_is_a_plain_function_when_called():
    assert asyncio.run(send_email("a@example.com")) == "welcome -> a@example.com"
    assert add(1) == 3


def test_a_job_keeps_the_attributes_of_its_function():
    assert (send_email.__name__, send_email.__qualname__, send_email.__module__) == (
        "send_email",
        "send_email",
        __name__,
    )
    assert send_email.__doc__ == "Send one e-mail."
    assert send_email.__wrapped__ is send_email.function
    assert list(inspect.signature(send_email).parameters) == ["to", "template"]
    assert (send_email.is_async, add.is_async) == (True, False)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before 3.12 only functions can be coroutine functions")
def test_a_job_of_an_async_function_is_recognised_as_async():
    assert inspect.iscoroutinefunction(send_email)
    assert not inspect.iscoroutinefunction(add)


def test_a_job_pickles_by_reference():
    assert pickle.loads(pickle.dumps(send_email)) is send_email


def test_the_options_are_on_the_definition():
    assert (send_email.name, send_email.queue, send_email.timeout) == ("send_email", "emails", timedelta(seconds=30))
    assert (send_email.spec.max_attempts, send_email.spec.priority) == (5, 7)
    assert (add.queue, add.timeout, add.spec.max_attempts, add.spec.priority) == (None, None, 4, 5)
    assert add.spec.backoff == Backoff(5000, 2.0, 300_000, "full")
    assert add.spec.result_ttl_ms == 3_600_000


def test_the_executor_follows_the_kind_of_function():
    assert (send_email.executor, add.executor) == ("async", "thread")
    assert job(executor="process")(lambda_free).executor == "process"
    with pytest.raises(InvalidOption, match="use 'async' or 'process'"):
        job(executor="thread")(send_email.function)
    with pytest.raises(InvalidOption, match="use 'thread' or 'process'"):
        job(executor="async")(lambda_free)


def lambda_free() -> None: ...


def test_the_last_definition_of_a_name_is_found():
    definition = job(name="test.found")(lambda_free)
    assert find("test.found") is definition
    assert find("test.nobody") is None


@pytest.mark.parametrize(
    "options, error",
    [
        ({"name": "-x"}, InvalidName),
        ({"queue": "a b"}, InvalidName),
        ({"max_attempts": 0}, InvalidOption),
        ({"priority": 11}, InvalidOption),
        ({"timeout": 0}, InvalidOption),
        ({"timeout": -1}, InvalidOption),
        ({"result_ttl": -1}, InvalidOption),
        ({"version": 0}, InvalidOption),
        ({"codec": "cbor"}, UnknownCodec),
        ({"retry": RetryPolicy(factor=0.5)}, InvalidOption),
        ({"retry": RetryPolicy(jitter="some")}, InvalidOption),
        ({"retry": RetryPolicy(base=timedelta(seconds=-1))}, InvalidOption),
    ],
)
def test_wrong_options_are_refused_where_the_job_is_defined(options, error):
    with pytest.raises(error):
        job(**options)(lambda_free)


def test_a_retry_policy_is_stored_in_milliseconds():
    policy = RetryPolicy(base=timedelta(seconds=1), factor=3, cap=timedelta(minutes=1), jitter="none")
    assert job(retry=policy)(lambda_free).spec.backoff == Backoff(1000, 3.0, 60_000, "none")


# Messages ------------------------------------------------------------------------------------------------------


def test_a_payload_is_an_object_by_parameter_name_with_the_defaults():
    assert payload(send_email.message("a@example.com")) == {"to": "a@example.com", "template": "welcome"}
    assert payload(send_email.message(template="x", to="b")) == {"to": "b", "template": "x"}


@pytest.mark.parametrize(
    "args, kwargs, text",
    [
        ((), {}, "send_email.message(): missing a required argument: 'to'"),
        (("a", "b", "c"), {}, "send_email.message(): too many positional arguments"),
        (("a",), {"to": "b"}, "send_email.message(): multiple values for argument 'to'"),
        (("a",), {"tmpl": "b"}, "send_email.message(): got an unexpected keyword argument 'tmpl'"),
        ((1,), {}, "send_email: to: expected `str`, got `int`"),
        (("a\x00",), {}, "send_email: to: NUL characters cannot be stored"),
        ((object(),), {}, "send_email: cannot be written as json: objects of type object cannot be encoded"),
    ],
)
def test_wrong_arguments_are_refused_when_the_message_is_made(args, kwargs, text):
    with pytest.raises(InvalidPayload) as caught:
        send_email.message(*args, **kwargs)
    assert str(caught.value) == text


class Unreadable:
    """An object that is no struct, dataclass or model."""


def test_a_value_for_a_parameter_that_no_payload_can_carry_is_refused():
    @job
    def odd(thing: Unreadable) -> None: ...

    with pytest.raises(InvalidPayload, match="objects of type Unreadable cannot be encoded"):
        odd.message(Unreadable())
    with pytest.raises(InvalidPayload, match="objects of type Unreadable cannot be decoded"):
        odd.message("something else")


def test_a_message_over_the_limit_is_refused():
    with pytest.raises(PayloadTooLarge):
        send_email.message("x" * 300_000)


def test_a_message_does_not_change_after_it_is_made():
    @job
    def keep(items: list[int]) -> None: ...

    items = [1]
    message = keep.message(items)
    items.append(2)
    assert payload(message) == {"items": [1]}


def test_a_message_shows_no_payload():
    assert "secret" not in repr(send_email.message("secret"))


def test_options_of_a_message_add_up_and_are_checked():
    message = send_email.message("a").options(id="x", delay=5).options(delay=7)
    assert (message.resolved.id, message.resolved.delay_ms) == ("x", 7000)
    with pytest.raises(InvalidOption):
        message.options(run_at=datetime(2030, 1, 1, tzinfo=UTC))


def test_a_raw_message_has_any_type_and_payload():
    message = Message.raw([1], "from.elsewhere", version=3, retry=RetryPolicy(factor=1), timeout=5)
    assert (message.spec.type, message.spec.version, message.spec.timeout_ms) == ("from.elsewhere", 3, 5000)
    assert payload(message) == [1]
    with pytest.raises(InvalidName):
        Message.raw(1, "no spaces")


def test_the_codec_of_the_queue_is_used_unless_the_job_has_its_own():
    @job(codec="msgpack")
    def packed(a: int) -> None: ...

    assert packed.message(1).encode("json") == (msgspec.msgpack.encode({"a": 1}), "msgpack")
    assert add.message(1).encode("msgpack") == (msgspec.msgpack.encode({"a": 1, "b": 2}), "msgpack")
    assert add.message(1).encode("json")[1] == "json"


# Loading -------------------------------------------------------------------------------------------------------


def test_the_function_gets_what_was_sent():
    assert send_email.load(envelope(send_email.message("a", template="b"))) == ([], {"to": "a", "template": "b"})


def test_all_kinds_of_parameters_arrive():
    @job
    def mixed(a, /, b: int = 2, *rest: int, key: str, other: list[int] | None = None, **more: float) -> None:
        assert (a, b, rest, key, other, more) == ("a", 3, (4, 5), "k", None, {"x": 1.5})

    message = mixed.message("a", 3, 4, 5, key="k", x=1.5)
    assert payload(message) == {"a": "a", "b": 3, "rest": [4, 5], "key": "k", "other": None, "more": {"x": 1.5}}
    args, kwargs = mixed.load(envelope(message))
    mixed(*args, **kwargs)
    with pytest.raises(InvalidPayload, match="missing a required"):
        mixed.message("a")
    with pytest.raises(InvalidPayload, match=r"rest\[0\]: expected `int`, got `str`"):
        mixed.message("a", 1, "no", key="k")


def test_typed_arguments_come_back_typed():
    @dataclasses.dataclass
    class Item:
        name: str
        price: float

    class Address(pydantic.BaseModel):
        city: str

    class Shipment(msgspec.Struct):
        at: datetime

    @job
    def ship(items: list[Item], to: Address, shipment: Shipment, tags: set[str], blob: bytes) -> None: ...

    at = datetime(2026, 5, 1, tzinfo=UTC)
    sent: dict[str, Any] = {
        "items": [Item("a", 1.5)],
        "to": Address(city="Berlin"),
        "shipment": Shipment(at),
        "tags": {"x"},
        "blob": b"\x00\x01",
    }
    message = ship.message(**sent)
    assert ship.load(envelope(message)) == ([], sent)
    data, codec = message.encode("msgpack")
    assert ship.load(Envelope("ship", data, codec)) == ([], sent)


def test_a_default_that_cannot_be_encoded_is_left_to_the_function():
    marker = object()

    @job
    def marked(a: int, mark: Any = marker) -> bool:
        return mark is marker

    message = marked.message(1)
    assert payload(message) == {"a": 1}
    args, kwargs = marked.load(envelope(message))
    assert marked(*args, **kwargs) is True


def test_a_mutable_default_is_part_of_the_payload():
    @job
    def listed(items: list[int] = [1, 2]) -> None: ...  # noqa: B006 - people do

    assert payload(listed.message()) == {"items": [1, 2]}


def test_a_default_of_none_widens_the_type():
    @job
    def sloppy(a: int = None) -> None: ...  # noqa: RUF013 - people do

    assert payload(sloppy.message()) == {"a": None}


def test_unknown_keys_of_a_payload_are_ignored():
    assert add.load(Envelope("add", b'{"a": 1, "new_in_another_version": 2}')) == ([], {"a": 1, "b": 2})


@pytest.mark.parametrize("data", [b"[1]", b"1", b"null", b"{", b'{"a": "x"}', b"{}", b"\xff"])
def test_a_payload_that_does_not_fit_is_invalid(data):
    with pytest.raises(InvalidPayload, match="add"):
        add.load(Envelope("add", data))


def test_a_payload_in_an_unknown_codec_raises_an_error_that_says_so():
    with pytest.raises(UnknownCodec):
        add.load(Envelope("add", b"{}", "cbor"))


def test_the_result_type_is_that_of_the_annotation():
    @job
    def bare(a): ...

    assert (send_email.result_type, add.result_type, bare.result_type) == (str, int, Any)


def test_a_return_type_that_cannot_be_decoded_counts_as_any():
    @job
    def never() -> Unreadable | int: ...

    assert never.result_type is Any


def test_only_functions_can_be_jobs():
    for wrong in ("send_email", 5, None.__class__()):
        with pytest.raises((InvalidOption, TypeError)):
            job()(wrong)


def test_an_unresolvable_return_type_counts_as_any():
    @job
    def price() -> Decimal: ...

    assert price.result_type is Any


def test_an_unresolvable_parameter_type_is_an_error_that_says_so():
    @job
    def pay(amount: Decimal) -> None: ...

    with pytest.raises(InvalidOption, match=r"'Decimal'.*outside TYPE_CHECKING"):
        pay.message(1)


def test_parameters_may_have_any_name():
    @job
    def odd(self: int, cls: int, name: int, queue: int, message: int) -> None: ...

    message = odd.message(1, 2, 3, queue=4, message=5)
    assert odd.load(envelope(message)) == ([], {"self": 1, "cls": 2, "name": 3, "queue": 4, "message": 5})


# Versions ------------------------------------------------------------------------------------------------------


@job(version=3)
def greet(first: str, last: str, *, at: datetime | None = None) -> None: ...


@greet.upcast(1)
def _split(old: dict[str, Any]) -> dict[str, Any]:
    first, _, last = old["name"].partition(" ")
    return {"first": first, "surname": last, "at": old.get("at")}


@greet.upcast(2)
def _rename(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "last": old.pop("surname")}


def test_an_old_payload_is_upcast_step_by_step():
    old = b'{"name": "Ada Lovelace", "at": "2026-01-01T00:00:00Z"}'
    expected = {"first": "Ada", "last": "Lovelace", "at": datetime(2026, 1, 1, tzinfo=UTC)}
    assert greet.load(Envelope("greet", old, version=1)) == ([], expected)
    assert greet.load(Envelope("greet", b'{"first": "Ada", "surname": "L"}', version=2))[1]["last"] == "L"
    assert greet.message("Ada", "L").spec.version == 3


def test_a_payload_that_does_not_fit_after_upcasting_is_invalid():
    with pytest.raises(InvalidPayload, match="greet: first: expected `str`, got `int`"):
        greet.load(Envelope("greet", b'{"first": 1, "surname": "L"}', version=2))
    with pytest.raises(InvalidPayload, match="expected `object`"):
        greet.load(Envelope("greet", b"[]", version=2))


def test_a_newer_payload_or_a_missing_upcaster_is_refused():
    with pytest.raises(UnknownCodec, match="version 4"):
        greet.load(Envelope("greet", b"{}", version=4))
    young = job(version=2, name="young")(lambda_free)
    with pytest.raises(UnknownCodec, match="no upcaster from version 1"):
        young.load(Envelope("young", b"{}", version=1))


def test_an_upcaster_for_no_older_version_is_refused():
    with pytest.raises(InvalidOption):
        greet.upcast(3)
    with pytest.raises(InvalidOption):
        add.upcast(1)


@pytest.mark.parametrize("retry", [3, 0, True, 2.5, timedelta(seconds=5), "three", {"base": 5}])
def test_a_number_for_retry_says_that_max_attempts_is_meant(retry):
    for make in (lambda: job(retry=retry), lambda: Message.raw(1, retry=retry)):
        with pytest.raises(InvalidOption, match=r"is not a RetryPolicy.*max_attempts="):
            make()


@job
def note(text: str) -> None:
    """A plain function, which returns nothing as most do."""


async def test_calling_a_job_instead_of_enqueueing_it_is_noticed():
    async with Queue("memory:called", tenant="acme") as queue:
        with pytest.raises(InvalidPayload, match=r"write note\.message"):
            await queue.enqueue(note("a"))
        with pytest.raises(InvalidPayload, match=r"write add\.message"):
            await queue.enqueue(
                add(1000, b=2),
                id="x",
            )
        for _ in range(2):
            assert (await queue.enqueue(None)).status == "queued"
            note("b")
        assert (await queue.enqueue(None)).status == "queued"
