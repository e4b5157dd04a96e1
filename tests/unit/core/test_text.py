"""Text that others wrote, made safe to print."""

import json

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.text import printable, printable_json

HOSTILE = {
    "\x1b[2J": "\\x1b[2J",  # an escape sequence
    "\x9b31m": "\\x9b31m",  # the same by one C1 character
    "\x07\x08\x7f": "\\x07\\x08\\x7f",
    "\u202eevil\u2066": "\\u202eevil\\u2066",  # direction overrides and isolates
    "\u200b\u2028\ufeff": "\\u200b\\u2028\\ufeff",
    "\U000e0041": "\\U000e0041",  # a tag
}


def test_control_characters_are_escaped():
    for text, shown in HOSTILE.items():
        assert printable(f"a{text}z") == f"a{shown}z"
    assert printable("a\x1b[31mred\nb") == "a\\x1b[31mred\\nb"
    assert printable("two\nlines\r", lines=True) == "two\nlines\\r"
    assert printable("żółw [red] 漢字 😀") == "żółw [red] 漢字 😀"
    assert printable("half \ud800") == "half \\ud800"


@given(st.text())
def test_escaped_json_decodes_to_the_same_value(text):
    written = json.dumps({text: [text]}, ensure_ascii=False, indent=2)
    shown = printable_json(written)
    assert json.loads(shown) == {text: [text]}
    assert shown.replace("\n", "").isprintable()


def test_json_of_hostile_text_has_escapes():
    assert printable_json('"\x9b\u202e\U000e0041"') == '"\\u009b\\u202e\\udb40\\udc41"'
