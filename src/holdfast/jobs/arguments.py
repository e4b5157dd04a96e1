"""A function's parameters as one struct, which binds and encodes arguments fast and decodes them by type."""

from __future__ import annotations

import contextlib
import inspect
import typing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

from msgspec import UNSET, Struct, UnsetType, defstruct, field
from msgspec.structs import asdict

from holdfast.core.errors import InvalidOption, InvalidPayload
from holdfast.jobs import codec as codecs

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_IMMUTABLE = (str, bytes, int, float, bool, type(None))


class Arguments:
    """The parameters of one function. The struct type is made once, at its first use."""

    def __init__(self, function: Callable[..., Any], name: str, locals_: dict[str, Any]) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        hints = _hints(function, locals_)
        parameters = self._signature.parameters.values()
        self._plain = all(parameter.kind in _NAMED for parameter in parameters)
        self.type = _struct_type(name, list(parameters), hints)
        self._read = codecs.reader(self.type)
        self.result_type: Any = hints.get("return", Any)
        if not codecs.can_decode(self.result_type):
            self.result_type = Any

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Struct:
        """The arguments of a call as a struct. Raises InvalidPayload if the function would refuse them."""
        if not self._plain:
            return self._bind_slowly(args, kwargs)
        try:
            return self.type(*args, **kwargs)
        except TypeError:
            # The signature's error is clearer than the struct's.
            return self._bind_slowly(args, kwargs)

    def encode(self, value: Struct, codec: str) -> bytes:
        """Encode bound arguments. What a worker could not read back is refused here, in the producer."""
        try:
            data = codecs.encode(value, codec)
            if codec == "json":
                self._read(data)
            else:
                codecs.decode(data, codec, self.type)
        except codecs.CODEC_ERRORS as error:
            self._refuse(error if isinstance(error, InvalidPayload) else codecs.unreadable(codec, error))
        return data

    def decode(self, data: bytes, codec: str) -> Struct:
        """Decode arguments. Raises InvalidPayload if they do not fit the function."""
        try:
            return codecs.decode(data, codec, self.type)
        except InvalidPayload as error:
            self._refuse(error)

    def convert(self, value: dict[str, Any]) -> Struct:
        """Convert decoded builtins to arguments, after upcasting."""
        try:
            return codecs.convert(value, self.type)
        except InvalidPayload as error:
            self._refuse(error)

    def unpack(self, value: Struct) -> tuple[list[Any], dict[str, Any]]:
        """The arguments to call the function with."""
        found = {name: part for name, part in asdict(value).items() if part is not UNSET}
        if self._plain:
            return [], found
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        parameters = self._signature.parameters.values()
        spreads = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        for parameter in parameters:
            if parameter.name not in found:
                continue
            part = found[parameter.name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                args.extend(part)
            elif parameter.kind is parameter.VAR_KEYWORD:
                kwargs.update(part)
            elif parameter.kind is parameter.KEYWORD_ONLY or not (
                spreads or parameter.kind is parameter.POSITIONAL_ONLY
            ):
                kwargs[parameter.name] = part
            else:
                args.append(part)
        return args, kwargs

    def _bind_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Struct:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidPayload(f"{self._name}.message(): {error}") from None
        return self.type(**bound.arguments)

    def _refuse(self, error: InvalidPayload) -> NoReturn:
        place = error.path.removeprefix("$").removeprefix(".")
        raise InvalidPayload(": ".join(filter(None, (self._name, place, error.reason)))) from None


def _hints(function: Callable[..., Any], locals_: dict[str, Any]) -> dict[str, Any]:
    """The annotations of a function as types. A return type that cannot be resolved counts as Any."""
    annotations = dict(inspect.unwrap(function).__annotations__)
    returns = {"return": annotations.pop("return")} if "return" in annotations else {}
    try:
        hints = _evaluate(function, annotations, locals_)
    except NameError as error:
        reason = f"cannot find {error.name!r}, named in its annotations; import it outside TYPE_CHECKING"
        raise InvalidOption(f"job {function.__qualname__}", reason) from error
    with contextlib.suppress(NameError):
        hints |= _evaluate(function, returns, locals_)
    return hints


def _evaluate(function: Callable[..., Any], annotations: dict[str, Any], locals_: dict[str, Any]) -> dict[str, Any]:
    annotated = SimpleNamespace(__annotations__=annotations)
    globals_ = getattr(inspect.unwrap(function), "__globals__", {})
    return typing.get_type_hints(annotated, globals_, locals_, include_extras=True)


def _struct_type(name: str, parameters: list[inspect.Parameter], hints: dict[str, Any]) -> type[Struct]:
    by_position = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    by_keyword = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    base = defstruct(name, [_field(p, hints) for p in by_position], gc=False)
    if not by_keyword:
        return base
    return defstruct(name, [_field(p, hints) for p in by_keyword], bases=(base,), kw_only=True, gc=False)


def _field(parameter: inspect.Parameter, hints: dict[str, Any]) -> tuple[str, Any, Any] | tuple[str, Any]:
    hint: Any = hints.get(parameter.name, Any)
    if parameter.kind is parameter.VAR_POSITIONAL:
        return parameter.name, list[_readable(hint)], field(default_factory=list[Any])
    if parameter.kind is parameter.VAR_KEYWORD:
        return parameter.name, dict[str, _readable(hint)], field(default_factory=dict[str, Any])
    default = parameter.default
    if default is parameter.empty:
        return parameter.name, _readable(hint)
    if default is None:
        hint = hint | None if hint is not Any else hint
    if not _is_writable(default):
        # It is left out of the payload, so the function uses its own default.
        return parameter.name, _readable(hint) | UnsetType, UNSET
    if isinstance(default, _IMMUTABLE):
        return parameter.name, _readable(hint), default
    return parameter.name, _readable(hint), field(default_factory=lambda: default)


def _readable(hint: Any) -> Any:
    return hint if codecs.can_decode(hint) else Any


def _is_writable(value: Any) -> bool:
    try:
        codecs.encode(value)
    except InvalidPayload:
        return False
    return True
