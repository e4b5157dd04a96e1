"""Every planted bug is caught: all of them in the memory store, those of a store's own in that store.

In the stores on servers only some of each kind are tried here: there are many. `make mutants` tries all.
"""

from zlib import crc32

import pytest

from holdfast.testing.conformance import all_checks
from tests.mutants import Bug, Mutant, mutants, scratch, trial
from tests.mutants.ordered import ORDERED
from tests.mutants.planting import POSTGRES, REDIS, STORES

HERE = [(STORES[0], mutant) for mutant in mutants() if STORES[0] in mutant.stores]
HERE += [(store, mutant) for store in STORES[1:] for mutant in mutants() if mutant.stores == (store,)]
# One in this many is tried here. Its name decides which one, so that a new bug moves no other.
ONE_IN = {"redis": 4, "postgres": 8}
# Those that a check with a forced order catches are all tried: that check runs nowhere else.
FORCED = {check.name for check in ORDERED}
TRIED = [
    (store, mutant)
    for store, mutant in HERE
    if mutant.seen_by in FORCED or crc32(mutant.name.encode()) % ONE_IN.get(store, 1) == 0
]


@pytest.fixture(scope="module")
def url_of():
    with scratch() as url_of:
        yield url_of


# A bug is looked for by many checks, until one sees it: on a busy machine that takes minutes.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("store, mutant", [pytest.param(*case, id=f"{case[0]}-{case[1].name}") for case in TRIED])
def test_the_suite_catches_the_planted_bug(store: str, mutant: Mutant, url_of) -> None:
    result = trial(mutant, store, url_of(store))
    if result.caught is None:
        result = trial(mutant, store, url_of(store))  # Some show only when two meet: a second chance to be seen.
    assert result.held, f"{mutant.name}: {mutant.sentence} {result.verdict}"


def test_some_of_every_kind_are_tried_here() -> None:
    """Bugs of a kind are planted by one module."""

    def kinds(cases):
        return {(store, mutant.plant.__module__) for store, mutant in cases}

    assert kinds(TRIED) == kinds(HERE)
    assert {store for store, _ in TRIED} == set(STORES)


def test_every_planted_bug_names_the_check_that_catches_it() -> None:
    rules = {check.rule for check in all_checks()}
    names = {check.name: check.rule for check in [*all_checks(), *ORDERED]}
    for mutant in mutants():
        assert not mutant.seen_by or names[mutant.seen_by] in mutant.breaks, mutant.name
        assert mutant.sentence.endswith("."), mutant.name
        assert mutant.breaks, mutant.name
        assert set(mutant.breaks) <= rules, mutant.name
        assert set(mutant.stores) <= set(STORES), mutant.name


@pytest.mark.parametrize("store", STORES)
def test_every_planted_bug_fits_the_code(store: str) -> None:
    """Also those that are not tried here: else one that no longer fits would not be noticed."""
    for mutant in mutants():
        if store in mutant.stores:
            with mutant.planted(store):
                pass


def test_a_bug_is_gone_after_its_trial() -> None:
    """The bug is planted in the rules and wherever they were imported by name, and removed everywhere."""
    from holdfast.core import lifecycle, retry

    before = (retry.delay_ms, lifecycle.delay_ms)
    mutant = next(mutant for mutant in mutants() if mutant.name == "jitter_differs")
    with mutant.planted("memory"):
        assert retry.delay_ms is not before[0]
        assert lifecycle.delay_ms is retry.delay_ms
    assert (retry.delay_ms, lifecycle.delay_ms) == before


# Lua ----------------------------------------------------------------------------------------------------------


def planted(plant, stores=REDIS) -> Mutant:
    return Mutant("planted", "Something is wrong.", ("CLAIM-1",), stores, plant)


def test_a_bug_in_lua_is_in_every_script_that_has_the_part() -> None:
    from holdfast.stores.redis import scripts, shards

    before = scripts.SCRIPTS

    def plant(bug: Bug) -> None:
        bug.lua("leases", "now >= job.deadline", "now > job.deadline")

    with planted(plant).planted("redis") as bug:
        for runs, name in enumerate(("finish", "extend", "report"), start=1):
            assert "now > job.deadline" in shards.SCRIPTS[name].text
            assert bug.runs == runs
        for name in ("get", "list", "clock"):
            assert shards.SCRIPTS[name] == before[name]
        assert bug.runs == 3
    assert scripts.SCRIPTS is shards.SCRIPTS is before


