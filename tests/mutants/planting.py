"""How a bug is planted: attributes are replaced for a while, and it is counted whether the planted code ran."""

from __future__ import annotations

import re
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
from holdfast.tables import TableLog

Planted = Callable[..., Any]
"""Replaces a function: gets the original first, then the arguments."""

STORES = ("memory", "file", "redis", "shards", "postgres", "fdb")
"""Where bugs can be planted; "shards" is the Redis store laid out in several."""

IN_PYTHON = ("memory", "file")
"""The stores that use the rules as they stand in `core`. The Redis store restates them in Lua."""
REDIS = ("redis",)
POSTGRES = ("postgres",)
FDB = ("fdb",)
CORE = IN_PYTHON + POSTGRES + FDB
"""The stores that use a rule of `core` in Python, PostgreSQL for all but its hot paths."""
FACES = IN_PYTHON + REDIS + POSTGRES + FDB
"""Where the answers of a store can be changed, whatever the store is."""
SHARDS = ("shards",)

_FACES = {
    "memory": ("memory", "MemoryStore"),
    "file": ("file", "FileStore"),
    "redis": ("redis", "RedisStore"),
    "shards": ("redis", "RedisStore"),
    "postgres": ("postgres", "PostgresStore"),
    "fdb": ("foundationdb", "FdbStore"),
}
"""The package and the class of each store."""

_BREAKDOWNS = ("0A", "21", "22", "23", "2F", "42", "P0", "XX")
"""Classes of PostgreSQL's errors that say that a statement makes no sense, or was given what it cannot work with."""
_MOST_RUNS = 200_000
"""No check needs as many calls: a planted bug that keeps one going for ever is stopped here."""


class CodeMoved(LookupError):
    """The text that a bug changes does not exist any more: the bug must follow the code."""


