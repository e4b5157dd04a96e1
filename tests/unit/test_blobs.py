from __future__ import annotations

import os
import stat
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast import BlobRef, InvalidOption, InvalidPayload, StoreUnavailable, current_job
from holdfast.blobs import Blobs, check_owner, result_name
from holdfast.core.job import Envelope, Job, JobKey, JobState
from holdfast.jobs.context import JobContext, active
from tests.unit.running import asynchronous

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)


@pytest.fixture(params=["file", "path", "memory"])
def blobs(request, tmp_path):
    urls = {"file": f"file:{tmp_path}/a%20b", "path": tmp_path / "c", "memory": f"memory://{tmp_path}"}
    return Blobs.open(urls[request.param])


@asynchronous
async def test_a_blob_is_returned_unchanged(blobs):
    for name, data in {"a/b": b"\x00\xff" * 1000, "a/empty": b"", "a/%2E%2E/c": b"dots"}.items():
        await blobs.put(name, data)
        assert await blobs.get(name) == data
    await blobs.put("a/b", b"again")
    assert await blobs.get("a/b") == b"again"


@asynchronous
async def test_a_missing_blob_is_none_and_deleting_it_is_no_error(blobs):
    await blobs.put("x/1", b"1")
    await blobs.put("x/2", b"2")
    await blobs.delete(["x/0", "x/1", "x/1", "x/2"])
    assert [await blobs.get(name) for name in ("x/0", "x/1", "x/2")] == [None, None, None]


@asynchronous
async def test_a_reference_is_parsed_and_checked(blobs):
    ref = await blobs.add("acme", b"payload")
    assert ref == await blobs.add("acme", b"payload")
    assert (await blobs.read(ref), ref.size) == (b"payload", 7)
    await blobs.put(ref.name, b"paylaod")
    with pytest.raises(InvalidPayload, match="not what its reference says"):
        await blobs.read(ref)
    await blobs.delete([ref.name])
    with pytest.raises(InvalidPayload, match="not in the blob store"):
        await blobs.read(ref)


def test_memory_is_one_store_per_url():
    assert Blobs.open("memory://one")._store is Blobs.open("memory://one")._store
    assert Blobs.open("memory://one")._store is not Blobs.open("memory://two")._store


@pytest.mark.parametrize("url", ["ftp://host/x", "s3:", "nonsense://"])
def test_a_url_of_no_blob_store_is_refused(url):
    with pytest.raises(InvalidOption) as caught:
        Blobs.open(url)
    assert caught.value.option == "blobs"


def test_without_obstore_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(InvalidOption, match=r"pip install 'holdfast\[blobs\]'"):
        Blobs.open("memory://")


@asynchronous
async def test_a_blob_store_that_fails_is_unavailable(tmp_path):
    blobs = Blobs.open(tmp_path / "store")
    (tmp_path / "store" / "a").write_text("a file where a directory should be")
    with pytest.raises(StoreUnavailable, match="the blob store failed"):
        await blobs.put("a/b", b"x")


@given(st.lists(st.tuples(names, names, names, st.integers(1, 2**53)), min_size=2, max_size=2, unique=True))
def test_different_leases_never_share_a_name(pair):
    (t1, q1, i1, n1), (t2, q2, i2, n2) = pair
    assert result_name(JobKey(t1, q1, i1), n1) != result_name(JobKey(t2, q2, i2), n2)


@given(names, names, names)
@example("acme", "q", "..")
@example("acme", "q", ".")
@example("acme", "a/../b", "../x")
def test_a_name_stays_inside_its_tenant_and_fits_a_file_system(tenant, queue, id_):
    parts = result_name(JobKey(tenant, queue, id_), 1).split("/")
    assert len(parts) == 5
    assert all(part not in ("", ".", "..") and len(part) <= 255 and part.isascii() for part in parts)


def test_long_names_are_hashed_apart():
    key = JobKey("acme", "q" * 128, "ü" * 100)
    assert result_name(key, 1) != result_name(key._replace(id="ü" * 99 + "ö"), 1)
    assert max(map(len, result_name(key, 1).split("/"))) <= 200


# In a handler --------------------------------------------------------------------------------------------------


def a_context(tenant: str, blobs: Blobs | None) -> JobContext:
    job = Job(tenant, "q", "1", 1, Envelope("t", b"{}"), JobState.LEASED, 0, 0)
    return JobContext(job, blobs=blobs)


@asynchronous
async def test_a_handler_reads_only_the_blobs_of_its_tenant():
    blobs = Blobs.open("memory://handlers")
    ref = await blobs.add("acme", b"mine")
    foreign = await blobs.add("other", b"mine")
    with active(a_context("acme", blobs)):
        assert await current_job().read_blob(ref) == b"mine"
        with pytest.raises(InvalidPayload, match="not in the blob store"):
            await current_job().read_blob(foreign)


@pytest.mark.parametrize("name", ["other/payloads/x", "acme/results/q/1/5", "acme/../other/payloads/x", ""])
def test_a_forged_reference_is_refused(name):
    with pytest.raises(InvalidPayload):
        check_owner(BlobRef(name, 1, "x"), "acme")


def test_a_handler_in_a_thread_reads_a_blob_without_await():
    blobs = Blobs.open("memory://threads")

    @asynchronous
    async def put() -> None:
        await blobs.put(ref.name, b"data")

    ref = BlobRef("acme/payloads/3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7", 4, "")
    ref = BlobRef(ref.name, 4, ref.name.rpartition("/")[2])
    put()
    assert a_context("acme", blobs).read_blob_sync(ref) == b"data"


def test_without_a_blob_store_the_error_of_a_handler_says_what_is_missing():
    ref = BlobRef("acme/payloads/x", 1, "x")
    with pytest.raises(InvalidOption, match="blobs=URL"):
        a_context("acme", None).read_blob_sync(ref)

    @asynchronous
    async def read() -> None:
        with pytest.raises(InvalidOption, match="blobs=URL"):
            await a_context("acme", None).read_blob(ref)

    read()


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("query, directory, file", [("", 0o700, 0o600), ("?group=1", 0o770, 0o660)])
@asynchronous
async def test_a_directory_of_blobs_is_private_whatever_the_umask(tmp_path, umask, query, directory, file):
    before = os.umask(umask)
    try:
        blobs = Blobs.open(f"file:{tmp_path}/blobs{query}")
        await blobs.put("acme/results/q/a%2Fb/1", b"secret")
    finally:
        os.umask(before)
    made = [tmp_path / "blobs", *(tmp_path / "blobs").rglob("*")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_dir()} == {directory}
    assert {stat.S_IMODE(path.stat().st_mode) for path in made if path.is_file()} == {file}
    assert [finding.level for finding in blobs.doctor()] == ["ok"]
    made[0].chmod(0o755)
    (finding,) = blobs.doctor()
    assert (finding.level, finding.subject) == ("warn", "blobs")
    with pytest.raises(InvalidOption, match="the option group=1 and no other"):
        Blobs.open(f"file:{tmp_path}/blobs?other=1")
