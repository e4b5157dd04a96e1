from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench import beside, environments, peer
from bench.grounds import GROUNDS
from bench.measure import Figures
from bench.peer import HERE
from bench.quick import QUICK

PEERS = [peer for ground in GROUNDS.values() for peer in ground.peers]
NODE = {"BullMQ", "@platformatic/job-queue"}
NAMED = {
    "valkey": {"Celery", "dramatiq", "RQ", "arq", "SAQ", "taskiq", "huey on Valkey", "streaq", *NODE},
    "postgres": {"PgQueuer", "Procrastinate", "graphile-worker", "pg-boss"},
}


@pytest.mark.parametrize("ground", GROUNDS)
def test_every_peer_is_in_the_list(ground):
    assert {peer.name for peer in GROUNDS[ground].peers} == NAMED[ground]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.environment)
def test_a_peer_has_its_files_its_pins_and_a_note_on_its_settings(peer):
    files = [word for word in (*peer.driver, *peer.worker) if word.endswith((".py", ".cjs"))]
    apps = [f"{word}.py" for word in peer.driver if word.endswith("_app")]
    assert files + apps
    assert all((HERE / name).is_file() for name in files + apps)
    pins = environments.PINNED[peer.environment]
    assert all(re.search(r"\d", pin.split("@" if peer.environment in environments.NODE else "==")[-1]) for pin in pins)
    assert peer.settings
    assert peer.jobs > 0


def test_a_peer_says_what_it_does_not_do():
    # BullMQ alone has acknowledgements, results and events.
    assert [peer.name for peer in PEERS if not peer.lacks] == ["BullMQ"]


def test_similar_names_of_peers_are_kept_apart():
    assert len({peer.name for peer in PEERS}) == len({peer.environment for peer in PEERS}) == len(PEERS)


def test_the_quick_run_knows_its_peers():
    assert set(QUICK.on_all_cores) <= set(QUICK.peers) <= {peer.environment for peer in PEERS}


@pytest.mark.parametrize("error, reason", [
    (subprocess.CalledProcessError(3, ["/home/me/peer/bin/python"]), "failed, its driver ended with 3"),
    (subprocess.TimeoutExpired(["/home/me/peer/bin/python"], 120.0), "failed, its driver did not end within 120 s"),
    (peer.Gone("its worker ended with 1"), "failed, its worker ended with 1"),
    (ZeroDivisionError("/home/me"), "failed, ZeroDivisionError"),
])  # fmt: skip
def test_a_peer_that_fails_is_named_with_the_reason_and_the_others_go_on(error, reason):
    class Failing:
        name = "rival"

        def rates(self, figures, server):
            raise error

    console = Console(file=io.StringIO())
    assert beside._measure_peer(Figures(), Failing(), None, frozenset(), console) == {"rival": reason}


def test_a_worker_that_is_stopped_leaves_no_children(tmp_path):
    said = tmp_path / "child"
    code = f"""
import os, pathlib, signal, time
child = os.fork()
if not child:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path({str(said)!r} + ".part").write_text(str(os.getpid()))
    os.rename({str(said)!r} + ".part", {str(said)!r})
time.sleep(60)
"""
    with peer.running([sys.executable, "-c", code], dict(os.environ)) as process:
        peer._until(said.exists, [process])
    child = Path("/proc") / said.read_text() / "stat"

    def is_dead():
        # Its new parent buries it; until then it is a zombie.
        try:
            return ") Z " in child.read_text()
        except OSError:
            return True

    peer._until(is_dead, [])


@pytest.mark.parametrize("parts, peers, names", [
    ({"peers"}, ["bullmq"], ["BullMQ"]),
    ({"peers"}, [], sorted(NAMED["valkey"])),
    ({"ours"}, ["bullmq"], []),
])  # fmt: skip
def test_peers_are_chosen_by_name(parts, peers, names):
    arguments = argparse.Namespace(parts=parts, peers=peers)
    assert sorted(peer.name for peer in beside.wanted(GROUNDS["valkey"], arguments)) == names
