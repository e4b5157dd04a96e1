"""The other processes of the file store's tests: `child.py FUNCTION ARGUMENTS`, speaking in lines of JSON.

Run as a program, never imported. What a child has said before it dies was acknowledged to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import random
import resource
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from holdfast.core import failpoint
from holdfast.core.errors import StoreError
from holdfast.core.job import Cancel, Extend, Result
from holdfast.store import Hint
from holdfast.stores.file import database
from tests import powerloss
from tests.stores.file.support import complete, key, new, open_at, opened, payload_of, wish


def say(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def wait_for_word():
    sys.stdin.readline()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


# Opening ---------------------------------------------------------------------------------------------------------


async def renew(directory, leases):
    """Renew leases of another process, each named by id and token."""
    async with opened(directory, "?events=all") as store:
        answers = await store.extend([Extend(key(id_), token, 600_000) for id_, token in leases])
    say([type(answer).__name__ for answer in answers])


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


async def open_as_other_user(directory):
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
    """Enqueue and complete until the disk is full, try again, then continue with more room."""
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
    """Produce `jobs`, and consume until all jobs of all producers are done."""
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


# Waiters ---------------------------------------------------------------------------------------------------------


async def enqueue_and_die(directory, options, point):
    """Enqueue one job, and die at a failpoint of its commit."""
    store = await open_at(directory, options)
    failpoint.install(lambda name: die() if name == point else None)
    await store.enqueue([new("1")])


async def wait_for_jobs(directory, options, limit):
    """Wait as a worker with room for `limit`, and say what comes."""
    async with opened(directory, options) as store:
        inbox = store.open_inbox(lambda claimed, _: [say(job.id) for job in claimed.jobs])
        await inbox.claim(wish(limit))
        say("waiting")
        await asyncio.to_thread(wait_for_word)


async def wait_with_a_fork(directory):
    """Wait as a worker, with a live fork of this process."""
    store = await open_at(directory)
    inbox = store.open_inbox(lambda *_: None)
    await inbox.claim(wish(5))
    if os.fork() == 0:
        say(os.getpid())  # It has let go of what is its parent's.
        signal.pause()
    await asyncio.to_thread(wait_for_word)


# Wake-ups --------------------------------------------------------------------------------------------------------


async def listen(directory, hints):
    """Listen, and print the hints received; a line on stdin ends it."""
    async with opened(directory) as store:
        store.listen(lambda signal: say(signal.hint), [Hint(hint) for hint in hints])
        say("listening")
        await asyncio.to_thread(wait_for_word)


# Forks -----------------------------------------------------------------------------------------------------------


async def use_after_fork(directory):
    """Fork with the store open, listening and at work; the child of the fork uses it, closes it and opens it again."""
    store = await open_at(directory)
    heard = asyncio.Event()
    store.listen(lambda _: heard.set(), [Hint.READY])
    working = [asyncio.ensure_future(store.enqueue([new(f"work-{n}")])) for n in range(200)]
    await asyncio.gather(store.now(), store.now(), *working[:3])
    waits, goes_on = os.pipe()
    pid = os.fork()
    if pid == 0:
        # The event loop is the parent's: take the first step of each call by hand.
        calls = (store.enqueue([new("child")]), store.now(), store.claim(wish(1)), _listen(store))
        say([first_step(call) for call in calls])
        store._engine.close()
        os.read(waits, 1)
        asyncio.events._set_running_loop(None)
        asyncio.new_event_loop().run_until_complete(_live_on(directory))
        os._exit(0)
    await asyncio.gather(*working)
    await store.now()
    heard.clear()
    os.write(goes_on, b"1")
    async with asyncio.timeout(60):
        await heard.wait()  # Of what the child has done: its closing did not take our FIFO.
    await store.enqueue([new("parent")])
    await store.close()
    say("the parent has closed")
    await asyncio.to_thread(os.waitpid, pid, 0)


async def _live_on(directory):
    store = await open_at(directory)
    await store.enqueue([new("child-1")])
    wait_for_word()
    await store.enqueue([new("child-2")])
    say("the child has been acknowledged")
    die()


async def _listen(store):
    store.listen(lambda _: None, [Hint.READY])


async def open_after_fork(directory):
    """Fork with the store closed again: both may open it."""
    async with opened(directory) as store:
        await store.enqueue([new("before")])
    pid = os.fork()
    if pid == 0:
        asyncio.events._set_running_loop(None)
        asyncio.new_event_loop().run_until_complete(_enqueue_one(directory, "child"))
        os._exit(0)
    await _enqueue_one(directory, "parent")
    await asyncio.to_thread(os.waitpid, pid, 0)
    say("done")


async def _enqueue_one(directory, id_):
    async with opened(directory) as store:
        await store.enqueue([new(id_)])


def first_step(call):
    try:
        call.send(None)
    except StoreError as error:
        return f"{error.code}: {error}"
    return "it went on"


async def fork_while_opening(directory):
    """Be forked in the middle of opening, with the lock held, and let go of it."""
    with database.locked(Path(directory)):
        pid = os.fork()
        if pid == 0:
            sys.stdout.close()
            signal.pause()
    say(pid)
    wait_for_word()


async def leave_a_fork_behind(directory):
    """Be killed in the middle of a commit, and listening, while a process that was forked earlier lives on."""
    store = await open_at(directory)
    store.listen(lambda _: None, [Hint.READY])
    pid = os.fork()
    if pid == 0:
        sys.stdout.close()
        signal.pause()
    say(pid)
    failpoint.install(lambda name: die() if name == "file.before_commit" else None)
    await store.enqueue([new("lost")])


# Power cuts ------------------------------------------------------------------------------------------------------


async def be_cut_off(root, log, name, seed, die_at, synchronous, checkpoints):
    """Work on a recorded disk until the kill comes, in the middle of the `die_at`-th thing that is written."""
    rng = random.Random(seed)
    connect = database.connect

    def connect_so(path, *, read_only=False):
        db = connect(path, read_only=read_only)
        if synchronous:  # Else as the store has set it.
            db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute(f"PRAGMA wal_autocheckpoint = {rng.choice(checkpoints)}")
        return db

    database.connect = connect_so
    recorder = powerloss.record(Path(log), Path(root), die_at=die_at)
    for life in range(50):
        async with opened(Path(root) / "deep" / "store") as store:
            producers = [produce_noted(store, recorder, f"{name}.{life}.{n}", rng) for n in range(3)]
            await asyncio.gather(*producers, consume_noted(store, recorder, rng), consume_noted(store, recorder, rng))


async def produce_noted(store, recorder, name, rng):
    for n in range(rng.randint(1, 6)):
        size = rng.choice((1, 1, 2, 5))
        ids = [f"{name}.{n}.{i}/{size}" for i in range(size)]
        await store.enqueue([new(id_, payload_of(id_)) for id_ in ids])
        recorder.note({"queued": ids})


async def consume_noted(store, recorder, rng):
    for _ in range(rng.randint(1, 6)):
        held = (await store.claim(wish(rng.randint(1, 3)))).jobs
        recorder.note({"claimed": {job.id: job.token for job in held}})
        await store.finish([complete(job, Result(job.id.encode())) for job in held])
        recorder.note({"completed": [job.id for job in held]})


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
