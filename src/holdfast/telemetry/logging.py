"""Logs with fields: by structlog if the program has configured it, else by the standard library.

Payloads, results and tokens are never logged: fields with these names are dropped.
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
MAX_SUBJECTS = 1000
"""The most subjects that a SeldomLogger remembers. Subjects such as job types come from producers."""


class Logger(Protocol):
    """The logger of handlers and of Holdfast itself: an event with fields."""

    def bind(self, **fields: Any) -> Logger: ...

    def debug(self, event: str, **fields: Any) -> None: ...

    def info(self, event: str, **fields: Any) -> None: ...

    def warning(self, event: str, **fields: Any) -> None: ...

    def error(self, event: str, **fields: Any) -> None: ...

    def exception(self, event: str, **fields: Any) -> None:
        """An error, with the traceback of the exception being handled."""
        ...


def get_logger(name: str) -> Logger:
    """A logger for one module. It looks nothing up before the first message."""
    return _FieldLogger(name, {})


configured: tuple[bool, str | int] | None = None
"""The arguments `json` and `level` of `configure(application=True)`, for child processes."""


def configure(*, json: bool = False, level: str | int = "INFO", application: bool = False) -> None:
    """Print Holdfast's logs on standard error, as JSON lines or as `event key=value`.

    With `application`, logs of the application by the standard library look the same, unless it has its own handlers.
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
    """Print these loggers on standard output as JSON lines, at any level. For the HTTP service."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    for name in names:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False


class Record:
    """An event with its fields as one log message: `job finished queue=emails attempt=2`."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, fields: Mapping[str, Any]) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        fields = dict(self.fields)
        # On separate lines: escaped into one line, a traceback is unreadable.
        traceback = fields.pop("traceback", None)
        line = " ".join([self.event, *(f"{name}={_shown(value)}" for name, value in fields.items())])
        return f"{line}\n{traceback.rstrip()}" if traceback else line


class TextFormatter(logging.Formatter):
    """One line for humans."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        # Tracebacks contain arguments of jobs.
        return printable(super().format(record), lines=True)


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

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
            # The caller of info() is two frames up.
            record = Record(event, _without_secrets(self._fields | fields))
            logger.log(level, record, exc_info=exc_info, stacklevel=3)


class SeldomLogger:
    """Logs a message once in `every_s` for each subject, with the number of times it occurred."""

    def __init__(self, name: str, every_s: float) -> None:
        self._logger = get_logger(name)
        self._every_s = every_s
        self._logged: dict[object, tuple[float, int]] = {}

    def warning(self, subject: object, event: str, **fields: Any) -> None:
        """Log, unless the same subject was logged within `every_s`. `times` counts the suppressed messages too."""
        now = time.monotonic()
        logged_at, times = self._logged.get(subject, (-math.inf, 0))
        times += 1
        if now - logged_at < self._every_s:
            self._logged[subject] = logged_at, times
            return
        if len(self._logged) >= MAX_SUBJECTS:
            self._logged.clear()
        self._logged[subject] = now, 0
        self._logger.warning(event, **fields, times=times)


class NullLogger:
    """Logs nothing: the log of `current_job()` outside a worker."""

    __slots__ = ()

    def bind(self, **fields: Any) -> Logger:
        del fields
        return self

    def debug(self, event: str, **fields: Any) -> None:
        """Log nothing."""

    info = warning = error = exception = debug


def _without_secrets(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _SECRET}


def _shown(value: Any) -> str:
    text = str(value)
    return text if text and _PLAIN_TEXT.issuperset(text) else repr(text)
