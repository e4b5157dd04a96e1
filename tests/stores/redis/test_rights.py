"""Users of the server who may not do everything."""

import pytest

from holdfast import StoreUnavailable
from holdfast.core.job import ClaimRequest, Envelope, JobKey, NewJob, Queued
from holdfast.opening import open_store
from holdfast.testing.servers import HOST


def new(id):
    return NewJob(JobKey("acme", "q", id), Envelope("t", b"{}", request_id=f"r-{id}"))


@pytest.fixture
def user(valkey, prefix):
    """The URL of a user who has no right to any channel, as new users do."""
    valkey.command("ACL", "SETUSER", prefix, "on", ">secret", f"~{prefix}:*", "+@all")
    yield f"redis://{prefix}:secret@{HOST}:{valkey.port}/0?prefix={prefix}"
    valkey.command("ACL", "DELUSER", prefix)


async def test_a_user_who_may_not_publish_is_told_so_when_he_comes(user):
    with pytest.raises(StoreUnavailable, match="ACL SETUSER"):
        await open_store(user)


async def test_one_who_loses_that_right_does_nothing_by_halves(user, valkey, prefix):
    """Others hear of it later; what he does is done, and he is told that it is."""
    valkey.command("ACL", "SETUSER", prefix, f"&{prefix}:*")
    store = await open_store(user)
    valkey.command("ACL", "SETUSER", prefix, "resetchannels")
    assert [type(answer) for answer in await store.enqueue([new("a"), new("b")])] == [Queued, Queued]
    claimed = await store.claim(ClaimRequest("acme", ("q",), 10, 30_000, "w"))
    assert [job.id for job in claimed.jobs] == ["a", "b"]
    await store.close()
