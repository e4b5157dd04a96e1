"""`@job`: makes a function a job. Builds its messages, reads their payloads, and registers it by name.

A payload is an object by parameter name, so a worker in any language can read it:

    @job(queue="emails")
    async def send_email(to: str, template: str = "welcome") -> str: ...

    send_email.message("a@example.com")      # {"to": "a@example.com", "template": "welcome"}
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import update_wrapper
from types import FrameType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import names
from holdfast.core.errors import InvalidOption, InvalidPayload, UnknownCodec
from holdfast.core.job import RESULT_TTL, Backoff, Envelope, Jitter
from holdfast.core.policy import KnownTypes
from holdfast.core.retry import check_backoff
from holdfast.jobs import codec as codecs
from holdfast.jobs.arguments import Arguments
from holdfast.jobs.options import PLAIN, EnqueueOptions, Resolved, Seconds, duration_ms, resolve

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")
Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
U = TypeVar("U", bound=Upcaster)
ExecutorName = Literal["async", "thread", "process"]

_registry: dict[str, JobDefinition[..., Any, Any]] = {}


class RetryPolicy(Struct, frozen=True):
    """How long to wait before the next attempt: min(cap, base * factor^(n-1)), with jitter. [RETRY-3]"""

    base: timedelta = timedelta(seconds=5)
    factor: float = 2.0
    cap: timedelta = timedelta(minutes=5)
    jitter: Jitter = "full"

    def backoff(self) -> Backoff:
        """The policy as stored in the envelope. Raises InvalidOption."""
        base_ms, cap_ms = duration_ms("retry.base", self.base), duration_ms("retry.cap", self.cap)
        return check_backoff(Backoff(base_ms, float(self.factor), cap_ms, self.jitter))


class Spec(Struct, frozen=True):
    """What all messages of one kind have in common. `codec` and `queue` None: those of the Queue."""

    type: str = ""
    queue: str | None = None
    codec: str | None = None
    version: int = 1
    priority: int = 5
    max_attempts: int = 4
    backoff: Backoff = Backoff()
    timeout_ms: int | None = None
    result_ttl_ms: int = RESULT_TTL


_UNTYPED = Spec()


class Message(Struct, Generic[R], frozen=True, eq=False, gc=False):
    """Something to enqueue: immutable, checked and usually encoded. Made by `JobDefinition.message`."""

    spec: Spec
    value: Any
    data: bytes | None = None
    """The payload, in the codec of `spec` or else JSON. None: not encoded yet."""
    definition: JobDefinition[..., Any, R] | None = None
    given: EnqueueOptions | None = None
    resolved: Resolved = PLAIN

    @staticmethod
    def raw(
        payload: Any,
        type: str = "",
        *,
        version: int = 1,
        codec: str | None = None,
        retry: RetryPolicy | None = None,
        timeout: Seconds | None = None,
    ) -> Message[Any]:
        """A message made without a job definition, for the handler of that type or the catch-all handler."""
        if type:
            names.check_type(type)
        backoff = _backoff(retry)
        codec = None if codec is None else codecs.get(codec).name
        timeout_ms = _check_timeout(timeout)
        spec = Spec(type, None, codec, _check_version(version), backoff=backoff, timeout_ms=timeout_ms)
        return Message(spec, payload)

    def options(self, **options: Unpack[EnqueueOptions]) -> Message[R]:
        """The same message with options of its own, those of `enqueue`. They override the options of the call."""
        given: EnqueueOptions = {**(self.given or {}), **options}
        return Message(self.spec, self.value, self.data, self.definition, given, resolve(given))

    def encode(self, codec: str) -> tuple[bytes, str]:
        """The payload and its codec: the definition's, else `codec`. Raises InvalidPayload."""
        own = self.spec.codec
        codec = own or codec
        if self.data is not None and codec == (own or "json"):
            return self.data, codec
        value: object = self.value
        if isinstance(value, JobDefinition):
            raise InvalidPayload(f"{value!r} is not a message; enqueue its .message(...)")
        return codecs.check_size(codecs.encode(value, codec)), codec

    def __repr__(self) -> str:
        return f"<Message {self.spec.type or 'without type'}>"


