import shutil

import pytest


def test_without_arguments_it_prints_help(cli):
    answer = cli()
    assert answer.code == 0
    assert "Usage: holdfast" in answer.out
    assert "conformance" in answer.out


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command(cli, flag):
    lines = cli(flag).out.partition("Commands:")[2].splitlines()
    commands = {line.split()[0] for line in lines if line.startswith("  ") and line.strip() and line[2] != " "}
    there = "dev worker serve maintain workers enqueue status result cancel list stats queues pause resume events dlq"
    there += " schedule flow tenant tenants pipeline migrate token keys conformance doctor version"
    assert commands >= set(there.split())


def test_an_unknown_command_is_wrong_usage(cli):
    answer = cli("fly")
    assert answer.code == 2
    assert "No such command" in answer.err


def test_every_command_has_its_own_help(cli):
    for command in (
        "dev",
        "worker",
        "enqueue",
        "list",
        "stats",
        "events",
        "conformance",
        "doctor",
        "dlq replay",
        "flow show",
        "migrate",
        "move",
        "pipeline move",
        "schedule add",
        "tenant set",
    ):
        answer = cli(*command.split(), "--help")
        assert answer.code == 0
        assert answer.out.startswith(f"Usage: holdfast {command}")


def test_help_loads_neither_rich_nor_a_store(processes):
    script = (
        "import sys; from holdfast.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.partition('.')[0] in ('rich', 'sqlite3') or 'holdfast.worker' in m])"
    )
    import subprocess
    import sys

    printed = subprocess.run([sys.executable, "-c", script], check=True, text=True, capture_output=True).stdout
    assert printed.splitlines()[-1] == "[]"


def test_the_version_as_command_flag_and_module(cli, processes):
    text = cli("version").out
    assert text.startswith("holdfast 0.")
    assert cli("--version").out == text
    assert cli("version", "--json").json == {"version": text.split()[1]}
    assert processes.run("version").out == text


def test_an_unknown_option_is_wrong_usage(cli):
    answer = cli("stats", "--nothing")
    assert answer.code == 2
    assert "--nothing" in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("variable, flag", [("HOLDFAST_STORE", "--store"), ("HOLDFAST_TENANT", "--tenant")])
def test_a_missing_store_or_tenant_is_wrong_usage_with_a_hint(cli, monkeypatch, variable, flag):
    monkeypatch.delenv(variable)
    answer = cli("stats")
    assert answer.code == 2
    assert f"pass {flag} or set {variable}" in answer.err
    assert not answer.out


def test_an_unknown_store_is_wrong_usage_and_the_known_ones_are_named(cli):
    answer = cli("stats", "--store", "nothing:here")
    assert answer.code == 2
    assert "no store is registered for nothing:" in answer.err
    assert "file:" in answer.err


def test_a_bad_tenant_is_wrong_usage_with_the_rule(cli):
    answer = cli("stats", "--tenant", "-no-")
    assert answer.code == 2
    assert "starting with a letter or digit" in answer.err


def test_a_flag_overrides_the_environment(cli):
    cli("enqueue", "pid", "--tenant", "other", "--id", "one")
    assert cli("list", "--json").json["jobs"] == []
    assert cli("list", "--json", "--tenant", "other").json["jobs"][0]["tenant"] == "other"


def test_a_store_that_cannot_be_opened_fails_without_a_traceback(cli, place):
    shutil.rmtree(place / "data")
    (place / "data").write_text("this is a file")
    answer = cli("stats")
    assert answer.code == 1
    assert answer.err.startswith("Error: ")
    assert "Traceback" not in answer.err


def test_a_closed_pipe_causes_no_traceback(cli, processes):
    for number in range(3):
        cli("enqueue", "pid", "--id", f"j{number}")
    process = processes.start("events", "--follow", "--json")
    process.stdout.readline()
    process.stdout.close()
    cli("enqueue", "pid", "--id", "one-more")
    assert process.stderr.read() == ""
    assert process.wait() == 1
