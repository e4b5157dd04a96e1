"""Everything from the log to the audit on some master, and what came of it as sums that any other master must have too.

python -m tests.pipeline.on_a_master MASTER STORE LAKE [WORKING_STORE MODULE]

With a second store, workers then drain it, with the jobs of that module.
"""

import json
import sys
from functools import partial
from pathlib import Path

from pyspark.sql import functions as fn
from pyspark.sql.types import MapType

from holdfast.cli.running import WorkerConfig, make_worker
from holdfast.pipeline import work as working
from holdfast.pipeline.audit import audit
from holdfast.pipeline.build import build
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.session import make_session
from holdfast.pipeline.work import pack, work
from tests.pipeline.settings import SETTINGS

TABLES = ("job_runs", "attempts", "hourly")


def results(spark, url, root):
    """Rows and an order-free digest of each table that a build makes of a lake, and what its audit says."""
    lake = Lake(root, create=True)
    ingest(spark, lake, IngestPlan(url))
    return built(spark, lake)


def built(spark, lake):
    build(spark, lake)
    found = audit(spark, lake)
    found.violations.unpersist()
    return {**{table: digest(lake.read(spark, table)) for table in TABLES}, "audit": found.text()}


def digest(frame):
    columns = [
        fn.array_sort(fn.map_entries(field.name)).alias(field.name)
        if isinstance(field.dataType, MapType)
        else fn.col(field.name)
        for field in frame.schema
    ]
    hashed = fn.xxhash64(fn.to_json(fn.struct(*columns))).cast("decimal(38,0)")
    (row,) = frame.agg(fn.count("*"), fn.coalesce(fn.sum(hashed), fn.lit(0))).collect()
    return [row[0], str(row[1])]


def worked(spark, url, module):
    """What workers left, and how many there were."""
    sys.path.insert(0, str(Path(module).parent))
    make = partial(make_worker, WorkerConfig(url, "acme", [Path(module).stem], concurrency=4, lease_s=3.0))
    done = work(spark, working.WorkPlan(url, 2, until_empty=True), make, pack([Path(module)]))
    return {"left": sum(done.left.values()), "workers": len(done.workers)}


def main(master, url, root, *to_work):
    spark = make_session(master, conf=SETTINGS | {"spark.executor.memory": "512m"})
    said = {"results": results(spark, url, root)}
    if to_work:
        said |= worked(spark, *to_work)
    print(json.dumps(said))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
