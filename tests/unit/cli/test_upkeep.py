import json


def test_a_store_without_a_schema_has_nothing_to_migrate(cli):
    answer = cli("migrate", "memory:")
    assert (answer.code, answer.out) == (0, "Nothing to migrate: memory: has no schema.\n")
    assert json.loads(cli("migrate", "memory:", "--json").out) == {"url": "memory:", "steps": []}


def test_a_missing_directory_is_not_created(cli, place):
    assert cli("migrate", f"file:{place}/elsewhere").code == 0
    assert not (place / "elsewhere").exists()


def test_an_unknown_store_is_wrong_usage(cli):
    assert cli("migrate", "nothing:").code == 2
    assert cli("migrate").code == 2


def test_commands_of_operators_do_not_create_a_missing_store():
    from holdfast.cli.session import existing

    assert existing("postgresql://localhost/shop") == "postgresql://localhost/shop?migrate=0"
    assert existing("postgres://localhost/shop?migrate=1") == "postgres://localhost/shop?migrate=1"
    assert existing("file:./data?x=1") == "file:./data?x=1&create=0"
    assert existing("redis://localhost") == "redis://localhost"