def test_a_bug_in_lua_fails_if_its_code_is_gone() -> None:
    """If the text that it changes is gone, that is an error and not an unnoticed bug."""
    with (
        pytest.raises(LookupError, match="must follow the code"),
        planted(lambda bug: bug.lua("jobs", "no such line", "")).planted("redis"),
    ):
        pass


@pytest.mark.parametrize("new", ["local token = (", "local token = nil + ", "local token = call('NOCOMMAND') or "])
def test_a_script_that_raises_does_not_count_as_a_bug(url_of, new: str) -> None:
    """Every check would fail, which proves nothing."""
    mutant = planted(lambda bug: bug.lua("granting", "local token = ", new))
    result = trial(mutant, "redis", url_of("redis"))
    assert result.broken
    assert not result.held
    assert "BADLY PLANTED" in result.verdict


def test_a_bug_that_never_runs_does_not_count_as_a_bug(url_of) -> None:
    mutant = planted(lambda bug: bug.lua("erase", "UNLINK", "DEL"))
    result = trial(mutant, "redis", url_of("redis"), [check.name for check in all_checks()[1:]])
    assert (result.runs, result.held) == (0, False)
    assert "NEVER RAN" in result.verdict


# PostgreSQL ---------------------------------------------------------------------------------------------------


def test_a_bug_in_a_function_counts_where_it_is_called() -> None:
    """Even if it is called through another function, or its lines are formatted differently."""
    from holdfast.stores.postgres import connection as link
    from holdfast.stores.postgres import schema, sql

    before = (sql.statements, sql.migrations)

    def plant(bug: Bug) -> None:
        bug.function("log", "p_xid,   v_n,\n p_at,", "p_xid, v_n, 0,")

    with planted(plant, POSTGRES).planted("postgres") as bug:
        statements = link.statements("place")
        assert schema.migrations() is not before[1]()
        assert any("p_xid, v_n, 0," in text for _, _, text in schema.migrations())
        for runs, name in enumerate(("claim", "complete", "enqueue", "log"), start=1):
            assert statements[name] == before[0]("place")[name]
            assert bug.runs == runs
        for name in ("now", "lock_jobs", "find"):
            assert statements[name]
        assert bug.runs == 4
    assert (sql.statements, sql.migrations) == before == (link.statements, schema.migrations)


def test_a_bug_in_a_statement_is_there_for_every_schema() -> None:
    from holdfast.stores.postgres import connection as link

    def plant(bug: Bug) -> None:
        bug.statement("next_deadline", "FROM {s}.jobs", "FROM {s}.done")

    with planted(plant, POSTGRES).planted("postgres") as bug:
        assert 'FROM "a".done' in link.statements("a")["next_deadline"]
        assert 'FROM "b".done' in link.statements("b")["next_deadline"]
        assert bug.runs == 2


@pytest.mark.parametrize(
    "plant",
    [
        lambda bug: bug.statement("next_deadline", "no such text", ""),
        lambda bug: bug.function("claim", "no such text", ""),
        lambda bug: bug.function("no_such_function", "v_now", ""),
        lambda bug: bug.table("no such text", ""),
    ],
    ids=["statement", "function", "which function", "table"],
)
def test_a_bug_in_sql_fails_if_its_code_is_gone(plant) -> None:
    with (
        pytest.raises(LookupError, match="must follow the code"),
        planted(plant, POSTGRES).planted("postgres"),
    ):
        pass


@pytest.mark.parametrize("new", ["token = (", "token = 1 / 0 * u.token,", "token = no_such_column,"])
def test_sql_that_raises_does_not_count_as_a_bug(url_of, new: str) -> None:
    mutant = planted(lambda bug: bug.function("claim", "token = u.token,", new), POSTGRES)
    result = trial(mutant, "postgres", url_of("postgres"))
    assert result.broken
    assert not result.held
    assert "BADLY PLANTED" in result.verdict
