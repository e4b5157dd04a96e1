"""Parts for a store that keeps its data in this process: everything but the jobs themselves.

The memory store and the example store are made of them. Each table is plain data with the rules of one subject; the
store holds its lock while it uses one.
"""

from holdfast.tables.clock import Clock
from holdfast.tables.keys import KeyTable
from holdfast.tables.local import LocalStore, SideTables
from holdfast.tables.log import TableLog
from holdfast.tables.purges import PurgeTable
from holdfast.tables.settings import SettingsTable
from holdfast.tables.workers import WorkerTable

__all__ = ["Clock", "KeyTable", "LocalStore", "PurgeTable", "SettingsTable", "SideTables", "TableLog", "WorkerTable"]
