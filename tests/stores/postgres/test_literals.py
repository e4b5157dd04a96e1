"""Arrays as text mean on the server what they mean here."""

import psycopg
import pytest

from holdfast.stores.postgres import literals

TEXTS = [
    "plain",
    "",
    " ",
    "null",
    "NULL",
    "a,b",
    "{}",
    '"',
    '"",""',
    "\\",
    "\\\\x41",
    'x\\"',
    "'",
    "\n\t",
    "é漢🎈",
    "{",
]


@pytest.mark.parametrize("values", [[], ["a"], ["", ""], ['a","b'], TEXTS, TEXTS[:6], ["x" * 100_000]])
def test_texts_arrive_as_they_are(postgres, values):
    assert _sent(postgres, "text", literals.texts(values)) == values


@pytest.mark.parametrize("values", [[], [0], [-1, 2**63 - 1, -(2**63)]])
def test_numbers_arrive_as_they_are(postgres, values):
    assert _sent(postgres, "bigint", literals.numbers(values)) == values


def _sent(postgres, kind, literal):
    with psycopg.connect(postgres.url()) as connection:
        return connection.execute(f"SELECT %s::text::{kind}[]", [literal]).fetchone()[0]
