"""The event log as tables, on Spark: keep it, ask it, prove it, and move jobs in bulk.

This is the only home of PySpark, PyArrow and pandas; everything else runs without them.
"""
