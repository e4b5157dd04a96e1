"""Python processes that Spark starts find PySpark where it is installed, and not in a zip that each compiles anew."""

import sys

sys.path[:] = [place for place in sys.path if not place.endswith(("pyspark.zip", "-src.zip"))]
