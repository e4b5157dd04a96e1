"""Questions by Spark Connect, in a process of its own: a process has one kind of session.

python -m tests.pipeline.ask_over_connect REMOTE LAKE
"""

import json
import sys

from holdfast.core.errors import InvalidOption
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.query import query
from holdfast.pipeline.session import make_session

BAD = (
    "SELECT TRANSFORM (kind) USING 'id' FROM events",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT java_method('java.lang.System', 'getProperty', 'user.home') FROM events",
    "DROP TABLE events",
)


def main(remote, root):
    spark = make_session(remote=remote)
    lake = Lake(root)
    refused = []
    for sql in BAD:
        try:
            query(spark, lake, sql)
        except InvalidOption as error:
            refused.append(error.option)
    asked = query(spark, lake, "SELECT count(*) FROM job_runs").rows
    print(json.dumps({"refused": len(refused), "asked": asked}))  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
