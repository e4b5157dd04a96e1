from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from holdfast import InvalidOption, InvalidPayload, JobRecord, JobState, UnknownCodec
from holdfast.core.job import AttemptError, Envelope, IdempotencyKey, Job, Progress, Result

AT = 1_800_000_000_000
MOMENT = datetime.fromtimestamp(AT / 1000, UTC)


def a_record(blob: bytes | None = None, **changes) -> JobRecord:
    envelope = Envelope("t", b'{"a":1}', idempotency=IdempotencyKey("k"))
    fields = {"attempts": 2, "claimed_at": AT, "errors": [AttemptError("E", "m", "tb", 1, AT)], **changes}
    return JobRecord(Job("acme", "q", "1", 1, envelope, JobState.LEASED, AT, AT, **fields), blob)


def test_times_are_aware_datetimes():
    record = a_record(deadline=AT, finished_at=AT, expires_at=AT)
    times = [record.enqueued_at, record.visible_at, record.claimed_at, record.finished_at, record.expires_at]
    assert [*times, record.deadline, record.errors[0].at] == [MOMENT] * 7


def test_instants_that_have_not_come_are_none():
    record = a_record(claimed_at=None)
    assert [record.claimed_at, record.finished_at, record.expires_at, record.deadline] == [None] * 4
    assert [record.reason, record.worker_id, record.progress, record.result] == [None] * 4


def test_values_are_decoded_when_asked_for():
    record = a_record(result=Result(b"[1,2]"), progress=Progress(0.5, "half"))
    assert (record.payload, record.result, record.progress) == ({"a": 1}, [1, 2], Progress(0.5, "half"))
    with pytest.raises(InvalidPayload):
        _ = a_record(result=Result(b"{")).result


def test_a_result_in_a_blob_needs_the_blob():
    assert a_record(b"5", result=Result(b"", "json", "name")).result == 5
    with pytest.raises(InvalidOption, match="blobs=URL"):
        _ = a_record(result=Result(b"", "json", "name")).result


def test_a_record_is_one_plain_dict():
    fields = a_record(result=Result(b"3")).as_dict()
    assert (fields["id"], fields["state"], fields["payload"], fields["result"]) == ("1", JobState.LEASED, {"a": 1}, 3)
    assert msgspec.json.decode(msgspec.json.encode(fields))["enqueued_at"] == "2027-01-15T08:00:00Z"
    assert "result" not in a_record(result=Result(b"", "json", "name")).as_dict()
    assert "result" not in a_record().as_dict()


def test_values_that_cannot_be_decoded_are_left_out_of_the_dict():
    envelope = Envelope("t", b"?", "cbor")
    record = JobRecord(Job("acme", "q", "1", 1, envelope, JobState.COMPLETED, AT, AT, result=Result(b"?", "cbor")))
    assert {"payload", "result"}.isdisjoint(record.as_dict())
    with pytest.raises(UnknownCodec):
        _ = record.payload


def test_a_record_shows_no_payload():
    assert repr(a_record()) == "<JobRecord q/1 leased>"
