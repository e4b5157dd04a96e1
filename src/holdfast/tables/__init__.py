"""Parts for a store that keeps its data in this process: everything except the jobs.

The memory store and the example store use them. Each table is plain data with the rules of one subject. The store
holds its lock while it uses one.
"""

from holdfast.tables.clock import Clock
from holdfast.tables.keys import KeyTable
from holdfast.tables.local import LocalStore, SideTables
from holdfast.tables.log import TableLog
from holdfast.tables.purges import PurgeTable
from holdfast.tables.settings import SettingsTable
from holdfast.tables.workers import WorkerTable

__all__ = ["Clock", "KeyTable", "LocalStore", "PurgeTable", "SettingsTable", "SideTables", "TableLog", "WorkerTable"]
