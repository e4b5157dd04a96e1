import pytest

from tests.unit.cli.support import claim


def test_explain_says_why_in_plain_lines(cli):
    cli("enqueue", "x", "--id", "first", "-q", "emails")
    cli("enqueue", "x", "--id", "j", "-q", "emails")
    cli("pause", "emails")
    lines = cli("explain", "j", "-q", "emails").out.splitlines()
    assert lines[0].startswith("emails/j: ready since 20")
    assert lines[1:] == [
        "- The queue 'emails' is paused: it hands out no jobs until it is resumed.",
        "- No living worker serves the queue 'emails'.",
        "- 1 job of this tenant is ahead in this queue.",
    ]
    assert cli("explain", "j").out.splitlines() == lines


def test_explain_gives_programs_the_causes_with_their_facts(cli, url):
    cli("enqueue", "x", "--id", "j")
    claim(url)
    answer = cli("explain", "j", "--json").json
    assert (answer["id"], answer["queue"], answer["state"]) == ("j", "default", "leased")
    (cause,) = answer["causes"]
    assert (cause["code"], cause["attempt"], cause["max_attempts"]) == ("leased", 1, 4)
    assert cause["at"] == answer["next_at"]
    assert cause["worker_id"] in cause["text"]


def test_hostile_text_of_a_job_moves_no_cursor(cli):
    cli("enqueue", "x", "--id", "\u202ej", "-q", "emails")
    assert "\u202e" not in cli("explain", "\u202ej").out


@pytest.mark.parametrize("options", [[], ["-q", "emails"], ["--json"]])
def test_an_unknown_id_fails_as_with_status(cli, options):
    cli("enqueue", "x", "--id", "other", "-q", "emails")
    answer, status = cli("explain", "j", *options), cli("status", "j", *options)
    assert answer.code == status.code == 1
    assert answer.err == status.err
    assert cli("explain", "other", "--tenant", "strangers").code == 1
