"""The other processes of the file store's tests: `child.py FUNCTION ARGUMENTS`, speaking in lines of JSON.

Run as a program, never imported. What a child has said before it dies was acknowledged to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from holdfast.core import failpoint
from holdfast.core.errors import StoreError
from holdfast.core.job import Cancel
from holdfast.store import Hint
from holdfast.stores.file import database
from tests.stores.file.support import complete, key, new, open_at, opened, wish


def say(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def wait_for_word():
    sys.stdin.readline()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


# Opening ---------------------------------------------------------------------------------------------------------


async def open_and_close(directory, name, times):
    """Open, enqueue, close, over and over."""
    say("ready")
    wait_for_word()
    for n in range(times):
        async with opened(directory) as store:
            await store.enqueue([new(f"{name}-{n}")])
    say("done")


async def die_while_creating(directory):
    """Die when the database is built but not yet in its place."""
    os.replace = lambda *_: die()
    await open_at(directory)


async def open_as_nobody(directory):
    """Open it without the rights to: root has them everywhere."""
    async with opened(f"{directory}/../warm-up"):
        pass  # What is imported on the way may not be readable later.
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    say(await code_of(open_at(directory)))


async def read_without_descriptors(directory):
    """Read when no file can be opened, and again when it can."""
    async with opened(directory) as store:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (5, limits[1]))  # Fewer than it has already.
        say(await code_of(store.now()))
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        say(await code_of(store.now()))


# A full disk -----------------------------------------------------------------------------------------------------


async def fill(directory, limit):
    """Enqueue and complete until the disk is full, try on, then go on with more room."""
    async with opened(directory) as store:
        limit_files(limit)
        queued, completed, failed, n = [], [], [], 0
        while len(failed) < 40:
            batches = [[f"{n + b}-{i}" for i in range(5)] for b in range(4)]
            n += 4
            calls = [store.enqueue([new(id_, b"x" * 700) for id_ in batch]) for batch in batches]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            for batch, answer in zip(batches, answers, strict=True):
                if isinstance(answer, StoreError):
                    failed.append((batch, answer.code))
                else:
                    queued += [item.id for item in answer]
            with contextlib.suppress(StoreError):
                held = (await store.claim(wish(2))).jobs
                await store.finish([complete(job) for job in held])
                completed += [job.id for job in held]
        limit_files(resource.RLIM_INFINITY)
        for batch, _ in failed[:3]:
            queued += [item.id for item in await store.enqueue([new(id_) for id_ in batch])]
        say({"queued": queued, "completed": completed, "failed": failed[3:], "codes": [code for _, code in failed]})


async def open_on_a_full_disk(directory):
    limit_files(1024)
    say(await code_of(open_at(directory)))
    limit_files(resource.RLIM_INFINITY)
    async with opened(directory) as store:
        await store.enqueue([new("a")])
    say("done")


def limit_files(size):
    """Files cannot grow beyond this. Python ignores SIGXFSZ, so writing answers EFBIG."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


# Many processes --------------------------------------------------------------------------------------------------


async def work(directory, name, jobs, total):
    """Produce `jobs`, and consume until all that everybody produced are done."""
    async with opened(directory) as store:
        changed = asyncio.Event()
        store.listen(lambda _: changed.set(), {Hint.READY, Hint.DONE})
        say("ready")
        wait_for_word()
        producing = asyncio.create_task(produce(store, name, jobs))
        runs = []
        while True:
            changed.clear()
            held = (await store.claim(wish(3, worker=name))).jobs
            if held:
                answers = await store.finish([complete(job) for job in held])
                runs += [(job.id, job.token, type(answer).__name__) for job, answer in zip(held, answers, strict=True)]
            elif (await store.stats("acme", ["mail"]))[0].counts["completed"] == total:
                break
            else:
                await changed.wait()
        await producing
        say(runs)


async def produce(store, name, jobs):
    for n in range(0, jobs, 5):
        calls = [store.enqueue([new(f"{name}-{i}")]) for i in range(n, n + 5)]
        await asyncio.gather(*calls)


async def enqueue(directory, ids):
    async with opened(directory) as store:
        say("open")
        wait_for_word()
        say([answer.id for answer in await store.enqueue([new(id_) for id_ in ids])])


