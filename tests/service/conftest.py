"""Stores of each kind, and a service on one of them."""

import uuid

import pytest
import pytest_asyncio

from tests.service.support import Issuer, serving


@pytest.fixture
def tenant():
    """A tenant of the test's own."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def prefix():
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def database(postgres, prefix):
    postgres.sql(f"CREATE DATABASE {prefix}")
    yield prefix
    postgres.sql(f"DROP DATABASE {prefix} WITH (FORCE)")


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory):
    return f"file:{tmp_path_factory.mktemp('store')}/data?test_clock=1"


@pytest.fixture(scope="module")
def shared_valkey(valkey, prefix):
    return valkey.url(prefix=prefix, test_clock=1)


@pytest.fixture(scope="module")
def shared_postgres(postgres, database):
    return postgres.url(database, test_clock=1)


@pytest.fixture(scope="module", params=["file", "valkey", "postgres"])
def url(request):
    """A store of each kind, with a clock that can be moved."""
    return request.getfixturevalue(f"shared_{request.param}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(url):
    """One server for the tests of a module, on each kind of store; the tests use different tenants."""
    async with serving(url) as service:
        yield service


@pytest_asyncio.fixture(loop_scope="module")
async def client(service, tenant):
    return await service.client(tenant)


@pytest.fixture
def issuer():
    issuer = Issuer()
    yield issuer
    issuer.close()
