"""Where Spark looks for the data source `holdfast`: `spark.read.format("holdfast")` needs no registration."""

from holdfast.pipeline.source import HoldfastSource as DefaultSource

__all__ = ["DefaultSource"]
