from __future__ import annotations

from bench import disk, starts
from bench.measure import COMMIT, HELP, IMPORT, MOVED, OURS, SETTLED, Figures
from holdfast import Queue, job


@job
async def letter(text: str) -> None:
    """Never run."""


async def test_a_folder_says_what_its_jobs_take_and_can_be_emptied(tmp_path):
    folder = disk.Folder(tmp_path)
    first = folder.url
    async with Queue(first, tenant="bench") as queue:
        before = folder.memory()
        await queue.enqueue_many(letter.message("x" * 100) for _ in range(1_000))
        # Whether it is in the log or in the database.
        assert 100 < (folder.memory() - before) / 1_000 < 2_000
    folder.empty()
    assert folder.url != first


def test_sqlite_alone_is_measured(tmp_path):
    figures = Figures()
    disk.raw(figures, tmp_path / "raw.db")
    assert len(figures.values(COMMIT, disk.NAME)) == disk.COMMITS
    assert all(figures.median(measure, disk.NAME) > 0 for measure in (MOVED, SETTLED))


def test_a_bench_program_starts():
    figures = Figures()
    starts.starts(figures, times=1)
    assert figures.median(IMPORT, OURS) > 0
    assert figures.median(HELP, OURS) > 0
