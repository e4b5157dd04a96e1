"""What the README and the how-to pages say to type, typed."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.servers import ValkeyServer

ROOT = Path(__file__).parents[2]
FILE = re.compile(r"<!-- file: (\S+) -->\n```python\n(.*?)```", re.DOTALL)
PRINTS = re.compile(r"<!-- file: (\S+) -->\n```python\n.*?```\n\nIt prints[^\n]*:\n\n```text\n(.*?)```", re.DOTALL)
HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
SERVER = "redis://localhost:6379/0"
DATABASE = "postgresql://localhost/shop"
"""Where the pages say that a server is."""


@pytest.fixture(scope="module")
def server():
    with ValkeyServer() as server:
        yield server.url()


@pytest.fixture
def database(postgres, empty_database):
    """The address of a database that no test has used yet."""
    return postgres.url(empty_database)


def write_files(page: Path, folder: Path, said: str = "", place: str = "") -> list[str]:
    """Write the files of a page, with `place` where it said something else."""
    names = []
    for name, text in FILE.findall(page.read_text(encoding="utf-8")):
        (folder / name).write_text(text.replace(said, place) if said else text, encoding="utf-8")
        names.append(name)
    return names


def run(folder: Path, *command: str, **settings: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **settings}, text=True, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def directory():
    """The address that the README has."""
    return "file:./data"


@pytest.mark.parametrize("store", ["directory", "server", "database"])
def test_the_quick_start_works_as_written(tmp_path, store, request):
    """And with the URL of a server instead, as it says."""
    readme = ROOT / "README.md"
    url = request.getfixturevalue(store)
    assert write_files(readme, tmp_path, "file:./data", url) == ["shop.py", "signup.py"]
    assert run(tmp_path, sys.executable, "signup.py") == "queued email-123\nduplicate ready\n"
    command = [HOLDFAST, "worker", "shop", "--store", url, "--tenant", "acme"]
    worker = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    settings = {"HOLDFAST_STORE": url, "HOLDFAST_TENANT": "acme"}
    try:
        result = run(tmp_path, HOLDFAST, "result", "email-123", "--queue", "emails", "--wait", "30", **settings)
    finally:
        worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert "welcome -> a@example.com" in result
    assert "completed" in run(tmp_path, HOLDFAST, "status", "email-123", "--queue", "emails", **settings)
    assert "emails" in run(tmp_path, HOLDFAST, "stats", "emails", **settings)
    run(tmp_path, HOLDFAST, "dlq", "list", "--queue", "emails", **settings)
    assert "email-123" in run(tmp_path, HOLDFAST, "events", **settings)


def test_the_tests_of_the_page_on_testing_pass_in_pytest(tmp_path):
    assert write_files(ROOT / "docs/howto/test-your-code.md", tmp_path) == ["test_shop.py"]
    options = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"]
    assert "2 passed" in run(tmp_path, sys.executable, "-m", "pytest", *options, "test_shop.py")


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "howto").glob("*.md")), ids=lambda page: page.stem)
def test_the_programs_of_a_howto_page_run(page, tmp_path, request):
    text = page.read_text(encoding="utf-8")
    said, fixture = (DATABASE, "database") if f'"{DATABASE}"' in text else (SERVER, "server")
    place = request.getfixturevalue(fixture) if f'"{said}"' in text else said
    prints = dict(PRINTS.findall(text))
    for name in write_files(page, tmp_path, said, place):
        printed = run(tmp_path, sys.executable, name)
        assert printed == prints.get(name, printed)


@pytest.mark.parametrize(
    "page, shown",
    [
        ("schedules", [r"^scheduled nightly: next ", r"^nightly +30 2 \* \* \* +Europe/Berlin ", r"^removed nightly$"]),
        ("flows", [r"^steps +4 of 4 completed$"]),
    ],
)
def test_the_commands_of_a_howto_page_find_the_jobs_of_its_program(page, shown, tmp_path):
    path = ROOT / "docs" / "howto" / f"{page}.md"
    (name,) = write_files(path, tmp_path)
    run(tmp_path, sys.executable, name)
    lines = [shlex.split(line) for line in re.findall(r"^\$ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)]
    settings = dict(pair.split("=", 1) for line in lines if line[0] == "export" for pair in line[1:])
    said = [run(tmp_path, HOLDFAST, *line[1:], **settings) for line in lines if line[0] == "holdfast"]
    for output, wanted in zip(said, shown, strict=True):
        assert re.search(wanted, output, re.MULTILINE), output


def test_some_pages_say_what_their_programs_print():
    """So that the comparison above is one."""
    pages = [page.stem for page in (ROOT / "docs" / "howto").glob("*.md") if PRINTS.search(page.read_text())]
    assert sorted(pages) == ["idempotency", "retries-and-dead-letters", "tenants", "why-is-my-job-waiting"]


def test_the_index_leads_to_every_page():
    """And each has a title of its own."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr" and page.name != "index.md"]
    titles = [page.read_text(encoding="utf-8").splitlines()[0] for page in pages]
    assert all(title.startswith("# ") for title in titles)
    assert len(set(titles)) == len(titles)
    missing = [page.name for page in pages if f"]({page.relative_to(ROOT / 'docs')})" not in index]
    assert not missing


