"""Makes a Spark session for the pipeline: on this machine, on a cluster, or through Spark Connect.

If you have a session already, you need none of this: the data source and the tables work in any session.
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

MIN_JAVA = 17
LIBRARIES = ("pyspark", "pyarrow", "pandas", "sqlglot")
CONNECT_LIBRARIES = (*LIBRARIES, "grpc")

_INSTALL_JAVA = {
    "linux": "apt-get install openjdk-17-jre-headless (Debian, Ubuntu), dnf install java-17-openjdk-headless (Fedora)",
    "darwin": "brew install openjdk@17",
}
LOG_VARIABLE = "HOLDFAST_SPARK_LOG"
"""Set it to error, warn or info to see Spark's own log, with traces, beside the output of the command."""
CONNECT_TIMEOUT_S = 5.0
_PORTS = {"sc": 15002, "spark": 7077}
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_QUIET = Path(__file__).with_name("log4j2.properties")

# Settings for every session, including remote ones.
_SQL = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    # Without this a date-partitioned write sorts all its rows first.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # A second line of defence after pipeline/judge.py: no file is a table, and no variable is substituted in SQL.
    "spark.sql.runSQLOnFiles": "false",
    "spark.sql.variable.substitute": "false",
}


def make_session(
    master: str | None = None,
    remote: str | None = None,
    app: str = "holdfast",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on `master` (default: all cores of this machine), or through Spark Connect on `remote` (`sc://...`).

    Raises InvalidOption if a library or Java is missing or too old, with the command that installs it, and if no
    server answers at that address.
    """
    if master is not None and remote is not None:
        raise InvalidOption("remote", "give a master or a remote, not both")
    check_libraries(LIBRARIES if remote is None else CONNECT_LIBRARIES)
    from pyspark.sql import SparkSession

    # Workers run the same Python, so that they find this package and the store's driver.
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
            raise InvalidOption("pipeline", f"it needs {name}; install it with: pip install 'holdfast[spark]'")


def check_java() -> None:
    """Raise InvalidOption unless there is a Java that Spark runs on."""
    cure = f"install it, for example with: {_INSTALL_JAVA.get(sys.platform, 'your package manager')}"
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None:
        raise InvalidOption("java", f"Spark needs Java {MIN_JAVA} or newer, but there is none; {cure}")
    where = f"the Java of {'JAVA_HOME' if home else 'the PATH'} ({program})"
    try:
        output = subprocess.run([program, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr  # noqa: S603
    except OSError as error:
        raise InvalidOption("java", f"{where} does not run: {error.strerror}; {cure}") from None
    except subprocess.TimeoutExpired:
        raise InvalidOption("java", f"{where} does not answer; {cure}") from None
    match = _VERSION.search(output)
    if match is None:
        raise InvalidOption("java", f"{where} does not print its version; {cure}")
    # Java 8 calls itself 1.8.
    major = int((match[2] or "8") if match[1] == "1" else match[1])
    if major < MIN_JAVA:
        raise InvalidOption("java", f"Spark needs Java {MIN_JAVA} or newer, but {program} is Java {major}; {cure}")


def check_reachable(option: str, address: str) -> None:
    """Raise InvalidOption unless a server listens at an address like sc://host:port or spark://host:port,host:port.

    Spark itself tries for minutes without a message. Other kinds of addresses are not checked.
    """
    scheme, _, rest = address.partition("://")
    if scheme not in _PORTS:
        return
    reasons: list[str] = []
    for part in re.split(r"[/;?]", rest, maxsplit=1)[0].split(","):
        try:
            parts = urlsplit(f"//{part}")
            host, port = parts.hostname, parts.port or _PORTS[scheme]
        except ValueError:
            host, port = None, 0
        if not host:
            raise InvalidOption(option, f"{address!r} is not like {scheme}://host:{_PORTS[scheme]}")
        try:
            socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
        except OSError as error:
            reasons.append(f"{host} port {port} ({error.strerror or error})")
        else:
            return
    what = "Spark Connect server" if option == "remote" else "Spark master"
    raise InvalidOption(option, f"no {what} answers at {', '.join(reasons)}")


def silence_query_errors() -> None:
    """Keep PySpark from logging each query error, as JSON with a Java trace, before it raises the error."""
    if find_spec("pyspark") is not None and LOG_VARIABLE not in os.environ:
        from pyspark.logger import PySparkLogger

        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            PySparkLogger.getLogger(name).disabled = True


def jvm_pid() -> int | None:
    """The Java process that a session of this process started, or None."""
    from pyspark import SparkContext

    gateway = getattr(SparkContext, "_gateway", None)
    return getattr(getattr(gateway, "proc", None), "pid", None)


def _classic(master: str) -> dict[str, str]:
    """Settings that must be known when the Java process starts."""
    # Keep executors on this machine from writing into the installed Spark, and tables from the current directory.
    scratch = Path(tempfile.gettempdir()) / f"holdfast-spark-{os.getuid() if hasattr(os, 'getuid') else 0}"
    os.environ.setdefault("SPARK_WORKER_DIR", str(scratch / "work"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{_QUIET}",
    }
    if master.startswith("local["):
        # Spark's default of 200 tasks for each shuffle is meant for clusters.
        settings["spark.sql.shuffle.partitions"] = str(max(2, os.cpu_count() or 1))
        settings["spark.driver.memory"] = "2g"
        # Looking up the host name may take long, and a local session does not need it.
        os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
    return settings