class Bug:
    """One bug while it is planted."""

    def __init__(self, store: str, stack: ExitStack) -> None:
        self.store = store
        self.runs = 0
        self.script_errors: list[str] = []
        """What a server said of scripts that failed. A planted bug does the wrong thing; it does not break down."""
        self._stack = stack
        self._statements: _Statements | None = None
        self._scripts: _Scripts | None = None
        self._database: _Database | None = None

    def ran(self) -> None:
        """Record that the planted code ran."""
        self.runs += 1
        if self.runs > _MOST_RUNS:
            msg = f"the planted code ran {_MOST_RUNS} times in one check"
            raise RuntimeError(msg)

    # Python -----------------------------------------------------------------------------------------------------

    def around(self, owner: object, name: str, planted: Planted) -> None:
        """Replace a method of a class, or a function of a module and all its imports by name."""
        original = getattr(owner, name)

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            self.ran()
            return planted(original, *args, **kwargs)

        self._put(owner, name, original, stand_in)

    def computed(self, owner: type, name: str, planted: Callable[[Any], Any]) -> None:
        """Replace a property of a class; `planted` gets the object."""

        def stand_in(self_: Any) -> Any:
            self.ran()
            return planted(self_)

        self._put(owner, name, None, property(stand_in))

    def constant(self, module: ModuleType, name: str, value: object, used_by: tuple[object, str]) -> None:
        """Replace a constant; `used_by` names the function whose runs count."""
        self._put(module, name, getattr(module, name), value)
        self.around(*used_by, _as_before)

    def _put(self, owner: object, name: str, original: object, value: object) -> None:
        for holder in _holders(name, original) if isinstance(owner, ModuleType) else [owner]:
            self._stack.enter_context(mock.patch.object(holder, name, value))

    # The store under test ---------------------------------------------------------------------------------------

    def at(self, store: str) -> Bug:
        """This bug if that store is under test; else one that is put together and put nowhere."""
        return self if store == self.store else _Elsewhere(store, self._stack)

    def memory(self, part: str) -> ModuleType:
        """A module of the memory store. Stores are never imported, only found."""
        return import_module(f"holdfast.stores.memory.{part}")

    def file(self, part: str) -> ModuleType:
        """A module of the file store."""
        return import_module(f"holdfast.stores.file.{part}")

    def redis(self, part: str) -> ModuleType:
        """A module of the Redis store."""
        return import_module(f"holdfast.stores.redis.{part}")

    def postgres(self, part: str) -> ModuleType:
        """A module of the PostgreSQL store."""
        return import_module(f"holdfast.stores.postgres.{part}")

    def fdb(self, part: str) -> ModuleType:
        """A module of the FoundationDB store."""
        return import_module(f"holdfast.stores.foundationdb.{part}")

    @property
    def face(self) -> Any:
        """The class of the store under test, where what it answers can be bent."""
        part, name = _FACES[self.store]
        return getattr(import_module(f"holdfast.stores.{part}.store"), name)

    def answer(self, method: str, planted: Callable[..., Awaitable[Any]]) -> None:
        """Replace a method of the `Store` protocol."""
        self.around(self.face, method, planted)

    def log(self, planted: Callable[[Event], list[Event]]) -> None:
        """Replace the events that are logged."""

        def append(original: Planted, store: Any, event: Event, *rest: Any) -> None:
            for logged in planted(event):
                original(store, logged, *rest)

        self.at("memory").around(TableLog, "append", append)
        self.at("file").around(self.file("transaction").Transaction, "append", append)
        self.at("fdb").around(self.fdb("unit_of_work").Work, "append", append)

    # SQL --------------------------------------------------------------------------------------------------------

    def sql(self, name: str, old: str, new: str) -> None:
        """Replace `old` by `new` in one statement of the file store."""
        if self._statements is None:
            statements: dict[str, str] = self.file("sql").SQL
            self._statements = _Statements(statements, self.ran)
            self._put(self.file("sql"), "SQL", statements, self._statements)
        self._statements.edit(name, old, new)

    def query(self, name: str, old: str, new: str, used_by: tuple[object, str]) -> None:
        """`sql` for a statement that is composed when its module is imported."""
        sql = self.file("sql")
        self.constant(sql, name, _edited(name, getattr(sql, name), old, new), used_by)

    # The PostgreSQL store. The text `old` may be broken into other lines there; `{s}` is the schema. ---------

    def statement(self, name: str, old: str, new: str) -> None:
        """Replace `old` by `new` in a named statement."""
        self._of_postgres.edit_statement(name, old, new)

    def function(self, name: str, old: str, new: str) -> None:
        """Replace `old` by `new` in a function of the migrations."""
        self._of_postgres.edit_function(name, old, new)

    def table(self, old: str, new: str) -> None:
        """Replace `old` by `new` in the step of the migrations that has it."""
        self._of_postgres.edit_steps(old, new)

    @property
    def _of_postgres(self) -> _Database:
        if self._database is None:
            module = self.postgres("sql")
            self._database = _Database(module, self.ran)
            for name in ("statements", "migrations"):
                self._put(module, name, getattr(module, name), getattr(self._database, name))
            self._note_sql_errors()
        return self._database

    def _note_sql_errors(self) -> None:
        errors = self.postgres("errors")
        original = errors.translate

        def translate(error: BaseException, *args: Any) -> Any:
            if str(getattr(error, "sqlstate", ""))[:2] in _BREAKDOWNS:
                self.script_errors.append(str(error))
            return original(error, *args)

        self._put(errors, "translate", original, translate)

    # Lua --------------------------------------------------------------------------------------------------------

    def lua(self, part: str, old: str, new: str) -> None:
        """Replace `old` by `new` in a Lua file of the Redis store, in every script that includes it."""
        if self._scripts is None:
            module = self.redis("scripts")
            self._scripts = _Scripts(module, self.ran)
            self._put(module, "SCRIPTS", module.SCRIPTS, self._scripts)
            self._note_script_errors()
        self._scripts.edit(part, old, new)

    def _note_script_errors(self) -> None:
        errors = self.redis("errors")
        original = errors.translate

        def translate(error: BaseException, *args: Any) -> Any:
            if "script" in str(error):
                self.script_errors.append(str(error))
            return original(error, *args)

        self._put(errors, "translate", original, translate)


class _Elsewhere(Bug):
    """A bug for another store than the one under test: it must fit the code, and is not put in place."""

    def _put(self, owner: object, name: str, original: object, value: object) -> None:
        pass


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


