"""Events: what they carry of a job and of an error. [EVENT-1]"""

import pytest

from holdfast.core import events
from holdfast.core.events import ERROR_TEXT_LIMIT, LARGE, EventColumns, Gathered, Numbered, fingerprint
from holdfast.core.job import AttemptError, JobState
from tests.unit.core.making import KEY, NOW, job_in


def test_an_event_describes_the_job():
    event = events.append(job_in(JobState.LEASED), "extended", NOW, {"deadline": 9})
    assert (event.tenant, event.queue, event.job_id, event.type) == (*KEY, "mail")
    assert (event.kind, event.at, event.attempt, event.token) == ("extended", NOW, 1, 7)
    assert (event.worker_id, event.data, event.offset) == ("worker-1", {"deadline": 9}, "")
    assert event.number == 3


def test_an_error_in_an_event_is_short_and_has_no_traceback():
    data = events.error_data(AttemptError("Boom", "é" * 5000, "trace"))
    assert set(data) == {"type", "message", "fingerprint"}
    assert data["message"] == "é" * ERROR_TEXT_LIMIT


@pytest.mark.parametrize(
    "one, other",
    [
        ("host 17 did not answer", "host 4711 did not answer"),
        ("no key 'a'", "no key 'bcd'"),
        ('no key "a"', 'no key "bcd"'),
        ("object at 0x7f00ab", "object at 0xFF"),
        ("took 1.5 s", "took 20.25 s"),
    ],
)
def test_errors_that_differ_in_values_have_one_fingerprint(one, other):
    assert fingerprint(AttemptError("Boom", one)) == fingerprint(AttemptError("Boom", other, "another trace", 3, 9))


def test_other_errors_have_other_fingerprints():
    errors = [AttemptError("Boom", "a"), AttemptError("Boom", "b"), AttemptError("Bang", "a"), AttemptError("Boom", "")]
    assert len({fingerprint(error) for error in errors}) == len(errors)
    assert fingerprint(AttemptError("Boom", "\ud800"))  # What a handler raised may not even be valid Unicode.


def columns(count, first=1, offset=None):
    """Claims of one call: they differ in the job, the token and the offset."""
    ids, tokens = [f"job-{n}" for n in range(first, first + count)], list(range(first, first + count))
    offset = offset or Numbered("0.", first, ".7")
    return EventColumns(
        count, offset, ["claimed"], ["acme"], ["mail"], ids, ["send"], [NOW], [1], tokens, ["w"], [{"deadline": 9}], [2]
    )


def test_one_value_can_mean_all_events():
    first, second = columns(2).events()
    assert (first.job_id, first.token, first.offset) == ("job-1", 1, "0.1.7")
    assert (second.job_id, second.token, second.offset) == ("job-2", 2, "0.2.7")
    assert (second.kind, second.tenant, second.queue, second.at, second.worker_id) == (
        "claimed", "acme", "mail", NOW, "w"
    )  # fmt: skip
    assert (first.number, second.number) == (2, 2)
    first.data["deadline"] = 10
    assert second.data == {"deadline": 9}


@pytest.mark.parametrize("offset", [None, [f"0.{n}.7" for n in range(1, 6)]])
def test_a_part_of_the_events_decodes_like_all_of_them(offset):
    whole = columns(5, offset=offset)
    assert whole.part(1, 3).events() == whole.events()[1:3]
    assert whole.part(3, 99).events() == whole.events()[3:]
    assert whole.part(4, 2).events() == []
    assert whole.chosen([True, False, False, True, False]).events() == [whole.events()[0], whole.events()[3]]
    assert whole.spread().events() == whole.events()


def test_small_parts_are_joined_and_large_ones_are_kept():
    sizes = (1, 3, LARGE, 0, 2, LARGE - 1)
    gathered, whole, first = Gathered(), [], 1
    for size in sizes:
        part = columns(size, first)
        gathered.add(part)
        whole += part.events()
        first += size
    assert [part.count for part in gathered.parts] == [4, LARGE, LARGE + 1]
    assert gathered.count == len(whole) == sum(sizes)
    assert [event for part in gathered.parts for event in part.events()] == whole
