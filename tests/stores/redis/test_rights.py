"""Users of the server without all rights."""

import pytest

from holdfast import StoreUnavailable
from holdfast.core.job import ClaimRequest, Envelope, JobKey, NewJob, Queued
from holdfast.opening import open_store
from holdfast.testing.servers import HOST


def new(id):
    return NewJob(JobKey("acme", "q", id), Envelope("t", b"{}", request_id=f"r-{id}"))


@pytest.fixture
def user(valkey, prefix):
    """The URL of a user without a right to any channel, like every new user."""
    valkey.command("ACL", "SETUSER", prefix, "on", ">secret", f"~{prefix}:*", "+@all")
    yield f"redis://{prefix}:secret@{HOST}:{valkey.port}/0?prefix={prefix}"
    valkey.command("ACL", "DELUSER", prefix)


async def test_a_user_without_the_right_to_publish_is_refused_at_opening(user):
    with pytest.raises(StoreUnavailable, match="ACL SETUSER"):
        await open_store(user)


async def test_a_user_that_loses_the_right_to_publish_leaves_no_half_done_change(user, valkey, prefix):
    """The change is made and acknowledged. Other clients find it later."""
    valkey.command("ACL", "SETUSER", prefix, f"&{prefix}:*")
    store = await open_store(user)
    valkey.command("ACL", "SETUSER", prefix, "resetchannels")
    assert [type(answer) for answer in await store.enqueue([new("a"), new("b")])] == [Queued, Queued]
    claimed = await store.claim(ClaimRequest("acme", ("q",), 10, 30_000, "w"))
    assert [job.id for job in claimed.jobs] == ["a", "b"]
    await store.close()
