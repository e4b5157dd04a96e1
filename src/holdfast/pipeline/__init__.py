"""The event log as tables, on Spark: keep it, query it, audit it, and move jobs in bulk.

Only this package uses PySpark, PyArrow and pandas; everything else runs without them.
"""
