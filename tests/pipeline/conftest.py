"""One Spark session for all tests of the pipeline in a process, and a fresh store of each kind."""

import os
import signal

import pytest

from holdfast.pipeline.build import build
from holdfast.pipeline.ingest import IngestPlan, ingest
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.session import make_session
from tests.machine import lacks_java, skip_for
from tests.pipeline.hostile import make_hostile
from tests.pipeline.settings import SETTINGS, environment, remember_names
from tests.pipeline.traffic import of_store

STORES = ("file", "valkey", "postgres")
# An interrupt while Java answers leaves an unusable session: better late than that.
LONG_S = 600


def pytest_collection_modifyitems(items):
    """All in one process, so that Spark is started once; none where there is no Java, but for CI."""
    lack = skip_for(lacks_java())
    for item in items:
        if item.path.parent.name == "pipeline":
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LONG_S))
            if lack:
                item.add_marker(pytest.mark.skip(reason=lack))


@pytest.fixture(scope="session")
def spark():
    os.environ.update(environment())
    remember_names()
    interrupt = signal.getsignal(signal.SIGINT)
    session = make_session("local[2,4]", conf=SETTINGS | {"spark.driver.memory": "2g"})
    # Spark's own handler raises KeyboardInterrupt: it would end this process in tests that send themselves the signal.
    signal.signal(signal.SIGINT, interrupt)
    yield session
    session.stop()


@pytest.fixture
def file_url(tmp_path):
    return f"file:{tmp_path / 'store'}"


@pytest.fixture
def valkey_url(valkey, prefix):
    return valkey.url(prefix=prefix, shards=3)


@pytest.fixture
def postgres_url(postgres, database):
    return postgres.url(database)


@pytest.fixture(scope="session")
def history(spark, tmp_path_factory):
    """A lake of real jobs with hostile names, built, for tests that only look."""
    folder = tmp_path_factory.mktemp("history")
    url = f"file:{folder / 'store'}"
    of_store(url, make_hostile)
    lake = Lake(folder / "lake", create=True)
    ingest(spark, lake, IngestPlan(url))
    build(spark, lake)
    return lake


@pytest.fixture(params=STORES)
def url(request):
    return request.getfixturevalue(f"{request.param}_url")
