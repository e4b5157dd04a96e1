"""How a bug is planted: attributes are replaced for a while, and it is counted whether the planted code ran."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest import mock

from msgspec import Struct

from holdfast.core.events import Event

Planted = Callable[..., Any]
"""Stands in for a function: gets the original first, then the arguments."""

STORES = ("memory", "file", "redis", "shards")
"""Where bugs can be planted; "shards" is the Redis store laid out in several."""

IN_PYTHON = ("memory", "file")
"""The stores that use the rules as they stand in `core`. The Redis store restates them in Lua."""
REDIS = ("redis",)
FACES = IN_PYTHON + REDIS
"""Where what a store answers can be bent, whatever stands behind it."""
SHARDS = ("shards",)

_MOST_RUNS = 200_000
"""No check needs as many calls: a planted bug that keeps one going for ever is stopped here."""


class CodeMoved(LookupError):
    """The text that a bug changes is not there any more: the bug must follow the code."""


class Bug:
    """One planted bug, as long as it is in place."""

    def __init__(self, store: str, stack: ExitStack) -> None:
        self.store = store
        self.runs = 0
        self.script_errors: list[str] = []
        """What a server said of scripts that failed. A planted bug does the wrong thing; it does not break down."""
        self._stack = stack
        self._statements: _Statements | None = None
        self._scripts: _Scripts | None = None

    def ran(self) -> None:
        """Note that the planted code ran."""
        self.runs += 1
        if self.runs > _MOST_RUNS:
            msg = f"the planted code ran {_MOST_RUNS} times in one check"
            raise RuntimeError(msg)

    # Python -----------------------------------------------------------------------------------------------------

    def around(self, owner: object, name: str, planted: Planted) -> None:
        """Replace a method of a class, or a function of a module wherever it was imported by name."""
        original = getattr(owner, name)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            self.ran()
            return planted(original, *args, **kwargs)

        self._put(owner, name, original, stand_in)

    def constant(self, module: ModuleType, name: str, value: object, used_by: tuple[object, str]) -> None:
        """Replace a constant; `used_by` names the function whose runs count."""
        self._put(module, name, getattr(module, name), value)
        self.around(*used_by, _as_before)

    def _put(self, owner: object, name: str, original: object, value: object) -> None:
        for holder in _holders(name, original) if isinstance(owner, ModuleType) else [owner]:
            self._stack.enter_context(mock.patch.object(holder, name, value))

    # The store under test ---------------------------------------------------------------------------------------

    @property
    def memory(self) -> ModuleType:
        """The module of the memory store. Stores are never imported, only found."""
        return import_module("holdfast.stores.memory")

    def file(self, part: str) -> ModuleType:
        """A module of the file store."""
        return import_module(f"holdfast.stores.file.{part}")

    def redis(self, part: str) -> ModuleType:
        """A module of the Redis store."""
        return import_module(f"holdfast.stores.redis.{part}")

    @property
    def face(self) -> Any:
        """The class of the store under test, where what it answers can be bent."""
        if self.store == "memory":
            return self.memory.MemoryStore
        return self.file("store").FileStore if self.store == "file" else self.redis("store").RedisStore

    def answer(self, method: str, planted: Callable[..., Awaitable[Any]]) -> None:
        """Replace a method of the `Store` protocol."""
        self.around(self.face, method, planted)

    def log(self, planted: Callable[[Event], list[Event]]) -> None:
        """Have other events logged than the one that is due."""

        def append(original: Planted, store: Any, event: Event, *rest: Any) -> None:
            for logged in planted(event):
                original(store, logged, *rest)

        if self.store == "memory":
            self.around(self.memory.MemoryStore, "_append", append)
        else:
            self.around(self.file("transaction").Transaction, "append", append)

    # SQL --------------------------------------------------------------------------------------------------------

    def sql(self, name: str, old: str, new: str) -> None:
        """Have one statement of the file store say `new` where it says `old`."""
        if self._statements is None:
            statements: dict[str, str] = self.file("sql").SQL
            self._statements = _Statements(statements, self.ran)
            self._put(self.file("sql"), "SQL", statements, self._statements)
        self._statements.edit(name, old, new)

    def query(self, name: str, old: str, new: str, used_by: tuple[object, str]) -> None:
        """The same for a statement that is put together when the module is loaded."""
        sql = self.file("sql")
        self.constant(sql, name, _edited(name, getattr(sql, name), old, new), used_by)

    # Lua --------------------------------------------------------------------------------------------------------

    def lua(self, part: str, old: str, new: str) -> None:
        """Have a Lua file of the Redis store say `new` where it says `old`, in every script that it is a part of."""
        if self._scripts is None:
            module = self.redis("scripts")
            self._scripts = _Scripts(module, self.ran)
            self._put(module, "SCRIPTS", module.SCRIPTS, self._scripts)
            self._note_script_errors()
        self._scripts.edit(part, old, new)

    def _note_script_errors(self) -> None:
        trouble = self.redis("trouble")
        original = trouble.translate

        def translate(error: BaseException, *args: Any) -> Any:
            if "script" in str(error):
                self.script_errors.append(str(error))
            return original(error, *args)

        self._put(trouble, "translate", original, translate)


class _Scripts(dict[str, Any]):
    """The scripts by name, put together from changed parts as they are used; uses of those that differ are counted."""

    def __init__(self, module: ModuleType, ran: Callable[[], None]) -> None:
        super().__init__(module.SCRIPTS)
        self._assemble: Callable[[str, dict[str, str]], Any] = module.assemble
        self._before: dict[str, str] = module.read_parts()
        self._after = self._before
        self._differs: dict[str, bool] = {}
        self._ran = ran

    def edit(self, part: str, old: str, new: str) -> None:
        self._after = self._after | {part: _edited(f"{part}.lua", self._after[part], old, new)}
        self._differs.clear()

    def __getitem__(self, name: str) -> Any:
        if name not in self._differs:
            before, after = (_assembled(self._assemble, name, tuple(p.items())) for p in (self._before, self._after))
            self[name], self._differs[name] = after, after != before
        if self._differs[name]:
            self._ran()
        return super().__getitem__(name)


@lru_cache(256)
def _assembled(assemble: Callable[[str, dict[str, str]], Any], name: str, parts: tuple[tuple[str, str], ...]) -> Any:
    # It takes a while, and a bug is planted again for each check.
    return assemble(name, dict(parts))


class _Statements(dict[str, str]):
    """The statements by name, with some changed; uses of those are counted."""

    def __init__(self, statements: dict[str, str], ran: Callable[[], None]) -> None:
        super().__init__(statements)
        self._edited: set[str] = set()
        self._ran = ran

    def edit(self, name: str, old: str, new: str) -> None:
        self._edited.add(name)
        self[name] = _edited(name, super().__getitem__(name), old, new)

    def __getitem__(self, name: str) -> str:
        if name in self._edited:
            self._ran()
        return super().__getitem__(name)


def _edited(name: str, text: str, old: str, new: str) -> str:
    if old not in text:
        msg = f"there is no {old!r} in {name} any more: the planted bug must follow the code"
        raise CodeMoved(msg)
    return text.replace(old, new)


def _as_before(original: Planted, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **kwargs)


def _holders(name: str, value: object) -> list[ModuleType]:
    """Every module of ours that has this very object under this name."""
    modules = [module for path, module in sys.modules.copy().items() if path.startswith("holdfast.")]
    return [module for module in modules if vars(module).get(name) is value]


class Mutant(Struct, frozen=True):
    """A bug that can be planted, the rules it breaks, and the stores it can be planted in."""

    name: str
    sentence: str
    breaks: tuple[str, ...]
    stores: tuple[str, ...]
    plant: Callable[[Bug], None]

    @contextmanager
    def planted(self, store: str) -> Generator[Bug]:
        """The bug is there inside this block, and nowhere else."""
        with ExitStack() as stack:
            bug = Bug(store, stack)
            _ = bug.face  # Loads the store, so that all that holds a function is found.
            self.plant(bug)
            yield bug


_mutants: dict[str, Mutant] = {}


def mutant(
    *breaks: str, stores: tuple[str, ...] = IN_PYTHON
) -> Callable[[Callable[[Bug], None]], Callable[[Bug], None]]:
    """Register a function that plants a bug; its docstring says what is wrong then."""

    def register(plant: Callable[[Bug], None]) -> Callable[[Bug], None]:
        name = getattr(plant, "__name__", "")
        if name in _mutants:
            msg = f"two mutants are called {name}"
            raise ValueError(msg)
        _mutants[name] = Mutant(name, (plant.__doc__ or "").strip(), breaks, stores, plant)
        return plant

    return register


def mutants() -> list[Mutant]:
    """All that can be planted."""
    return list(_mutants.values())
