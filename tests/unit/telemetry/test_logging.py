from __future__ import annotations

import json
import logging

import pytest
import structlog

from holdfast.telemetry.logging import NullLogger, configure, get_logger


@pytest.fixture
def output(capsys):
    logger = logging.getLogger("holdfast")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield lambda: capsys.readouterr().err
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate


def test_a_readable_line_has_the_event_and_its_fields(output):
    configure()
    get_logger("holdfast.test").bind(queue="emails").info("job finished", took="1 s", odd='a"b', empty="")
    line = output()
    assert line.endswith("INFO    job finished queue=emails took='1 s' odd='a\"b' empty=''\n")


def test_json_is_one_object_a_line(output):
    configure(json=True, level="DEBUG")
    logger = get_logger("holdfast.test")
    logger.debug("claimed", count=2, where={"a": object})
    logging.getLogger("holdfast.other").warning("plain %s", "text")
    first, second = map(json.loads, output().splitlines())
    assert (first["event"], first["level"], first["logger"], first["count"]) == ("claimed", "debug", "holdfast.test", 2)
    assert (second["event"], second["level"]) == ("plain text", "warning")


def test_an_exception_is_logged_with_its_traceback(output):
    configure(json=True)
    try:
        raise ValueError("it broke")  # noqa: TRY301 - to have one to log
    except ValueError:
        get_logger("holdfast.test").exception("handler raised")
    line = json.loads(output())
    assert (line["level"], "ValueError: it broke" in line["exception"]) == ("error", True)


def test_payloads_results_and_tokens_are_never_logged(output):
    configure()
    get_logger("holdfast.test").bind(token=12345).warning("x", payload="secret", result="secret", fence=12345, ok=1)
    assert output().endswith("WARNING x ok=1\n")


def test_the_level_is_kept(output):
    configure(level="WARNING")
    get_logger("holdfast.test").info("quiet")
    assert output() == ""


def test_configuring_twice_logs_each_line_once(output):
    configure()
    configure()
    get_logger("holdfast.test").error("once")
    assert output().count("once") == 1


def test_the_source_position_of_a_line_is_the_callers(caplog):
    get_logger("holdfast.test").warning("here")
    assert caplog.records[0].funcName == "test_the_source_position_of_a_line_is_the_callers"


def test_structlog_gets_the_fields_if_the_program_has_configured_it(caplog):
    get_logger("holdfast.test").warning("by the standard library")
    seen: list[dict[str, object]] = []
    structlog.configure(processors=[lambda _, __, fields: seen.append(dict(fields)) or ""])
    try:
        get_logger("holdfast.test").bind(queue="emails", token=1).info("by structlog", n=1)
    finally:
        structlog.reset_defaults()
    assert caplog.messages == ["by the standard library"]
    assert [(line["event"], line["queue"], line["n"], "token" in line) for line in seen] == [
        ("by structlog", "emails", 1, False)
    ]


def test_the_null_logger_logs_nothing(caplog):
    NullLogger().bind(a=1).error("nothing")
    assert caplog.messages == []


def test_control_characters_in_tracebacks_and_fields_are_escaped(output):
    hostile = "\x1b[2J\x9b\u202e"
    configure()
    get_logger("holdfast.x").warning("job failed", error=hostile, traceback=f"Traceback:\n  {hostile}")
    assert output().count("\\x1b[2J\\x9b\\u202e") == 2
    configure(json=True)
    get_logger("holdfast.x").warning("job failed", error=hostile)
    line = output()
    assert line.rstrip("\n").isprintable()
    assert json.loads(line)["error"] == hostile
