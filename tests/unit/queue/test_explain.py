"""`Queue.explain` in memory: what the conformance suite cannot see from outside a store."""

import pytest

from holdfast import Queue
from holdfast.blocking import Queue as BlockingQueue
from holdfast.core.budgets import Budgets
from holdfast.core.explain import CODES, OTHERS_LIMIT, Cause, Explanation, Facts, Standing, explain, without_others
from holdfast.core.job import AttemptError, Envelope, Job, JobKey, JobState
from holdfast.core.policy import KnownTypes
from holdfast.store import WorkerInfo

KEY = JobKey("acme", "api", "j")


def job(state=JobState.READY, **fields):
    return Job("acme", "api", "j", 1, Envelope("send", b"{}"), state, 1000, 1000, **fields)


async def test_only_what_was_looked_at_is_said_of_workers():
    """With more workers than are looked at, none of the others is said to be missing."""
    async with Queue("memory:many-workers", tenant="acme") as queue:
        for n in range(1001):
            info = WorkerInfo(f"w{n:04}", "acme", "host", 1, ("api",) if n == 1000 else ("mail",), 1, 0)
            await queue.store.beat(info, 60_000)
        await queue.enqueue({}, id="j", queue="api")
        cause = (await queue.explain("j", queue="api")).has("no_worker")
        assert (cause.count, cause.more) == (1000, True)
        assert cause.text == "None of the first 1,000 living workers serves the queue 'api'."
        assert (await queue.explain("none", queue="api")).causes[0].code == "not_found"


async def test_a_budget_that_is_reached_is_a_note():
    async with Queue("memory:budget", tenant="acme") as queue:
        await queue.enqueue({}, id="j")
        await queue.set_tenant(budgets=Budgets(max_jobs=1))
        cause = (await queue.explain("j")).has("quota")
        assert (cause.reason, cause.count, cause.limit) == ("max_jobs", 1, 1)


def test_the_blocking_queue_explains_too():
    with BlockingQueue("memory:blocking-explain", tenant="acme") as queue:
        queue.enqueue({}, id="j")
        assert queue.explain("j").state is JobState.READY


def test_print_shows_a_few_plain_lines():
    standing = Standing(job(), 2000, paused=True, ahead=1001, others=1)
    assert str(explain(Facts(KEY, standing, KnownTypes({}, {"api": None})))).splitlines() == [
        "api/j: ready since 1970-01-01 00:00:01 UTC",
        "- The queue 'api' is paused: it hands out no jobs until it is resumed.",
        "- More than 1,000 jobs of this tenant are ahead in this queue.",
        "- 1 other tenant has work in a queue of this name: workers take turns.",
    ]


def test_an_error_in_a_sentence_is_short_and_moves_no_cursor():
    error = AttemptError("Boom", "\x1b[2J\n" + "x" * 10_000, "", 1, 1500)
    retrying = job(JobState.RETRYING, errors=[error], attempts=1)
    found = explain(Facts(KEY, Standing(retrying, 500, paused=False)))
    assert str(found).isprintable() is False  # Its lines end.
    assert all(line.isprintable() and len(line) < 400 for line in str(found).splitlines())
    assert found.causes[0].error == f"Boom: {error.message}"


def test_a_tenant_may_know_that_others_wait_and_not_how_many():
    standing = Standing(job(), 2000, paused=False, others=OTHERS_LIMIT + 1)
    known = explain(Facts(KEY, standing))
    assert known.has("other_tenants").text.startswith("More than 20 other tenants have work")
    hidden = without_others(known)
    assert hidden.has("other_tenants") == Cause(
        code="other_tenants", text="Other tenants have work in a queue of this name: workers take turns."
    )
    assert [cause.code for cause in hidden.causes] == [cause.code for cause in known.causes]


@pytest.mark.parametrize("code", CODES)
def test_every_code_of_a_cause_is_on_the_how_to_page(code):
    from pathlib import Path

    page = Path(__file__).parents[3] / "docs" / "howto" / "why-is-my-job-waiting.md"
    assert f"| `{code}` |" in page.read_text(encoding="utf-8")
    assert isinstance(explain(Facts(KEY, None)), Explanation)
