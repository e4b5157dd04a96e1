"""Hints between processes: a FIFO for each that waits, one byte after a commit, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from holdfast.core.job import Cancel
from holdfast.store import Hint, Signal, TenantSettings
from holdfast.stores.file import notifications, subscribers
from tests.eventually import eventually
from tests.stores.file.support import (
    Child,
    complete,
    key,
    names_in,
    new,
    open_at,
    open_files,
    opened,
    threads,
    wish,
)

SOON_S = 60


class Received:
    """A listener of this process, and the signals that it received."""

    def __init__(self):
        self.signals = []
        self._notified = asyncio.Event()

    def __call__(self, signal):
        self.signals.append(signal)
        self._notified.set()

    async def wait(self):
        async with asyncio.timeout(SOON_S):
            await self._notified.wait()
        self._notified.clear()


# Hearing -------------------------------------------------------------------------------------------------------------


async def test_a_waiting_process_is_notified_of_another_processs_commit(directory):
    async with opened(directory) as store:
        received = Received()
        store.listen(received, {Hint.READY})
        with Child("enqueue", directory=directory, ids=["1"]) as child:
            assert await child.heard() == "open"
            assert received.signals == []
            child.go_on()
            await received.wait()  # It did not poll the store meanwhile.
            assert await child.heard() == ["1"]
        assert {signal.hint for signal in received.signals} == {Hint.READY}
        assert len((await store.claim(wish())).jobs) == 1


async def test_each_process_gets_only_the_hints_that_it_listens_for(directory):
    async with opened(directory) as store:
        with Child("listen", directory=directory, hints=["done", "canceled"]) as child:
            assert await child.heard() == "listening"
            await store.enqueue([new("1"), new("2")])
            held = (await store.claim(wish())).jobs
            await store.finish([complete(held[0])])
            assert await child.heard() == "done"
            await store.cancel([Cancel(key("2"))])
            assert {await child.heard(), await child.heard()} == {"done", "canceled"}


async def test_several_processes_are_notified_of_one_commit(directory):
    async with opened(directory) as store:
        children = [Child("listen", directory=directory, hints=["ready"]) for _ in range(3)]
        for child in children:
            assert await child.heard() == "listening"
        await store.enqueue([new("1")])
        for child in children:
            assert await child.heard() == "ready"
            with child:
                child.go_on()
                child.ends()


async def test_a_second_handle_in_the_same_process_is_notified_too(directory):
    async with opened(directory) as one, opened(directory) as other:
        received = Received()
        other.listen(received, {Hint.READY})
        await one.enqueue([new("1")])
        await received.wait()


async def test_a_listener_that_starts_while_another_waits_takes_nothing_from_it(directory):
    # The FIFO's name tells what it wants: a new listener renames it, maybe under the hands of a writer.
    async with opened(directory) as store:
        received = Received()
        store.listen(received, {Hint.READY})
        fifo = next(iter(store._engine._subscribers._fifos.values()))
        found = notifications._named

        def listed_before_it_is_renamed(folder):
            names = list(found(folder))
            fifo.want(fifo.mask | notifications.BITS[Hint.DONE])
            return names

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(notifications, "_named", listed_before_it_is_renamed)
            notifier = notifications.FifoNotifier(directory / "notifications", lambda _: False)
            notifier.notify([Signal(Hint.READY)])
            notifier.close()
        await received.wait()


async def test_a_listener_that_raises_does_not_affect_the_others(directory):
    async with opened(directory) as store:
        failures = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
        received = Received()
        store.listen(lambda _: 1 / 0, {Hint.READY})
        store.listen(received, {Hint.READY})
        with Child("enqueue", directory=directory, ids=["1"]) as child:
            assert await child.heard() == "open"
            child.go_on()
            await received.wait()
            assert await child.heard() == ["1"]
        assert {type(failure) for failure in failures} == {ZeroDivisionError}


async def test_a_stopped_listener_is_not_notified(directory):
    async with opened(directory) as store, opened(directory) as other:
        gone, received = Received(), Received()
        stop = store.listen(gone, {Hint.READY})
        store.listen(received, {Hint.READY})
        stop()
        stop()
        await other.enqueue([new("1")])
        await received.wait()
        assert gone.signals == []


# Names in the directory ----------------------------------------------------------------------------------------------


async def test_a_store_without_listeners_has_no_fifo(directory):
    async with opened(directory) as store:
        await store.enqueue([new("1")])
        assert not (directory / "notifications").exists()


async def test_the_fifo_is_removed_after_the_last_listener_and_with_the_store(directory, monkeypatch):
    monkeypatch.setattr(subscribers, "LINGER_S", 0)
    async with opened(directory) as store:
        stops = [store.listen(Received(), {hint}) for hint in Hint]
        assert len(names_in(directory / "notifications")) == 1
        for stop in stops:
            stop()
        await eventually(lambda: names_in(directory / "notifications") == [])
        store.listen(Received())
        assert len(names_in(directory / "notifications")) == 1
    assert names_in(directory / "notifications") == []


async def test_a_listener_that_returns_soon_keeps_its_fifo(directory):
    async with opened(directory) as store:
        store.listen(Received(), {Hint.DONE})()
        (name,) = names_in(directory / "notifications")
        received = Received()
        store.listen(received, {Hint.DONE})
        assert names_in(directory / "notifications") == [name]
        with Child("enqueue", directory=directory, ids=["1"]) as child:
            assert await child.heard() == "open"
            child.go_on()
            assert await child.heard() == ["1"]
        assert (await store.finish([complete((await store.claim(wish())).jobs[0])]))[0].state == "completed"
        await received.wait()


async def test_a_waiting_process_gets_the_record_of_an_ended_job(directory):
    async with opened(directory) as store, opened(directory) as other:
        received = Received()
        other.listen(received, {Hint.DONE})
        await store.enqueue([new("1"), new("large", b"x" * 5000)])
        for job in (await store.claim(wish())).jobs:
            await store.finish([complete(job)])
            await received.wait()
        records = [signal.job for signal in received.signals if signal.job is not None]
        assert records == await store.get([key("1")])  # The other is too large, and is looked at.
        assert len(received.signals) == 2


async def test_a_listener_that_was_behind_checks_everything(directory):
    # Of what was sent to a full FIFO there is no trace in it.
    async with opened(directory) as store:
        received = Received()
        store.listen(received, {Hint.READY, Hint.DONE})
        (name,) = names_in(directory / "notifications")
        descriptor = os.open(directory / "notifications" / name, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while os.write(descriptor, bytes((notifications.BITS[Hint.READY],)) * 4096):
                pass
        os.close(descriptor)
        await received.wait()
        assert {signal.hint for signal in received.signals} == {Hint.READY, Hint.DONE}


async def test_the_fifo_of_a_dead_process_is_removed_by_the_next_commit(directory):
    with Child("listen", directory=directory, hints=["ready"]) as child:
        assert await child.heard() == "listening"
        child.kill()
    assert len(names_in(directory / "notifications")) == 1
    async with opened(directory) as store:
        await store.enqueue([new("1")])
        await _after_the_hints(store)
    assert names_in(directory / "notifications") == []


async def test_a_full_fifo_blocks_no_process(directory):
    async with opened(directory) as store:
        with Child("listen", directory=directory, hints=["ready"]) as child:
            assert await child.heard() == "listening"
            os.kill(child.pid, signal.SIGSTOP)  # It does not read any more.
            (name,) = names_in(directory / "notifications")
            descriptor = os.open(directory / "notifications" / name, os.O_WRONLY | os.O_NONBLOCK)
            try:
                with contextlib.suppress(BlockingIOError):
                    while os.write(descriptor, bytes((1,)) * 4096):
                        pass
                async with asyncio.timeout(SOON_S):
                    for n in range(10):
                        await store.enqueue([new(f"{n}")])
                    await _after_the_hints(store)
            finally:
                os.close(descriptor)
            os.kill(child.pid, signal.SIGCONT)
            assert await child.heard() == "ready"
        assert names_in(directory / "notifications") == [name]


async def test_foreign_files_beside_the_fifos_are_left_alone(directory):
    (directory / "notifications").mkdir(parents=True)
    for name in ("README", "x-1", "-", "ff", "1-"):
        (directory / "notifications" / name).write_text("")
    received = Received()
    async with opened(directory) as store, opened(directory) as other:
        other.listen(received, {Hint.READY})
        await store.enqueue([new("1")])
        await received.wait()
    assert names_in(directory / "notifications") == sorted(("README", "x-1", "-", "ff", "1-"))
    assert {(directory / "notifications" / name).read_text() for name in names_in(directory / "notifications")} == {""}


async def _after_the_hints(store):
    """Hints go out by the thread that writes: when it has done something else, they are out."""
    await store.set_tenant("other", TenantSettings(weight=2.0))


# Nothing left behind -------------------------------------------------------------------------------------------------


async def test_closing_leaves_no_descriptor_and_no_thread(directory):
    for _ in range(3):
        store = await open_at(directory)
        await store.enqueue([new("1")])
        await asyncio.gather(*(store.now() for _ in range(10)))
        store.listen(Received())
        twin = await store.sibling()
        await store.close()
        assert (await twin.get([key("1")]))[0].id == "1"
        await twin.close()
        assert threads() == []
        assert open_files(directory) == []


async def test_opening_and_closing_does_not_use_up_descriptors(directory):
    async def once():
        async with opened(directory) as store:
            store.listen(Received())
            await store.enqueue([new("1")])
            await store.now()

    await once()
    before = _descriptors()
    for _ in range(5):
        await once()
    assert _descriptors() == before


def test_siblings_that_close_in_their_own_threads_close_the_store_once(directory):
    async def main():
        store = await open_at(directory)
        siblings = [await store.sibling() for _ in range(8)]
        together = threading.Barrier(8)

        def leave(sibling):
            together.wait()
            asyncio.run(sibling.close())

        leaving = [threading.Thread(target=leave, args=(sibling,)) for sibling in siblings]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join()
        await store.enqueue([new("1")])
        await store.close()

    asyncio.run(main())
    assert threads() == []
    assert open_files(directory) == []


def test_a_listener_whose_loop_is_gone_does_not_stop_the_store(directory):
    store = None

    async def listen_and_go():
        sibling = await store.sibling()
        sibling.listen(Received(), {Hint.READY})

    async def main():
        nonlocal store
        store = await open_at(directory)
        await asyncio.to_thread(asyncio.run, listen_and_go())
        await store.enqueue([new("1")])
        await store.enqueue([new("2")])
        store._engine.leave()
        await store.close()

    asyncio.run(main())
    assert threads() == []
    assert open_files(directory) == []
    assert names_in(directory / "notifications") == []


async def test_more_waiting_processes_than_open_files_are_all_notified(directory, monkeypatch):
    monkeypatch.setattr(notifications, "MAX_OPEN", 2)
    lines = notifications.FifoWriters(directory / "notifications")
    directory.mkdir(exist_ok=True)
    loop, heard = asyncio.get_running_loop(), []
    fifos = [notifications.Fifo(directory / "notifications" / f"{n}", loop, heard.append) for n in range(5)]
    before = _descriptors()
    for fifo in fifos:
        os.write(lines.get(fifo.path.name, fifo.path.name), fifo.path.name.encode())
    assert _descriptors() == before + 2
    await eventually(lambda: sorted(heard) == [b"0", b"1", b"2", b"3", b"4"])
    lines.close()
    for fifo in fifos:
        fifo.close()
    assert _descriptors() == before - 5


def test_a_message_of_another_version_means_that_anything_may_have_changed():
    mask, records = notifications._unpack(bytes((notifications.RECORDS,)) + b"\0\3abc" + bytes((1,)))
    assert mask == notifications.ALL
    assert records == []


def _descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))