class JobDefinition(Generic[P, C, R]):
    """A function that `@job` made a job. A call runs the function; `.message()` makes a message to enqueue."""

    __name__: str
    __qualname__: str
    __wrapped__: Callable[..., Any]

    def __init__(self, function: Callable[P, C], spec: Spec, executor: ExecutorName, namespace: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.function = function
        self.spec = spec
        self.executor: ExecutorName = executor
        self.is_async = inspect.iscoroutinefunction(function)
        if self.is_async and sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)
        self._upcasters: dict[int, Upcaster] = {}
        self._arguments: Arguments | None = None
        if namespace:
            # A function inside a function: only now can the types in its annotations be resolved.
            with contextlib.suppress(InvalidOption):
                self._arguments = Arguments(function, spec.type, namespace)

    @property
    def name(self) -> str:
        """The job type: the name in the message, by which a worker finds this handler."""
        return self.spec.type

    @property
    def queue(self) -> str | None:
        """The queue for its jobs. None: the Queue's own."""
        return self.spec.queue

    @property
    def timeout(self) -> timedelta | None:
        """The longest that one attempt may run."""
        return None if self.spec.timeout_ms is None else timedelta(milliseconds=self.spec.timeout_ms)

    @property
    def arguments(self) -> Arguments:
        if self._arguments is None:
            self._arguments = Arguments(self.function, self.spec.type, {})
        return self._arguments

    @property
    def result_type(self) -> Any:
        return self.arguments.result_type

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        value = self.function(*args, **kwargs)
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        global _last_call  # noqa: PLW0603
        _last_call = _Call(self.name, id(value), id(frame), frame.f_lineno, frame.f_lasti)
        return value

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message[R]:
        """A message with the arguments of a call. Raises InvalidPayload or PayloadTooLarge."""
        arguments = self.arguments
        value = arguments.bind(args, kwargs)
        data = arguments.encode(value, self.spec.codec or "json")
        return Message(self.spec, value, codecs.check_size(data), cast("JobDefinition[..., Any, R]", self))

    def upcast(self, version: int) -> Callable[[U], U]:
        """Register a function, from dict to dict, that makes a payload of `version` one of `version + 1`."""
        if not 1 <= version < self.spec.version:
            reason = f"{version} is not a version before {self.name}'s own, {self.spec.version}"
            raise InvalidOption("upcast", reason)

        def add(upcaster: U) -> U:
            self._upcasters[version] = upcaster
            return upcaster

        return add

    def load(self, envelope: Envelope) -> tuple[list[Any], dict[str, Any]]:
        """The arguments to call the function with for this message.

        Raises UnknownCodec for a codec or version that this process cannot read, InvalidPayload for arguments
        that do not fit.
        """
        arguments = self.arguments
        if envelope.version == self.spec.version:
            return arguments.unpack(arguments.decode(envelope.payload, envelope.codec))
        payload = codecs.decode(envelope.payload, envelope.codec)
        if not isinstance(payload, dict):
            raise InvalidPayload(f"{self.name}: expected `object`, got `{type(payload).__name__}`")
        return arguments.unpack(arguments.convert(self._upcasted(cast("dict[str, Any]", payload), envelope)))

    def _upcasted(self, payload: dict[str, Any], envelope: Envelope) -> dict[str, Any]:
        if envelope.version > self.spec.version:
            known = f"this process knows versions up to {self.spec.version}"
            reason = f"{self.name}: the payload is of version {envelope.version}, {known}"
            raise UnknownCodec(envelope.codec, reason)
        for version in range(envelope.version, self.spec.version):
            upcaster = self._upcasters.get(version)
            if upcaster is None:
                cure = f"add one with @{self.name}.upcast({version})"
                reason = f"{self.name}: no upcaster from version {version}; {cure}"
                raise UnknownCodec(envelope.codec, reason)
            payload = upcaster(payload)
        return payload

    def __reduce__(self) -> str:
        # Pickled by reference, like a function: the child process imports it.
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<job {self.name}>"