class _Database:
    """The statements and migrations of the PostgreSQL store, with some changed.

    A use counts if the statement was changed itself, or if it calls a function that was, directly or through others.
    """

    def __init__(self, module: ModuleType, ran: Callable[[], None]) -> None:
        self._original: Callable[[str], dict[str, str]] = module.statements
        self._quoted: Callable[[str], str] = module.quoted
        self._steps: list[tuple[int, str, str]] = list(module.migrations())
        self._bodies = {
            name: _calls(body, "{s}")
            for _, _, text in self._steps
            for name, body in re.findall(r"(?:FUNCTION|PROCEDURE) \{s\}\.(\w+)\((.*?\$\$.*?\$\$)", text, re.DOTALL)
        }
        """What each function calls."""
        self._edits: list[tuple[str, str, str]] = []
        self._functions: set[str] = set()
        self._tables = False
        self._ran = ran

    def edit_statement(self, name: str, old: str, new: str) -> None:
        self._edits.append((name, old, new))
        self.statements("s")  # Fails where the text is gone.

    def edit_function(self, name: str, old: str, new: str) -> None:
        head = rf"CREATE (OR REPLACE )?(FUNCTION|PROCEDURE) \{{s\}}\.{name}\(.*?\$\$.*?\$\$"
        for at, (number, step, text) in reversed(list(enumerate(self._steps))):
            found = re.search(head, text, re.DOTALL)
            if found is not None:  # The last one counts: a later step may have replaced it.
                body = _relaid(f"the function {name}", found[0], old, new)
                self._steps[at] = (number, step, text[: found.start()] + body + text[found.end() :])
                self._functions.add(name)
                return
        msg = f"there is no function {name} any more: the planted bug must follow the code"
        raise CodeMoved(msg)

    def edit_steps(self, old: str, new: str) -> None:
        found = [step for step in self._steps if _pattern(old).search(step[2])]
        if not found:
            _relaid("the migrations", "", old, new)
        edited = {step[0]: _relaid(step[1], step[2], old, new) for step in found}
        self._steps = [(number, name, edited.get(number, text)) for number, name, text in self._steps]
        self._tables = True

    def migrations(self) -> list[tuple[int, str, str]]:
        if self._tables:
            self._ran()
        return self._steps

    def statements(self, schema: str) -> dict[str, str]:
        texts = dict(self._original(schema))
        quoted = self._quoted(schema)
        changed = {name for name, text in texts.items() if self._reaches(_calls(text, quoted))}
        for name, old, new in self._edits:
            texts[name] = _relaid(name, texts[name], old.replace("{s}", quoted), new.replace("{s}", quoted))
            changed.add(name)
        found = _Statements(texts, self._ran)
        found.count(changed)
        return found

    def _reaches(self, called: set[str]) -> bool:
        seen: set[str] = set()
        while called - seen:
            seen |= called
            called = {further for name in called for further in self._bodies.get(name, ())}
        return bool(seen & self._functions)


def _calls(text: str, schema: str) -> set[str]:
    return set(re.findall(re.escape(schema) + r"\.(\w+)\(", text))


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(re.escape(word) for word in text.split()))


def _relaid(name: str, text: str, old: str, new: str) -> str:
    """The text with `old` replaced by `new`, across line breaks."""
    changed, count = _pattern(old).subn(lambda _: new, text)
    return changed if count else _edited(name, "", old, new)


class _Statements(dict[str, str]):
    """The statements by name, with some changed; uses of those are counted."""

    def __init__(self, statements: dict[str, str], ran: Callable[[], None]) -> None:
        super().__init__(statements)
        self._edited: set[str] = set()
        self._ran = ran

    def edit(self, name: str, old: str, new: str) -> None:
        self.count({name})
        self[name] = _edited(name, super().__getitem__(name), old, new)

    def count(self, names: set[str]) -> None:
        """Uses of these are uses of the bug."""
        self._edited |= names

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
    """Every module of Holdfast that has this object under this name."""
    modules = [module for path, module in sys.modules.copy().items() if path.startswith("holdfast.")]
    return [module for module in modules if vars(module).get(name) is value]


class Mutant(Struct, frozen=True):
    """A bug that can be planted, the rules it breaks, and the stores it can be planted in."""

    name: str
    sentence: str
    breaks: tuple[str, ...]
    stores: tuple[str, ...]
    plant: Callable[[Bug], None]
    seen_by: str = ""
    """The check that is expected to notice, where the rules have many."""

    @contextmanager
    def planted(self, store: str) -> Generator[Bug]:
        """Plant the bug inside this block only."""
        with ExitStack() as stack:
            bug = Bug(store, stack)
            for loaded in self.stores:
                # A store that is loaded after the planting would keep what was planted.
                _ = Bug(loaded, stack).face
            self.plant(bug)
            yield bug


_mutants: dict[str, Mutant] = {}


def mutant(
    *breaks: str, stores: tuple[str, ...] = IN_PYTHON, seen_by: str = ""
) -> Callable[[Callable[[Bug], None]], Callable[[Bug], None]]:
    """Register a function that plants a bug. Its docstring says what is wrong then."""

    def register(plant: Callable[[Bug], None]) -> Callable[[Bug], None]:
        name = getattr(plant, "__name__", "")
        if name in _mutants:
            msg = f"two mutants are called {name}"
            raise ValueError(msg)
        _mutants[name] = Mutant(name, (plant.__doc__ or "").strip(), breaks, stores, plant, seen_by)
        return plant

    return register


def mutants() -> list[Mutant]:
    """All registered bugs."""
    return list(_mutants.values())
