from holdfast.core.budgets import FIELDS


def test_weight_and_quota_are_set_and_shown(cli):
    assert "No weight or quota is set for acme" in cli("tenant", "show", "acme").err
    answer = cli("tenant", "set", "acme", "--weight", "2", "--max-waiting", "1", "--json")
    assert answer.json["tenant"] == "acme"
    assert answer.json["settings"] == [{"queue": None, "weight": 2.0, "max_waiting": 1, "budgets": None}]
    cli("tenant", "set", "acme", "--queue", "emails", "--max-waiting", "5")
    assert cli("tenant", "show", "acme", "--json").json["settings"][1] == {
        "queue": "emails", "weight": None, "max_waiting": 5, "budgets": None,
    }  # fmt: skip
    assert [line.split() for line in cli("tenant", "show", "acme").out.splitlines()][:3] == [
        ["QUEUE", "WEIGHT", "MAX_WAITING"], ["(all)", "2", "1"], ["emails", "-", "5"],
    ]  # fmt: skip


def test_every_budget_is_set_and_shown_with_what_is_used(cli):
    """[TENANT-5]"""
    flags = [part for name in FIELDS for part in (f"--{name.replace('_', '-')}", "3")]
    assert cli("tenant", "set", "acme", *flags).code == 0
    assert cli("tenant", "set", "acme", "--max-bytes", "0").code == 0
    assert cli("enqueue", "x").code == 0
    lines = [line.split() for line in cli("tenant", "show", "acme").out.splitlines()]
    assert ["max_jobs", "1", "3", "set"] in lines
    assert [*lines[-11][:1], *lines[-11][2:]] == ["max_bytes", "no", "limit", "set"]
    assert {line[0] for line in lines if line} >= set(FIELDS)
    found = cli("tenant", "show", "beta", "--json").json["usage"]
    assert {one["budget"]: one["limit"] for one in found["budgets"]}["max_jobs"] == 10_000_000
    assert not any(one["is_set"] for one in found["budgets"])


def test_a_command_that_enqueues_is_held_to_a_budget_by_its_first_job(cli):
    """[TENANT-5] Its process ends before the counts would be read in the background."""
    cli("tenant", "set", "acme", "--max-jobs", "2")
    answers = [cli("enqueue", "x") for _ in range(3)]
    assert [answer.code for answer in answers] == [0, 0, 1]
    assert "max_jobs" in answers[-1].err


def test_an_enqueue_over_the_quota_fails(cli):
    cli("tenant", "set", "acme", "--max-waiting", "1")
    assert cli("enqueue", "x").code == 0
    answer = cli("enqueue", "x")
    assert answer.code == 1
    assert "max_waiting is 1" in answer.err


def test_bad_settings_are_wrong_usage(cli):
    assert "nothing to set" in cli("tenant", "set", "acme").err
    assert cli("tenant", "set", "acme").code == 2
    assert cli("tenant", "set", "acme", "--weight", "0").code == 2
    assert cli("tenant", "set", "acme", "--max-waiting", "-1").code == 2
    assert cli("tenant", "set", "no/slash", "--weight", "1").code == 2


def test_the_tenants_of_a_store(cli):
    assert "No tenants yet" in cli("tenants").err
    cli("enqueue", "x", "--tenant", "beta")
    cli("enqueue", "x")
    assert cli("tenants", "--json").json == {"tenants": ["acme", "beta"]}
    assert cli("tenants").out.split() == ["TENANT", "acme", "beta"]
