"""What people do to a directory that is in use, or open in another way than it was made."""

import shutil

import pytest

from holdfast import Queue, Worker
from holdfast.core.errors import InvalidOption, StoreMismatch, StoreUnavailable
from holdfast.core.job import ClaimRequest, Envelope, Finish, JobKey, NewJob, Result
from holdfast.maintenance.pruner import prune
from holdfast.opening import make_store, open_store


def new(id: str) -> NewJob:
    return NewJob(JobKey("acme", "q", id), Envelope("t", b"{}", result_ttl_ms=0))


async def test_no_job_is_acknowledged_into_a_removed_directory(tmp_path):
    store = await open_store(f"file:{tmp_path}/data")
    await store.enqueue([new("a")])
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(StoreMismatch, match="removed or replaced"):
        await store.enqueue([new("b")])
    await store.close()


async def test_a_replaced_database_is_neither_read_nor_written_through_old_handles(tmp_path):
    """A backup that is moved over the file: connections of before see the old one, later ones the new one."""
    store = await open_store(f"file:{tmp_path}/data")
    await store.enqueue([new("a")])
    await store.get([JobKey("acme", "q", "a")])  # A reader is connected.
    other = await open_store(f"file:{tmp_path}/other")
    await other.enqueue([new("b")])
    await other.close()
    (tmp_path / "other" / "holdfast.db").replace(tmp_path / "data" / "holdfast.db")
    for act in (store.get([JobKey("acme", "q", "a")]), store.stats("acme"), store.events(None, None, 10)):
        with pytest.raises(StoreMismatch, match="restart this process"):
            await act
    worker = Worker(Queue(store=store, tenant="acme"), handler=print)
    with pytest.raises(StoreMismatch, match="restart this process"):
        await worker.run(signals=False)
    await store.close()


@pytest.mark.parametrize("made, opened", [("frozen", "1"), ("0", "frozen")])
async def test_a_store_keeps_the_kind_of_clock_that_it_was_created_with(tmp_path, made, opened):
    await (await open_store(f"file:{tmp_path}/data?test_clock={made}")).close()
    with pytest.raises(StoreMismatch, match="test_clock=frozen"):
        await open_store(f"file:{tmp_path}/data?test_clock={opened}")


async def test_a_store_that_must_exist_is_not_created(tmp_path):
    with pytest.raises(StoreUnavailable, match="there is no store"):
        await open_store(f"file:{tmp_path}/data?create=0")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("url", ["file://data", "file://./data"])
def test_a_directory_is_not_parsed_as_a_host(url):
    """Two slashes would have made it a directory at the root."""
    with pytest.raises(InvalidOption, match=r"write 'file:(\./)?data'"):
        make_store(url)


def test_a_url_without_a_directory_is_refused():
    with pytest.raises(InvalidOption, match="names no directory"):
        make_store("file:")


@pytest.mark.parametrize("url", ["memory:blobs-{}", "file:{}/data"])
async def test_a_pruner_without_a_blob_store_leaves_blob_names_to_one_with_a_blob_store(url, tmp_path):
    store = await open_store(url.format(tmp_path))
    await store.enqueue([new("a")])
    (job,) = (await store.claim(ClaimRequest("acme", ("q",), 1, 30_000, "w"))).jobs
    await store.finish([Finish(job.key, job.token, "complete", Result(b"", "json", "a-blob"))])
    await prune(store, None)
    assert (await store.get([job.key])) == [None]
    assert (await store.prune(10)).blobs == ["a-blob"]
    assert (await store.prune(10)).blobs == []
    await store.close()
