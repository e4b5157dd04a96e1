"""How the tests run Spark."""

import os
from pathlib import Path

import pytest
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

FULL = os.environ.get("HOLDFAST_PIPELINE") == "full"
"""By `make test-pipeline`: everything, as users run it. `make test` has two minutes for the pipeline."""
only_full = pytest.mark.skipif(not FULL, reason="only in the full form: make test-pipeline")

# For hundreds of rows: code that is compiled for a query, or plans that are looked at again, cost more than they save.
QUICK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.maxPlanStringLength": "0",
    "spark.sql.lightweightPlanChangeValidation": "false",
    "spark.sql.shuffle.partitions": "1",
}
SETTINGS = {"spark.default.parallelism": "1", "spark.sql.shuffle.partitions": "2"} | ({} if FULL else QUICK)

# Quick to start rather than quick in the long run; what is installed is not verified again.
JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:-UsePerfData "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
QUICK_PYTHON = Path(__file__).with_name("quick")


def environment(**more):
    """Of a program that starts Java: all on this machine, found by one name, and quick to start."""
    path = os.pathsep.join(filter(None, (str(QUICK_PYTHON), more.pop("PYTHONPATH", os.environ.get("PYTHONPATH")))))
    settings = {"SPARK_LOCAL_HOSTNAME": "localhost", "JDK_JAVA_OPTIONS": JAVA_OPTIONS, "PYTHONPATH": path}
    return os.environ | settings | more


def remember_names():
    """Ask Java for a class or a method once: each time it looks through all of Spark's jars."""
    for kind in (JVMView, JavaPackage, JavaClass):
        kind.__getattr__ = _remembering(kind.__getattr__)


def _remembering(ask):
    def answer(self, name):
        found = ask(self, name)
        if isinstance(found, (JavaClass, JavaMember, JavaPackage)):
            self.__dict__[name] = found
        return found

    return answer
