"""The same results wherever it runs: here, on executors of their own, on a master with two workers, by Connect.

By Connect there is no SparkContext, and functions run at the server.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pyspark
import pytest

from holdfast.core.job import Envelope
from holdfast.pipeline.lake import Lake
from tests.log import all_events
from tests.pipeline.hostile import JOBS
from tests.pipeline.kills import tally
from tests.pipeline.on_a_master import results
from tests.pipeline.settings import SETTINGS, environment, only_full
from tests.pipeline.traffic import make_traffic, of_store
from tests.pipeline.working import endings, fill, write_jobs

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

HOME = Path(pyspark.__file__).parent


@pytest.fixture
def jobs(tmp_path):
    return write_jobs(tmp_path)


@contextlib.contextmanager
def cluster(folder):
    """A master with two workers of one core each, from the wheel; its URL."""
    port = free_port()
    url = f"spark://localhost:{port}"
    deploy = "org.apache.spark.deploy"
    limits = ["--cores", "1", "--memory", "1g", "--host", "localhost", "--webui-port", "0"]
    start = HOME / "bin" / "spark-class"
    commands = [[start, f"{deploy}.master.Master", "--host", "localhost", "--port", str(port), "--webui-port", "0"]]
    commands += [[start, f"{deploy}.worker.Worker", *limits, "--work-dir", folder / f"w{n}", url] for n in (1, 2)]
    with contextlib.ExitStack() as stack:
        for number, command in enumerate(commands):
            stack.enter_context(running(command, folder / f"cluster-{number}.log", port))
        yield url


@contextlib.contextmanager
def connect_server(folder, master):
    """A Connect server on that master; its URL."""
    port = free_port()
    conf = SETTINGS | {"spark.executor.memory": "512m", "spark.connect.grpc.binding.port": str(port)}
    conf |= {"spark.ui.enabled": "false", "spark.sql.warehouse.dir": str(folder / "warehouse")}
    command = [HOME / "bin" / "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += ["--master", master, *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))]
    with running(command, folder / "server.log", port):
        yield f"sc://localhost:{port}"


@contextlib.contextmanager
def running(command, log, port):
    """A program of Spark's that answers at this port."""
    settings = environment(SPARK_HOME=str(HOME), SPARK_LOG_DIR=str(log.parent), PYSPARK_PYTHON=sys.executable)
    with log.open("w") as said:
        program = subprocess.Popen(command, env=settings, stderr=said, stdout=said)
        try:
            _wait_for(port, program)
            yield
        finally:
            _end(program)


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def _wait_for(port, program):
    while True:
        assert program.poll() is None
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("localhost", port)):
            return
        time.sleep(0.05)


def _end(program):
    program.terminate()
    try:
        program.wait(20)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def begin(program, folder, *args):
    command = [sys.executable, "-m", f"tests.pipeline.{program}", *map(str, args)]
    path = os.pathsep.join(place for place in sys.path if place and place != str(folder))
    with (folder / f"{program}-{len(args)}.log").open("w") as said:
        return subprocess.Popen(
            command, env=environment(PYTHONPATH=path), text=True, stdout=subprocess.PIPE, stderr=said
        )


def reported(run, folder):
    """What a program says at its end."""
    said = run.communicate()[0]
    assert run.returncode == 0, [log.read_text()[-3000:] for log in folder.glob("*.log")]
    return json.loads(said.splitlines()[-1])


@only_full
def test_executors_have_the_same_results_and_one_that_dies_loses_no_job(spark, valkey_url, tmp_path, jobs):
    of_store(valkey_url, lambda store: make_traffic(store, 40))
    to_work = valkey_url.replace("prefix=", "prefix=work-")
    assert to_work != valkey_url
    end = Envelope("end_executor", b'{"place":"%s"}' % str(tmp_path).encode(), priority=9)
    of_store(to_work, lambda store: fill(store, 40, tmp_path, [end]))
    of_executors = ("local-cluster[2,1,1024]", valkey_url, tmp_path / "executors", to_work, jobs)
    by_executors = reported(begin("on_a_master", tmp_path, *of_executors), tmp_path)

    here = results(spark, valkey_url, tmp_path / "here")
    assert here["job_runs"][0] == 40
    assert by_executors["results"] == here
    # A job took the executor with it: a killed task, and all that its worker held.
    assert (tmp_path / "ended").exists()
    assert (by_executors["left"], by_executors["workers"]) == (0, 2)
    assert of_store(to_work, endings) == {f"crunch-{n}": 1 for n in range(40)} | {"end_executor-40": 1}


@only_full
def test_queries_over_connect_are_checked_like_local_ones(history, tmp_path):
    """On a server of its own, without a master: what is no question on the lake's tables is refused."""
    with connect_server(tmp_path, "local[1]") as remote:
        said = reported(begin("ask_over_connect", tmp_path, remote, history.root), tmp_path)
    assert said == {"refused": 4, "asked": [[JOBS]]}


@only_full
def test_a_master_with_two_workers_and_connect_have_the_same_results(spark, file_url, tmp_path):
    of_store(file_url, lambda store: make_traffic(store, 40))
    with cluster(tmp_path) as master:
        by_workers = reported(begin("on_a_master", tmp_path, master, file_url, tmp_path / "workers"), tmp_path)
        here = results(spark, file_url, tmp_path / "here")
        assert here["audit"].startswith("0 violations over")
        assert by_workers["results"] == here
        with connect_server(tmp_path, master) as remote:
            by_connect = reported(begin("over_connect", tmp_path, remote, file_url, tmp_path / "connect"), tmp_path)

    events = of_store(file_url, all_events)
    assert by_connect["claimed"] == sum(event.kind == "claimed" for event in events)
    assert by_connect["kept"] == len(events)
    assert by_connect["payloads"] == sum(event.kind == "enqueued" for event in events)
    assert by_connect["batches"] > 1
    assert (by_connect["asked"], len(by_connect["refusals"])) == ([[40]], 2)
    assert tally(file_url, Lake(tmp_path / "connect")) == (len(events), 0, 0)
    assert by_connect["results"] == results(spark, file_url, tmp_path / "here too")
