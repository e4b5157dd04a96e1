import pytest


def test_a_schedule_is_added_listed_and_removed(cli):
    assert "No schedules yet" in cli("schedule", "list").err
    zone = ("--timezone", "Europe/Berlin")
    answer = cli("schedule", "add", "nightly", "report", "--cron", "30 2 * * *", *zone, "--payload", '{"n": 1}')
    assert answer.code == 0
    assert answer.out.startswith("scheduled nightly: next 20")
    made = cli("schedule", "add", "often", "-", "--every", "10m", "-q", "ticks", "--priority", "9", "--json", stdin="5")
    shown = made.json
    assert (shown["name"], shown["every_s"], shown["queue"], shown["type"]) == ("often", 600, "ticks", "")
    assert (shown["payload"], shown["priority"], shown["state"]) == (5, 9, "scheduled")
    listed = cli("schedule", "list", "--json").json["schedules"]
    assert [one["name"] for one in listed] == ["nightly", "often"]
    assert (listed[0]["cron"], listed[0]["timezone"], listed[0]["payload"]) == ("30 2 * * *", zone[1], {"n": 1})
    rows = [line.split() for line in cli("schedule", "list").out.splitlines()]
    assert rows[0] == ["NAME", "WHEN", "TIME_ZONE", "NEXT", "QUEUE", "TYPE", "STATE"]
    assert rows[1][:7] == ["nightly", "30", "2", "*", "*", "*", zone[1]]
    assert rows[2][:4] == ["often", "every", "10m", "-"]
    assert cli("schedule", "remove", "nightly").out == "removed nightly\n"
    assert cli("schedule", "remove", "often", "--json").json == {"name": "often", "status": "removed"}
    again = cli("schedule", "remove", "nightly")
    assert (again.code, again.out, again.err) == (1, "", "Error: no schedule 'nightly'\n")


@pytest.mark.parametrize(
    "said, reason",
    [
        ((), "give either --cron '30 2 * * *' or --every 10m"),
        (("--cron", "* * * * *", "--every", "10m"), "give either --cron '30 2 * * *' or --every 10m"),
        (("--every", "10m", "--timezone", "Europe/Berlin"), "--timezone needs --cron"),
        (("--cron", "61 * * * *"), "Bad minute"),
        (("--cron", "* * * * *", "--timezone", "Mars/Base"), "is not a known time zone"),
        (("--every", "often"), "every:"),
        (("--every", "0.1s"), "shorter than a second"),
    ],
)
def test_an_invalid_timing_is_wrong_usage(cli, said, reason):
    answer = cli("schedule", "add", "it", "report", *said)
    assert answer.code == 2
    assert reason in answer.err
