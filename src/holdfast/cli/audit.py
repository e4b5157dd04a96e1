"""The audit trail of commands: a line on the logger `holdfast.audit`, and in a file if the operator names one."""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import typer

from holdfast.cli.options import TENANT_VARIABLE, store_url
from holdfast.core.errors import InvalidOption
from holdfast.core.names import as_operator
from holdfast.opening import shown_url

NO_STORE = "-"
VARIABLE = "HOLDFAST_AUDIT_LOG"
"""The file for the lines. A command that cannot write to it does nothing."""


@contextmanager
def audited(
    action: str, store: str | None, tenant: str | None, *, dry_run: bool = False, **facts: Any
) -> Generator[dict[str, Any]]:
    """Record an action of the user of this machine when the block ends. A dry run is not recorded.

    `store` is `NO_STORE` for an action without a store.
    """
    from holdfast.telemetry import audit

    if dry_run:
        yield facts
        return
    where = None if store == NO_STORE else shown_url(store_url(store))
    place = {"store": where, "tenant": tenant or os.environ.get(TENANT_VARIABLE)}
    leave: typer.Exit | None = None
    with _file(), audit.audited(action, via="cli", sub=_user(), address=socket.gethostname(), **place, **facts) as all:
        try:
            yield all
        except typer.Exit as exit:  # The action is done; the facts say what was refused.
            leave = exit
    if leave is not None:
        raise leave


@contextmanager
def _file() -> Generator[None]:
    path = os.environ.get(VARIABLE)
    if not path:
        yield
        return
    from holdfast.telemetry.audit import LOGGER
    from holdfast.telemetry.logging import JsonFormatter

    try:
        stream = open(path, "a", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
    except OSError as error:
        raise InvalidOption(VARIABLE, f"{path}: {error.strerror}; nothing was done") from None
    logger, handler = logging.getLogger(LOGGER), logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with stream:
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def operator() -> str:
    """The user of this machine, for the events of the jobs."""
    return as_operator(f"cli:{_user()}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # The user has no name, as in many containers.
        return f"uid {os.getuid()}"
