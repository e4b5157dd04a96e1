import ast
import io
import json
from datetime import timedelta
from pathlib import Path

import pytest
from rich.console import Console

from holdfast import cli
from holdfast.cli import exit_code_of
from holdfast.cli.output import emit, note, plain_table, progress, rich_table, say, show, show_pairs, span
from holdfast.core.errors import InvalidOption


def test_all_commands_print_through_one_module():
    """That module escapes texts of others: a `print` elsewhere would bypass it."""
    folder = Path(cli.__file__).parent
    for path in folder.glob("*.py"):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        names = {node.func.id for node in calls if isinstance(node.func, ast.Name)}
        assert "print" not in names or path.name == "output.py", path.name


def test_lines_notes_tables_and_json_escape_control_characters(capsys):
    hostile = "\x1b[2J\x9b\u202e\n"
    say(f"canceled {hostile}")
    note(f"Error: {hostile}")
    say("two\nlines\x1b", lines=True)
    show(["id", hostile], [[hostile, "x"]])
    show_pairs([("error", hostile)])
    emit({"id": hostile})
    printed = capsys.readouterr()
    assert (printed.out + printed.err).replace("\n", "").isprintable()
    assert printed.out.startswith("canceled \\x1b[2J\\x9b\\u202e\\n\ntwo\nlines\\x1b\n")
    assert json.loads(printed.out.splitlines()[-1]) == {"id": hostile}
    assert exit_code_of(lambda: (_ for _ in ()).throw(InvalidOption("id", hostile))) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_rich_table_shows_markup_and_control_characters_as_text():
    console = Console(width=60, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(rich_table(["[bold]id\x1b[2J"], [["[red]a\x9b\u202e"]]))
    shown = console.file.getvalue()
    assert "[bold]id\\x1b[2J" in shown
    assert "[red]a\\x9b\\u202e" in shown
    assert "\x1b" not in shown


def test_a_plain_table_is_aligned_and_has_no_empty_cells():
    assert plain_table(["id", "last seen"], [["a", "now"], ["longer", ""]]) == [
        "ID      LAST_SEEN",
        "a       now",
        "longer  -",
    ]


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0.0s"),
        (9.94, "9.9s"),
        (59, "59s"),
        (60, "1m 0s"),
        (3725, "1h 2m"),
        (90061, "1d 1h"),
        (86400 * 400, "400d 0h"),
    ],
)
def test_spans_have_two_units(seconds, text):
    assert span(timedelta(seconds=seconds)) == text


def test_progress_in_plain_lines_has_a_line_for_each_tenth(capsys):
    with progress("Replaying", 1000) as done:
        for _ in range(250):
            done(4)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "Replaying: 100 of 1000"
    assert lines[-1] == "Replaying: 1000 of 1000"
    with progress("Replaying", 10, quiet=True) as done:
        done(10)
    assert capsys.readouterr().err == ""
