"""Imports the modules of a worker and finds their jobs."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from holdfast.jobs.definition import JobDefinition


def load_jobs(modules: Iterable[str]) -> list[JobDefinition[..., Any, Any]]:
    """The `@job` functions of these modules. A package includes its submodules that it has imported.

    Raises InvalidOption if a module cannot be imported or has no jobs.
    """
    from holdfast.jobs.definition import JobDefinition

    jobs: dict[int, JobDefinition[..., Any, Any]] = {}
    for name in modules:
        _import(name, "module")
        found = [
            cast("JobDefinition[..., Any, Any]", value)
            for module in _with_submodules(name)
            for value in list(vars(module).values())
            if isinstance(value, JobDefinition)
        ]
        if not found:
            raise InvalidOption("module", f"{name} has no jobs; put @job on a function in it")
        jobs |= {id(definition): definition for definition in found}
    return list(jobs.values())


def load_function(reference: str, option: str) -> Callable[[Any], Any]:
    """The function at `module:function`. Raises InvalidOption."""
    name, colon, path = reference.partition(":")
    if not colon or not name or not path:
        raise InvalidOption(option, f"{reference!r} does not name a function; write module:function")
    found: Any = _import(name, option)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidOption(option, f"{name} has no function {path}")
    return found


def add_current_directory() -> None:
    """Put the current directory on the Python path, so that its modules are found."""
    here = os.getcwd()  # noqa: PTH109 - sys.path holds text
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _import(name: str, option: str) -> ModuleType:
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise InvalidOption(option, f"{name!r} is a file; name the module: {dotted}")
    if option == "module" and ":" in name:
        raise InvalidOption(option, f"{name!r} names a function; name the module alone: {name.partition(':')[0]}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _failed(name, option, error) from error
        reason = f"there is no module {name!r} in {Path.cwd()} or on the Python path"
        raise InvalidOption(option, reason) from None
    except Exception as error:
        raise _failed(name, option, error) from error


def _failed(name: str, option: str, error: Exception) -> InvalidOption:
    """The error of an import, with the line of the module that raised it."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename not in (__file__, importlib.__file__)
    ]  # fmt: skip
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    else:
        where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else name
    message = error.msg if isinstance(error, SyntaxError) else error
    return InvalidOption(option, f"importing {name} failed: {type(error).__name__}: {message} ({where})")


def _with_submodules(name: str) -> list[ModuleType]:
    names = [name, *(other for other in sys.modules if other.startswith(f"{name}."))]
    return [sys.modules[name] for name in names]
