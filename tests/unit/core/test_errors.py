"""The tree of errors: facts as fields, stable codes, and safe to send between processes."""

import pickle
from collections import namedtuple
from datetime import timedelta

import pytest

from holdfast.core import errors, names
from holdfast.core.errors import HoldfastError

Answer = namedtuple("Answer", ["error"])  # noqa: PYI024 - all that the error looks at

SAMPLES = [
    errors.InvalidName("tenant", "a b", "no spaces"),
    errors.InvalidOption("priority", "too high"),
    errors.InvalidPayload("not JSON", "a.b[0]"),
    errors.PayloadTooLarge(300_000, 262_144),
    errors.QuotaExceeded("emails", 10, 10),
    errors.QuotaExceeded(None, 10, 10),
    errors.PartlyRefused([Answer(None), Answer("too large")]),
    errors.JobNotFound("emails", "job-1"),
    errors.NotReplayable("emails", "job-1", "it is ready, not failed"),
    errors.LeaseLost("emails", "job-1"),
    errors.LeaseExpired("emails", "job-1"),
    errors.JobCanceled("emails", "job-1"),
    errors.JobFailed("emails", "job-1", "permanent", "ValueError", "bad"),
    errors.WaitTimeout("emails", "job-1", 1.5),
    errors.ResultExpired("emails", "job-1"),
    errors.ResultTooLarge(300_000, 262_144),
    errors.EventsTrimmed("3", "9"),
    errors.UnknownJobType("mail"),
    errors.UnknownJobType(""),
    errors.UnknownCodec("avro"),
    errors.Unsupported("joining a transaction", "memory"),
    errors.StoreUnavailable("disk full"),
    errors.StoreBusy("locked"),
    errors.AccessRefused("the token has expired", "token_expired"),
    errors.StoreMismatch("other shards"),
    errors.Permanent("never again"),
    errors.RetryLater("not yet", delay=timedelta(seconds=5)),
]
ABSTRACT = {HoldfastError, errors.LeaseError, errors.StoreError}


def all_errors(root=HoldfastError):
    return {root}.union(*(all_errors(child) for child in root.__subclasses__() if child.__module__ == errors.__name__))


def test_every_error_has_a_sample_and_is_in_the_drawing():
    assert {type(sample) for sample in SAMPLES} == all_errors() - ABSTRACT
    missing = {error.__name__ for error in all_errors() if error.__name__ not in errors.__doc__}
    assert missing == set()


def test_codes_are_stable_unique_names():
    codes = [error.code for error in all_errors()]
    assert len(set(codes)) == len(codes)
    assert all(code.replace("_", "").isalpha() and code == code.lower() for code in codes)


@pytest.mark.parametrize("error", SAMPLES, ids=repr)
def test_an_error_survives_pickling_with_its_facts(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.args, str(again), vars(again)) == (error.args, str(error), vars(error))
    assert str(error)


def test_the_facts_are_arguments_too():
    assert errors.PayloadTooLarge(300_000, 262_144).args == (300_000, 262_144)
    assert errors.JobFailed("q", "job-1", "timeout").args == ("q", "job-1", "timeout", "", "")
    assert errors.LeaseLost("q", "job-1").args == ("q", "job-1")


def test_a_missing_schedule_or_flow_is_named_as_such():
    assert str(errors.JobNotFound(names.SCHEDULES, "nightly")) == "no schedule 'nightly'"
    assert str(errors.JobNotFound(names.FLOWS, "f1")) == "no flow 'f1'"


def test_errors_can_be_caught_as_pythons_own_kinds():
    assert issubclass(errors.InvalidName, ValueError)
    assert issubclass(errors.InvalidOption, ValueError)
    assert issubclass(errors.PayloadTooLarge, errors.InvalidPayload)
    assert issubclass(errors.JobNotFound, LookupError)
    assert issubclass(errors.WaitTimeout, TimeoutError)
    for refusal in (errors.LeaseLost, errors.LeaseExpired, errors.JobCanceled):
        assert issubclass(refusal, errors.LeaseError)


def test_a_message_says_what_to_do_next():
    assert "300.0 KiB" in str(errors.PayloadTooLarge(300 * 1024, 256 * 1024))
    assert "blob" in str(errors.PayloadTooLarge(300 * 1024, 256 * 1024))
    assert "resume with after='9'" in str(errors.EventsTrimmed("3", "9"))
    assert "Worker(handler=" in str(errors.UnknownJobType(""))
    assert len(str(errors.InvalidName("id", "x" * 10_000, "too long"))) < 200


def test_retry_later_takes_seconds_or_a_timedelta():
    assert errors.RetryLater(delay=1.5).delay == timedelta(seconds=1.5)
    assert errors.RetryLater("why", delay=timedelta(minutes=1)).delay == timedelta(minutes=1)
    assert errors.RetryLater().delay == timedelta(0)
