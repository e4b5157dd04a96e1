"""Everything by Spark Connect, in a process of its own: a process has one kind of session.

python -m tests.pipeline.over_connect REMOTE STORE LAKE
"""

import json
import sys

from holdfast.core.errors import InvalidOption
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.query import query
from holdfast.pipeline.session import make_session
from tests.pipeline.on_a_master import built


def refusals(spark, lake):
    said = []
    for sql in ("SELECT TRANSFORM (kind) USING 'id' FROM events", "SELECT * FROM text.`/etc/passwd`"):
        try:
            query(spark, lake, sql)
        except InvalidOption as error:
            said.append(str(error))
    return said


def main(remote, url, root):
    spark = make_session(remote=remote)
    events = spark.read.format("holdfast").option("store", url).load()
    claimed = events.where("kind = 'claimed'").count()
    rows = spark.range(20).selectExpr("concat('c', id) AS id", "named_struct('n', id) AS payload")
    rows.write.format("holdfast").options(store=url, tenant="connect").mode("append").save()
    lake = Lake(root, create=True)
    done = ingest(spark, lake, IngestPlan(url, max_events=100, payloads="full"))
    kept = lake.read(spark, "events").count()
    said = {"claimed": claimed, "batches": done.batches, "kept": kept, "payloads": done.payloads}
    said |= {"results": built(spark, lake), "refusals": refusals(spark, lake)}
    said["asked"] = query(spark, lake, "SELECT count(*) FROM job_runs WHERE state IN ('completed', 'failed')").rows
    print(json.dumps(said))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