def test_the_glossary_is_in_alphabetical_order_with_one_line_for_each_term():
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    terms = [re.match(r"- \*\*(.+?)\*\*: ", line) for line in lines if line.startswith("- ")]
    names = [term[1].lower() for term in terms if term]
    assert len(names) == len(terms) > 50
    assert names == sorted(set(names))
    assert "](glossary.md)" in (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_a_large_payload_arrives(tmp_path):
    write_files(ROOT / "docs/howto/large-payloads.md", tmp_path)
    assert run(tmp_path, sys.executable, "thumbnails.py") == "1000000\n"


def test_the_redis_page_prints_what_it_shows(tmp_path, server):
    page = ROOT / "docs/howto/redis.md"
    assert write_files(page, tmp_path, SERVER, server) == ["on_redis.py", "own_client.py", "with_a_server.py"]
    assert run(tmp_path, sys.executable, "on_redis.py").splitlines() == [
        "sent to a@example.com",
        "nothing is kept: a restart loses every job",
    ]
    assert run(tmp_path, sys.executable, "own_client.py") == "queued\n"
    assert "email-1 ready" in run(tmp_path, sys.executable, "with_a_server.py")


def test_a_tenant_moves_as_the_page_shows(tmp_path, server):
    assert write_files(ROOT / "docs/howto/move-a-tenant.md", tmp_path, SERVER, server) == ["moving.py"]
    assert run(tmp_path, sys.executable, "moving.py").splitlines() == [
        "emails 3 moved; checksums equal: True",
        "sent to user2@example.com",
    ]


def test_the_postgres_page_prints_what_it_shows(tmp_path, database):
    page = ROOT / "docs/howto/postgres.md"
    names = ["on_postgres.py", "orders.py", "blocking_orders.py", "own_pool.py", "with_postgres.py"]
    assert write_files(page, tmp_path, DATABASE, database) == names
    assert "applied 0001" in run(tmp_path, HOLDFAST, "migrate", database)
    assert run(tmp_path, sys.executable, "on_postgres.py").splitlines() == [
        "sent to a@example.com",
        "fsync is off: a crash of the server's machine can lose everything.",
    ]
    assert run(tmp_path, sys.executable, "orders.py") == "None\ninvoiced\n"
    assert run(tmp_path, sys.executable, "blocking_orders.py") == "1\n"
    assert run(tmp_path, sys.executable, "own_pool.py") == "queued\n"
    assert "email-1 ready" in run(tmp_path, sys.executable, "with_postgres.py")


def test_the_role_of_the_postgres_page_has_the_rights_it_needs(tmp_path, postgres, database):
    """To work and to keep house; not to migrate."""
    page = ROOT / "docs/howto/postgres.md"
    name = database.rpartition("/")[2]
    grants = "".join(re.findall(r"^GRANT .*;$", page.read_text(encoding="utf-8"), re.MULTILINE))
    run(tmp_path, HOLDFAST, "migrate", database)
    postgres.sql("CREATE ROLE app LOGIN")
    try:
        postgres.sql(grants, name)
        url = database.replace("postgres@", "app@")
        write_files(page, tmp_path, DATABASE, f"{url}?migrate=0")
        assert "sent to a@example.com" in run(tmp_path, sys.executable, "on_postgres.py")
        code = "import asyncio\nfrom holdfast.opening import open_store\n"
        code += f"async def main():\n    store = await open_store({url!r})\n    print(await store.prune(10))\n"
        code += "    await store.close()\nasyncio.run(main())\n"
        assert "Pruned" in run(tmp_path, sys.executable, "-c", code)
    finally:
        postgres.sql(f"DROP DATABASE {name} WITH (FORCE)")
        postgres.sql("DROP ROLE app")


def test_the_user_of_the_redis_page_has_the_rights_it_needs(tmp_path):
    page = ROOT / "docs/howto/redis.md"
    (line,) = re.findall(r"^ACL SETUSER .*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    with ValkeyServer() as server:
        server.command(*line.split())
        url = server.url().replace("//", "//jobs:PASSWORD@")
        write_files(page, tmp_path, SERVER, url)
        assert "sent to a@example.com" in run(tmp_path, sys.executable, "on_redis.py")
        run(tmp_path, HOLDFAST, "doctor", url)
        server.command("ACL", "SETUSER", "jobs", "+config|get")
        assert "nothing is kept" in run(tmp_path, HOLDFAST, "doctor", url)


def test_the_reference_says_what_the_code_says(tmp_path):
    run(tmp_path, sys.executable, str(ROOT / "scripts" / "make_reference.py"), "--check")


def test_links_between_pages_have_targets():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
