import pytest

from holdfast import Queue
from tests.chaos.workers import TENANT
from tests.chaos.zygote import Zygote


@pytest.fixture
async def zygote():
    async with Zygote() as zygote:
        yield zygote


@pytest.fixture
def url(tmp_path):
    return f"file:{tmp_path}/store?test_clock=1"


@pytest.fixture
async def queue(url):
    async with Queue(url, tenant=TENANT) as queue:
        yield queue


@pytest.fixture
def log(tmp_path):
    return str(tmp_path / "log")
