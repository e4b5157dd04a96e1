"""Chunks of the log: events of one call, packed in columns."""

import pytest

from holdfast.stores.file import rows

NOW = 1_900_000_000_000


def logged(n, *, alike):
    """An event of a call whose events are all alike but for the job, or not alike at all."""
    other = 0 if alike else n
    data = {"priority": other % 10, "max_attempts": 4, "visible_at": NOW + other}
    return NOW + other, "enqueued", 1 + other % 2, f"job-{n}", f"type-{other % 3}", 0, 0, f"w{other}", 1 + other, data


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("count", [1, 9, 10, 11, 15, 16, 300])
def test_events_are_decoded_as_they_were_encoded(count, alike):
    events = [logged(n, alike=alike) for n in range(count)]
    assert rows.unpack_events(rows.pack_events(events)) == events
    names = {1: ("acme", "mail"), 2: ("globex", "mail")}
    chunk = rows.pack_events(events)
    check = rows.check_of(chunk)
    expected = [rows.to_event(f"{n}.{check}", event, *names[event[2]]) for n, event in enumerate(events, 7)]
    assert rows.to_columns(7, check, chunk, names.__getitem__).events() == expected


def test_common_fields_of_the_events_of_a_call_are_stored_once():
    alike, unlike = (rows.pack_events([logged(n, alike=alike) for n in range(100)]) for alike in (True, False))
    assert len(alike) < len(unlike) / 4
