"""Every planted bug is caught: all of them in the memory store, those of the file store's own in the file store."""

import pytest

from holdfast.testing.mutants import Mutant, mutants, scratch, trial
from holdfast.testing.mutants.planting import STORES

HERE = [("memory", mutant) for mutant in mutants() if "memory" in mutant.stores]
HERE += [("file", mutant) for mutant in mutants() if mutant.stores == ("file",)]


@pytest.mark.parametrize("store, mutant", [pytest.param(*case, id=f"{case[0]}-{case[1].name}") for case in HERE])
def test_the_suite_catches(store: str, mutant: Mutant) -> None:
    with scratch() as url_of:
        result = trial(mutant, store, url_of(store))
    assert result.held, f"{mutant.name}: {mutant.sentence} {result.verdict}"


def test_every_mutant_says_what_it_breaks_and_where() -> None:
    for mutant in mutants():
        assert mutant.sentence.endswith("."), mutant.name
        assert mutant.breaks, mutant.name
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
