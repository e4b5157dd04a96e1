"""What people see: the command on a terminal of its own."""

import pytest

from tests.unit.cli.support import fail


@pytest.fixture
def jobs(cli, url):
    cli("enqueue", "send_email", "--id", "[bold]j1", "--payload", '{"to": "[red]a"}')
    cli("enqueue", "send_email", "--id", "j2")
    cli("enqueue", "send_email", "--id", "j3", "--delay", "1h")
    fail(url, message="no \x1b[2J markup [green]here")


def test_tables_have_colours_and_relative_times_and_show_text_unchanged(processes, jobs):
    answer = processes.on_terminal("list")
    assert answer.code == 0
    assert "[bold]j1" in answer.out
    assert "\x1b[1;31mfailed" in answer.out
    assert "in 59m" in answer.out
    assert " ago" in answer.out


def test_status_shows_a_job_in_detail(processes, jobs):
    answer = processes.on_terminal("status", "[bold]j1")
    assert '{"to":"[red]a"}' in answer.out
    assert "ago)" in answer.out
    assert "no \\x1b[2J markup [green]here" in answer.out


def test_json_on_a_terminal_is_indented(processes, jobs):
    assert '  "queues": [\r\n' in processes.on_terminal("queues", "--json").out


def test_a_replay_shows_a_bar_and_the_count(processes, jobs):
    answer = processes.on_terminal("dlq", "replay", "--all")
    assert answer.code == 0
    assert "━" in answer.out
    assert "replayed 1\r\n" in answer.out


def test_watching_keeps_one_table_until_ctrl_c(processes, jobs):
    answer = processes.on_terminal("stats", "--watch", until="oldest ready")
    assert answer.code == 0
    assert "default" in answer.out
    assert "retrying" not in answer.out  # No job is in that state.
    assert "Traceback" not in answer.out


def test_events_are_coloured_lines(processes, jobs):
    answer = processes.on_terminal("events")
    assert "\x1b[1;31mfailed" in answer.out
    assert "[bold]j1" in answer.out
    assert "\x1b[2J" not in answer.out