class JobDecorator(Protocol):
    """What `@job(...)` returns."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> JobDefinition[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobDefinition[P, R, R]: ...


@overload
def job(function: Callable[P, Coroutine[Any, Any, R]], /) -> JobDefinition[P, Coroutine[Any, Any, R], R]: ...
@overload
def job(function: Callable[P, R], /) -> JobDefinition[P, R, R]: ...
@overload
def job(
    *,
    name: str | None = None,
    queue: str | None = None,
    max_attempts: int = 4,
    timeout: Seconds | None = None,
    priority: int = 5,
    retry: RetryPolicy | None = None,
    result_ttl: Seconds = ...,
    executor: ExecutorName | None = None,
    version: int = 1,
    codec: str | None = None,
) -> JobDecorator: ...
def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    queue: str | None = None,
    max_attempts: int = 4,
    timeout: Seconds | None = None,
    priority: int = 5,
    retry: RetryPolicy | None = None,
    result_ttl: Seconds = timedelta(hours=1),
    executor: ExecutorName | None = None,
    version: int = 1,
    codec: str | None = None,
) -> Any:
    """Make a function a job. It checks the options at once. Raises InvalidName or InvalidOption.

    `name` is the job type (default: the function's name), `timeout` limits one attempt, `max_attempts` is the
    number of runs, `version` is that of the payload (see `upcast`). An `async def` runs on the event loop, a plain
    `def` in a thread. With `executor="process"`, either runs in a process of its own.
    """
    spec = Spec(
        type="",
        queue=None if queue is None else names.check_own_queue(queue),
        codec=None if codec is None else codecs.get(codec).name,
        version=_check_version(version),
        priority=names.check_priority(priority),
        max_attempts=names.check_max_attempts(max_attempts),
        backoff=_backoff(retry),
        timeout_ms=_check_timeout(timeout),
        result_ttl_ms=duration_ms("result_ttl", result_ttl),
    )

    def decorate(function: Callable[..., Any]) -> JobDefinition[..., Any, Any]:
        return _define(function, name, spec, executor, inspect.currentframe())

    return decorate if function is None else _define(function, name, spec, executor, inspect.currentframe())


def find(name: str) -> JobDefinition[..., Any, Any] | None:
    """The latest definition of that name in this process."""
    return _registry.get(name)


def with_policy(message: Message[R], known: KnownTypes) -> Message[R]:
    """Add the options that live workers report for the type of a message that was made without its definition."""
    policy = known.types.get(message.spec.type)
    if policy is None:
        return message
    spec = replace(
        message.spec, queue=policy.queue, priority=policy.priority, max_attempts=policy.max_attempts,
        backoff=policy.backoff, timeout_ms=policy.timeout_ms, result_ttl_ms=policy.result_ttl_ms,
    )  # fmt: skip
    return replace(message, spec=spec)


def untyped(payload: Any) -> Message[Any]:
    """A message without a job type, for the catch-all handler."""
    if inspect.iscoroutine(payload):
        payload.close()
        raise InvalidPayload(f"the job was called, not enqueued: write {payload.__name__}.message(...)")
    if _last_call is not None and id(payload) == _last_call.value and _last_call.is_argument():
        raise InvalidPayload(f"the job was called, not enqueued: write {_last_call.name}.message(...)")
    return Message(_UNTYPED, payload)


class _Call(Struct, frozen=True):
    """The last direct call of a job, to detect `enqueue(send(...))` instead of `enqueue(send.message(...))`."""

    name: str
    value: int
    """Identified by `id`, which keeps neither the value nor the frame alive."""
    frame: int
    line: int
    instruction: int

    def is_argument(self) -> bool:
        """Whether this call made an argument of the call that runs now.

        Arguments run earlier in the same frame, on the line of the call or below it.
        """
        frame = inspect.currentframe()
        while frame is not None and id(frame) != self.frame:
            frame = frame.f_back
        return frame is not None and self.instruction < frame.f_lasti and frame.f_lineno <= self.line


_last_call: _Call | None = None
"""The last call in any thread. A call in another thread has a frame that is not on the caller's stack."""


def _define(
    function: Callable[..., Any], name: str | None, spec: Spec, executor: ExecutorName | None, frame: FrameType | None
) -> JobDefinition[..., Any, Any]:
    if not callable(function) or not hasattr(function, "__qualname__"):
        raise InvalidOption("job", f"{function!r} is not a function")
    job_type = names.check_type(function.__name__ if name is None else name)
    own: ExecutorName = "async" if inspect.iscoroutinefunction(function) else "thread"
    if executor not in (None, own, "process"):
        raise InvalidOption("executor", f"{executor!r} cannot run {job_type}; use {own!r} or 'process'")
    caller = frame.f_back if frame is not None and "<locals>" in function.__qualname__ else None
    namespace: dict[str, Any] = dict(caller.f_locals) if caller is not None else {}
    definition = JobDefinition[..., Any, Any](function, replace(spec, type=job_type), executor or own, namespace)
    _registry[job_type] = definition
    return definition


def _backoff(retry: RetryPolicy | None) -> Backoff:
    if retry is None:
        return Backoff()
    if not isinstance(retry, RetryPolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
        reason = f"{retry!r} is not a RetryPolicy, which sets how long to wait"
        raise InvalidOption("retry", f"{reason}; to limit the runs, set max_attempts=, which includes the first run")
    return retry.backoff()


def _check_version(version: int) -> int:
    if type(version) is not int or version < 1:
        raise InvalidOption("version", f"{version!r} is not a whole number from 1")
    return version


def _check_timeout(timeout: Seconds | None) -> int | None:
    if timeout is None:
        return None
    timeout_ms = duration_ms("timeout", timeout)
    if timeout_ms == 0:
        raise InvalidOption("timeout", "must be longer than 0 seconds")
    return timeout_ms
