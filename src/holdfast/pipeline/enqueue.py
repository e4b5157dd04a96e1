"""Files as jobs: each row of a Parquet, CSV or JSON file is one enqueue, through the sink of the data source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from holdfast.core.errors import InvalidOption
from holdfast.opening import absolute
from holdfast.pipeline.errors import plainly
from holdfast.pipeline.sink import COLUMNS

FORMATS = ("parquet", "csv", "json")
_SUFFIXES = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def read_rows(spark: SparkSession, path: str, format_: str | None = None, id_: str | None = None) -> DataFrame:
    """The rows of a file, or of all files in a directory, in the form that the sink takes.

    `id_` names the column with the ids. Without a column `payload`, all columns that the sink does not know form the
    payload. Raises InvalidOption.
    """
    format_ = format_ or _SUFFIXES.get(Path(path).suffix.lower())
    if format_ not in FORMATS:
        raise InvalidOption("format", f"the format of {path} is unknown; give --format {', '.join(FORMATS)}")
    location = str(Path(path).absolute()) if "://" not in path else path
    reader = spark.read.options(header=True, inferSchema=True) if format_ == "csv" else spark.read
    try:
        rows = reader.format(format_).load(location)
        columns = rows.columns
    except AnalysisException as error:
        raise InvalidOption("from", str(error).strip().partition("\n")[0]) from None
    if id_ is not None:
        if id_ not in columns:
            raise InvalidOption("id", f"there is no column {id_!r}; there are {', '.join(columns)}")
        rows = rows.withColumn("id", fn.col(f"`{id_}`").cast("string"))
    elif "id" in columns:
        rows = rows.withColumn("id", fn.col("id").cast("string"))
    if "payload" in columns:
        return rows.drop(id_) if id_ not in (None, *COLUMNS) else rows
    rest = [name for name in columns if name not in COLUMNS and name != id_]
    if not rest:
        raise InvalidOption("payload", "there is no column payload, and no other column to make one from")
    payload = fn.struct(*(fn.col(f"`{name}`") for name in rest)).alias("payload")
    return rows.select(*(name for name in rows.columns if name in COLUMNS), payload)


def enqueue(rows: DataFrame, store: str, tenant: str, options: Mapping[str, str]) -> int:
    """Enqueue the rows with the sink's options. Returns their number. Raises the sink's error."""
    with plainly("enqueue"):
        count = rows.count()
        rows.write.format("holdfast").options(store=absolute(store), tenant=tenant, **options).mode("append").save()
    return count
