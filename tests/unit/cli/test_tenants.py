def test_weight_and_quota_are_set_and_shown(cli):
    assert "Nothing is set for acme" in cli("tenant", "show", "acme").err
    answer = cli("tenant", "set", "acme", "--weight", "2", "--max-waiting", "1", "--json")
    assert answer.json == {"tenant": "acme", "settings": [{"queue": None, "weight": 2.0, "max_waiting": 1}]}
    cli("tenant", "set", "acme", "--queue", "emails", "--max-waiting", "5")
    assert cli("tenant", "show", "acme", "--json").json["settings"][1] == {
        "queue": "emails", "weight": None, "max_waiting": 5,
    }  # fmt: skip
    assert [line.split() for line in cli("tenant", "show", "acme").out.splitlines()] == [
        ["QUEUE", "WEIGHT", "MAX_WAITING"], ["(all)", "2", "1"], ["emails", "-", "5"],
    ]  # fmt: skip


def test_over_the_quota_an_enqueue_fails(cli):
    cli("tenant", "set", "acme", "--max-waiting", "1")
    assert cli("enqueue", "x").code == 0
    answer = cli("enqueue", "x")
    assert answer.code == 1
    assert "the quota is 1" in answer.err


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
