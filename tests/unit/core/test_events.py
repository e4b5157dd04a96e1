"""Events: what they carry of a job and of an error. [EVENT-1]"""

import pytest

from holdfast.core import events
from holdfast.core.events import ERROR_TEXT_LIMIT, fingerprint
from holdfast.core.job import AttemptError, JobState
from tests.unit.core.making import KEY, NOW, job_in


def test_an_event_tells_the_job_as_it_is():
    event = events.of(job_in(JobState.LEASED), "extended", NOW, {"deadline": 9})
    assert (event.tenant, event.queue, event.job_id, event.type) == (*KEY, "mail")
    assert (event.kind, event.at, event.attempt, event.token) == ("extended", NOW, 1, 7)
    assert (event.worker_id, event.data, event.offset) == ("worker-1", {"deadline": 9}, "")


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