async def open_a_second_time(directory):
    """Use the store by one handle while another one opens and closes the same directory."""
    store = await open_at(directory)
    await store.enqueue([new("first")])
    second = await open_at(directory)
    await second.enqueue([new("second")])
    say("open")
    wait_for_word()
    await store.enqueue([new("third")])
    await second.close()
    say("closed")
    wait_for_word()
    await store.enqueue([new("fourth")])
    say("acknowledged")
    die()


async def hold_the_lock(directory):
    with database.locked(Path(directory)):
        say("held")
        wait_for_word()


async def die_at(directory, point, step):
    """Do what comes before `step`, then die at a failpoint of the commit that carries it."""
    store = await open_at(directory)
    await store.enqueue([new(f"before-{n}") for n in range(4)])
    held = (await store.claim(wish(2))).jobs
    say({job.id: job.token for job in held})
    failpoint.install(lambda name: die() if name == point else None)
    steps = {
        "enqueue": [store.enqueue([new(f"{name}-{n}") for n in range(3)]) for name in ("a", "b")],
        "claim": [store.claim(wish(1)), store.claim(wish(1))],
        "complete": [store.finish([complete(job)]) for job in held],
        "cancel": [store.cancel([Cancel(key("before-2"))]), store.cancel([Cancel(key("before-3"))])],
    }
    for name, calls in steps.items():
        if name != step:
            for call in calls:
                call.close()
    await asyncio.gather(*steps[step])


async def stop_at(directory, point):
    """Stop at a failpoint, and wait there for a word or for the end."""

    def stop(name):
        if name == point:
            failpoint.install(None)
            say("stopped")
            wait_for_word()

    async with opened(directory) as store:
        failpoint.install(stop)
        await store.enqueue([new("stopped")])
    say("done")


# Wake-ups --------------------------------------------------------------------------------------------------------


async def listen(directory, hints):
    """Listen, and say what was heard; a line on stdin ends it."""
    async with opened(directory) as store:
        store.listen(lambda signal: say(signal.hint), [Hint(hint) for hint in hints])
        say("listening")
        await asyncio.to_thread(wait_for_word)


# Forks -----------------------------------------------------------------------------------------------------------


async def use_after_fork(directory):
    """Fork with the store open and listening; the child of the fork uses it and closes it."""
    store = await open_at(directory)
    await store.enqueue([new("parent")])
    heard = asyncio.Event()
    store.listen(lambda _: heard.set(), [Hint.READY])
    say(wake_names(directory))
    pid = os.fork()
    if pid == 0:
        # The event loop of the parent is not ours: run what is asked by hand.
        calls = (store.enqueue([new("child")]), store.now(), store.claim(wish(1)))
        say([first_step(call) for call in calls])
        with contextlib.suppress(StoreError):
            store.listen(lambda _: None, [Hint.READY])
            say("the child listens")
        store._engine.close()
        os._exit(0)
    await asyncio.to_thread(os.waitpid, pid, 0)
    say(wake_names(directory))
    await store.enqueue([new("after")])
    await store.close()
    say("done")


def first_step(call):
    try:
        call.send(None)
    except StoreError as error:
        return f"{error.code}: {error}"
    return "it went on"


def wake_names(directory):
    return sorted(path.name for path in (Path(directory) / "wake").iterdir())


async def leave_a_fork_behind(directory):
    """Be killed in the middle of a commit while a process that was forked earlier lives on."""
    store = await open_at(directory)
    read_end, _ = os.pipe()
    pid = os.fork()
    if pid == 0:
        sys.stdout.close()
        os.read(read_end, 1)  # For ever: this process has the write end too.
        os._exit(0)
    say(pid)
    failpoint.install(lambda name: die() if name == "file.before_commit" else None)
    await store.enqueue([new("lost")])


async def code_of(call):
    """What a call answers: "ok", or the code and text of its refusal."""
    try:
        answer = await call
    except StoreError as error:
        return [error.code, str(error)]
    if hasattr(answer, "close"):
        await answer.close()
    return ["ok", ""]


if __name__ == "__main__":
    function = globals()[sys.argv[1]]
    result = function(**json.loads(sys.argv[2]))
    if inspect.isawaitable(result):
        asyncio.run(result)
