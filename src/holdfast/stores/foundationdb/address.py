"""The address of a cluster: parses a store URL, and opens the database."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.core.errors import InvalidOption, StoreUnavailable
from holdfast.opening import CommonOptions, Options, StoreUrl

if TYPE_CHECKING:
    from holdfast.stores.foundationdb.database import Database

_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")


class FdbAddress(Struct, frozen=True):
    """A store URL of FoundationDB, read and checked."""

    cluster_file: str
    """The path of the cluster file; "": the one of this machine."""
    simulation: str | None
    """The name of a simulated cluster in this process."""
    prefix: str
    common: CommonOptions

    @property
    def place(self) -> str:
        """Identifies the data."""
        where = f"simulation={self.simulation}" if self.simulation is not None else self.cluster_file
        return f"{where}?prefix={self.prefix}"

    @property
    def shown(self) -> str:
        """Where the data is, for people."""
        if self.simulation is not None:
            return f"the simulation {self.simulation!r}"
        return self.cluster_file or "the default cluster file"


def read(url: StoreUrl) -> FdbAddress:
    """Parse the URL. Raises InvalidOption with what to write instead."""
    options = Options(url)
    common = options.common()
    prefix = options.text("prefix", "hf")
    simulation = options.text("simulation", "")
    options.finish()
    if not _PREFIX.fullmatch(prefix):
        raise InvalidOption("prefix", f"{prefix!r} is not 1 to 100 letters, digits, '.', '_', ':' or '-'")
    rest = url.rest.removeprefix("//") if url.rest.startswith("///") else url.rest
    if rest.startswith("//"):
        reason = f"{url.scheme}:{rest} names a host; write '{url.scheme}:' or '{url.scheme}:///path/to/fdb.cluster'"
        raise InvalidOption("store", reason)
    if simulation and rest:
        raise InvalidOption("simulation", "a simulated cluster has no cluster file")
    return FdbAddress(rest, simulation or None, prefix, common)


async def open_database(address: FdbAddress) -> Database:
    """Open the cluster of an address. Raises StoreUnavailable without its library."""
    if address.simulation is not None:
        from importlib import import_module

        # By name: the simulation is for tests, and the store does not depend on it.
        return import_module("holdfast.testing.fdb").open_simulation(address.simulation)
    try:
        from holdfast.stores.foundationdb.client import open_cluster
    except ModuleNotFoundError:
        raise
    except Exception as error:  # The package raises plain exceptions without the library, or with one too old.
        cure = "install the FoundationDB client package of the cluster's version"
        raise StoreUnavailable(f"libfdb_c cannot be used: {error} {cure}") from error
    return await open_cluster(address.cluster_file)
