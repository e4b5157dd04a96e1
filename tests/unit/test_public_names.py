from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import holdfast


def _words(text: str) -> list[str]:
    return text.split()


ERRORS = _words("""
    HoldfastError InvalidName InvalidOption InvalidPayload PayloadTooLarge QuotaExceeded JobNotFound NotReplayable
    PartlyRefused LeaseLost LeaseExpired JobCanceled JobFailed WaitTimeout ResultExpired ResultTooLarge EventsTrimmed
    UnknownJobType UnknownCodec Unsupported StoreUnavailable StoreBusy StoreMismatch
""")
NAMES = _words("""
    Queue Worker Ticket JobRecord Message RetryPolicy Permanent RetryLater JobState Event Capabilities BlobRef Schedule
    job current_job Flow FlowRecord
""")


@pytest.mark.parametrize("name", ERRORS + NAMES)
def test_every_public_name_exists(name):
    assert getattr(holdfast, name).__name__ == name
    assert name in holdfast.__all__


@pytest.mark.parametrize("name", ERRORS)
def test_every_error_is_a_holdfast_error(name):
    assert issubclass(getattr(holdfast, name), holdfast.HoldfastError)


def test_nothing_but_public_names_is_exported():
    """`dir` and completion show only public names; modules are imported by their own names."""
    everything = [value for name, value in vars(holdfast).items() if not name.startswith("_")]
    strangers = [value for value in everything if not isinstance(value, ModuleType)]
    assert {id(value) for value in strangers} <= {id(getattr(holdfast, name)) for name in holdfast.__all__}
    assert sorted(name for name in dir(holdfast) if not name.startswith("__")) == sorted(holdfast.__all__)
    assert not {"annotations", "TYPE_CHECKING", "Any", "import_module"} & set(vars(holdfast))
    program = "from holdfast import *; print(' '.join(name for name in dir() if not name.startswith('__')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(holdfast.__all__)


def test_a_missing_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'Quue'"):
        _ = holdfast.Quue


def test_importing_needs_only_msgspec_and_loads_no_event_loop():
    program = """
import sys
sys.modules["typing_extensions"] = None  # msgspec takes it where it is, and needs it not
before = set(sys.modules)
import holdfast
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(roots - set(sys.stdlib_module_names) - {"holdfast", "msgspec"})))
print(" ".join(name for name in sys.modules if name.startswith(("holdfast.worker", "asyncio"))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
