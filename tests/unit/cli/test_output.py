from datetime import timedelta

import pytest

from holdfast.cli.output import plain_table, printable, progress, span


def test_control_characters_are_spelt_out():
    assert printable("a\x1b[31mred\nb") == "a\\x1b[31mred\\nb"
    assert printable("two\nlines\r", lines=True) == "two\nlines\\r"
    assert printable("żółw [red]") == "żółw [red]"
    assert printable("lone \ud800") == "lone \\ud800"


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
