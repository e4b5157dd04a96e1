"""A Spark session for the pipeline: on this machine, on a cluster by its master, or by Spark Connect.

Whoever has a session already needs none of this: the data source and the tables work in any.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from holdfast.core.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_LEAST = 17
LIBRARIES = ("pyspark", "pyarrow", "pandas", "sqlglot")
CONNECT_LIBRARIES = (*LIBRARIES, "grpc")

_INSTALL_JAVA = {
    "linux": "apt-get install openjdk-17-jre-headless (Debian, Ubuntu), dnf install java-17-openjdk-headless (Fedora)",
    "darwin": "brew install openjdk@17",
}
LOG_VARIABLE = "HOLDFAST_SPARK_LOG"
"""Set to error, warn or info it shows what Spark says of failures, with traces, beside what the command says."""
REACH_S = 5.0
_PORTS = {"sc": 15002, "spark": 7077}
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_QUIET = Path(__file__).with_name("log4j2.properties")

# What can be set on any session, also one that runs elsewhere.
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Without it a date-partitioned write sorts all its rows first.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # A second line behind pipeline/judge.py: no file is a table, and no text is replaced inside a statement.
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}


def make_session(
    master: str | None = None,
    remote: str | None = None,
    app: str = "holdfast",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on `master` (by default all cores of this machine), or by Spark Connect on `remote` (`sc://...`).

    Raises InvalidOption where a library or Java is missing, or too old, with the command that installs it, and where
    nobody answers at that address.
    """
    if master is not None and remote is not None:
        raise InvalidOption("remote", "give a master or a remote, not both")
    check_libraries(LIBRARIES if remote is None else CONNECT_LIBRARIES)
    from pyspark.sql import SparkSession

    # Workers run this very Python, and so find this package and the store's driver.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = cast("Any", SparkSession.builder).appName(app)
    if remote is not None:
        settings: dict[str, str] = {**_SQL, **(conf or {})}
        check_reachable("remote", remote)
        builder = builder.remote(remote)
    else:
        check_java()
        master = master or "local[*]"
        check_reachable("master", master)
        settings = {**_SQL, **_classic(master), **(conf or {})}
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return cast("SparkSession", builder.getOrCreate())


def check_libraries(names: tuple[str, ...] = LIBRARIES) -> None:
    """Raise InvalidOption unless the libraries of the pipeline are installed."""
    for name in names:
        if find_spec(name) is None:
            raise InvalidOption("pipeline", f"needs {name}; install it with: pip install 'holdfast[spark]'")


def check_java() -> None:
    """Raise InvalidOption unless there is a Java that Spark runs on."""
    cure = f"install it, for example with: {_INSTALL_JAVA.get(sys.platform, 'your package manager')}"
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        raise InvalidOption("java", f"Spark needs Java {JAVA_LEAST} or newer and there is none; {cure}")
    where = f"the Java of {'JAVA_HOME' if home else 'the PATH'} ({program})"
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr  # noqa: S603
    except OSError as error:
        raise InvalidOption("java", f"{where} does not run: {error.strerror}; {cure}") from None
    except subprocess.TimeoutExpired:
        raise InvalidOption("java", f"{where} does not answer; {cure}") from None
    match = _VERSION.search(said)
    if match is None:
        raise InvalidOption("java", f"{where} does not tell its version, and so is none that Spark can run on; {cure}")
    # Java 8 calls itself 1.8.
    major = int((match[2] or "8") if match[1] == "1" else match[1])
    if major < JAVA_LEAST:
        raise InvalidOption("java", f"Spark needs Java {JAVA_LEAST} or newer and {program} is Java {major}; {cure}")


def check_reachable(option: str, address: str) -> None:
    """Raise InvalidOption unless somebody listens at an address like sc://host:port or spark://host:port,host:port.

    Spark itself tries for minutes, without a word. Addresses of other kinds are left to it.
    """
    scheme, _, rest = address.partition("://")
    if scheme not in _PORTS:
        return
    reasons: list[str] = []
    for place in re.split(r"[/;?]", rest, maxsplit=1)[0].split(","):
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname, parts.port or _PORTS[scheme]
        except ValueError:
            host, port = None, 0
        if not host:
            raise InvalidOption(option, f"{address!r} is not like {scheme}://host:{_PORTS[scheme]}")
        try:
            socket.create_connection((host, port), REACH_S).close()
        except OSError as error:
            reasons.append(f"{host} port {port} ({error.strerror or error})")
        else:
            return
    what = "Spark Connect server" if option == "remote" else "Spark master"
    raise InvalidOption(option, f"no {what} answers at {', '.join(reasons)}")


def hush() -> None:
    """Have PySpark not write down each error in a query, as JSON with its Java trace, before it is raised."""
    if find_spec("pyspark") is not None and LOG_VARIABLE not in os.environ:
        from pyspark.logger import PySparkLogger

        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True


def jvm_pid() -> int | None:
    """The process of the Java machine that a session of this process started, if it did."""
    from pyspark import SparkContext

    gateway = getattr(SparkContext, "_gateway", None)
    return getattr(getattr(gateway, "proc", None), "pid", None)


def _classic(master: str) -> dict[str, str]:
    """What is settled when the Java machine starts."""
    # Executors of a cluster on this machine would write into the installed Spark, and tables without a place here.
    scratch = Path(tempfile.gettempdir()) / f"holdfast-spark-{os.getuid() if hasattr(os, 'getuid') else 0}"
    os.environ.setdefault("SPARK_WORKER_DIR", str(scratch / "work"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{_QUIET}",
    }
    if master.startswith("local["):
        # Two hundred small tasks for each shuffle are for clusters.
        settings["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 1))
        settings["spark.driver.memory"] = "2g"
        # Its own name may take long to look up, and nobody else needs it.
        os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
    return settings
