"""Every planted bug is caught: all of them in the memory store, those of a store's own in that store."""

import pytest

from holdfast.testing.conformance import all_checks
from holdfast.testing.mutants import Bug, Mutant, mutants, scratch, trial
from holdfast.testing.mutants.planting import REDIS, STORES

HERE = [("memory", mutant) for mutant in mutants() if "memory" in mutant.stores]
HERE += [(store, mutant) for store in STORES[1:] for mutant in mutants() if mutant.stores == (store,)]


@pytest.fixture(scope="module")
def url_of():
    with scratch() as url_of:
        yield url_of


@pytest.mark.parametrize("store, mutant", [pytest.param(*case, id=f"{case[0]}-{case[1].name}") for case in HERE])
def test_the_suite_catches(store: str, mutant: Mutant, url_of) -> None:
    result = trial(mutant, store, url_of(store))
    assert result.held, f"{mutant.name}: {mutant.sentence} {result.verdict}"


def test_every_mutant_says_what_it_breaks_and_where() -> None:
    rules = {check.rule for check in all_checks()}
    for mutant in mutants():
        assert mutant.sentence.endswith("."), mutant.name
        assert mutant.breaks, mutant.name
        assert set(mutant.breaks) <= rules, mutant.name
        assert set(mutant.stores) <= set(STORES), mutant.name


def test_a_bug_is_gone_after_its_trial() -> None:
    """Planted in the rules and wherever they were imported by name, and undone everywhere."""
    from holdfast.core import lifecycle, retry

    before = (retry.delay_ms, lifecycle.delay_ms)
    mutant = next(mutant for mutant in mutants() if mutant.name == "jitter_differs")
    with mutant.planted("memory"):
        assert retry.delay_ms is not before[0]
        assert lifecycle.delay_ms is retry.delay_ms
    assert (retry.delay_ms, lifecycle.delay_ms) == before


# Lua ----------------------------------------------------------------------------------------------------------


def planted(plant) -> Mutant:
    return Mutant("planted", "Something is wrong.", ("CLAIM-1",), REDIS, plant)


def test_a_bug_in_lua_is_in_every_script_that_has_the_part() -> None:
    from holdfast.stores.redis import scripts, shards

    before = scripts.SCRIPTS

    def plant(bug: Bug) -> None:
        bug.lua("jobs", "now >= job.deadline", "now > job.deadline")

    with planted(plant).planted("redis") as bug:
        for runs, name in enumerate(("finish", "extend", "report"), start=1):
            assert "now > job.deadline" in shards.SCRIPTS[name].text
            assert bug.runs == runs
        for name in ("get", "list", "clock"):
            assert shards.SCRIPTS[name] == before[name]
        assert bug.runs == 3
    assert scripts.SCRIPTS is shards.SCRIPTS is before


def test_a_bug_in_lua_follows_the_code() -> None:
    """Where the text that it changes is gone, that is an error and not a bug that nobody can notice."""
    with (
        pytest.raises(LookupError, match="must follow the code"),
        planted(lambda bug: bug.lua("jobs", "no such line", "")).planted("redis"),
    ):
        pass


@pytest.mark.parametrize("new", ["local token = (", "local token = nil + ", "local token = call('NOCOMMAND') or "])
def test_a_script_that_breaks_down_is_no_bug(url_of, new: str) -> None:
    """Every check would notice: that proves nothing."""
    mutant = planted(lambda bug: bug.lua("claim", "local token = ", new))
    result = trial(mutant, "redis", url_of("redis"))
    assert result.broken
    assert not result.held
    assert "BADLY PLANTED" in result.verdict


def test_a_bug_that_nobody_runs_into_is_no_bug(url_of) -> None:
    mutant = planted(lambda bug: bug.lua("erase", "UNLINK", "DEL"))
    result = trial(mutant, "redis", url_of("redis"), [check.name for check in all_checks()[1:]])
    assert (result.runs, result.held) == (0, False)
    assert "NEVER RAN" in result.verdict
