"""Logs with fields. By structlog where the program has configured it, else by the standard library.

Payloads, results and tokens are never logged: fields of those names are dropped.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol, cast

import msgspec

from holdfast.core.text import printable, printable_json

_SECRET = frozenset({"payload", "result", "token", "fence"})
_PLAIN_TEXT = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:/+@%")
SUBJECTS = 1000
"""The most subjects a SeldomLogger remembers: job types come from producers."""


class Logger(Protocol):
    """What handlers and our own code log with: an event, and fields."""

    def bind(self, **fields: Any) -> Logger: ...

    def debug(self, event: str, **fields: Any) -> None: ...

    def info(self, event: str, **fields: Any) -> None: ...

    def warning(self, event: str, **fields: Any) -> None: ...

    def error(self, event: str, **fields: Any) -> None: ...

    def exception(self, event: str, **fields: Any) -> None:
        """An error, with the traceback of the exception being handled."""
        ...


def get_logger(name: str) -> Logger:
    """A logger for one module; nothing is looked up before something is logged."""
    return _FieldLogger(name, {})


configured: tuple[bool, str | int] | None = None
"""How `configure` was called for the whole process, for the processes that it starts: json, level."""


def configure(*, json: bool = False, level: str | int = "INFO", application: bool = False) -> None:
    """Print our logs on standard error: JSON lines, or `event key=value` for people. For programs.

    With `application`, what the application logs by the standard library looks the same, unless it has handlers of
    its own.
    """
    global configured  # noqa: PLW0603 - one process, one way to log
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    logger = logging.getLogger("holdfast")
    logger.handlers[:] = [handler]
    logger.setLevel(level)
    logger.propagate = False
    if application:
        configured = json, level
        root = logging.getLogger()
        if not root.handlers:
            root.addHandler(handler)
            root.setLevel(level)


def configure_lines(*names: str) -> None:
    """Print what these loggers say on standard output, as JSON lines, whatever the level. For the HTTP service."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False


class Record:
    """An event and its fields, as one log message: `job finished queue=emails attempt=2`."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, fields: Mapping[str, Any]) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        fields = dict(self.fields)
        # On lines of its own, as everywhere: escaped into one, nobody reads it.
        traceback = fields.pop("traceback", None)
        line = " ".join([self.event, *(f"{name}={_shown(value)}" for name, value in fields.items())])
        return f"{line}\n{traceback.rstrip()}" if traceback else line


class TextFormatter(logging.Formatter):
    """One line for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        # Tracebacks carry what jobs were given.
        return printable(super().format(record), lines=True)


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"at": at, "level": record.levelname.lower(), "logger": record.name}
        message: object = record.msg
        if isinstance(message, Record):
            line |= {"event": message.event, **message.fields}
        else:
            line["event"] = record.getMessage()
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return printable_json(msgspec.json.encode(line, enc_hook=str).decode())


class _FieldLogger:
    __slots__ = ("_fields", "_name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self._name = name
        self._fields = fields

    def bind(self, **fields: Any) -> Logger:
        return _FieldLogger(self._name, self._fields | fields)

    def debug(self, event: str, **fields: Any) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        self._emit(logging.ERROR, event, fields, exc_info=True)

    def _emit(self, level: int, event: str, fields: dict[str, Any], *, exc_info: bool = False) -> None:
        structlog = cast("Any", sys.modules.get("structlog"))
        if structlog is not None and structlog.is_configured():
            everything = _without_secrets(self._fields | fields)
            structlog.get_logger(self._name).log(level, event, exc_info=exc_info, **everything)
            return
        logger = logging.getLogger(self._name)
        if logger.isEnabledFor(level):
            # The caller of info() and its like is two frames up.
            record = Record(event, _without_secrets(self._fields | fields))
            logger.log(level, record, exc_info=exc_info, stacklevel=3)


class SeldomLogger:
    """Logs what would otherwise be said for every job: each subject once in `every_s`, and how often it happened."""

    def __init__(self, name: str, every_s: float) -> None:
        self._logger = get_logger(name)
        self._every_s = every_s
        self._said: dict[object, tuple[float, int]] = {}

    def warning(self, subject: object, event: str, **fields: Any) -> None:
        """Log, unless the same subject was logged within `every_s`; `times` counts what was not."""
        now = time.monotonic()
        said_at, times = self._said.get(subject, (-math.inf, 0))
        times += 1
        if now - said_at < self._every_s:
            self._said[subject] = said_at, times
            return
        if len(self._said) >= SUBJECTS:
            self._said.clear()
        self._said[subject] = now, 0
        self._logger.warning(event, **fields, times=times)


class NullLogger:
    """Says nothing: the log of `current_job()` outside a worker."""

    __slots__ = ()

    def bind(self, **fields: Any) -> Logger:
        del fields
        return self

    def debug(self, event: str, **fields: Any) -> None:
        """Say nothing."""

    info = warning = error = exception = debug


def _without_secrets(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _SECRET}


def _shown(value: Any) -> str:
    text = str(value)
    return text if text and _PLAIN_TEXT.issuperset(text) else repr(text)
