"""What a store declares beside its opener is all that the rest of Holdfast knows of it."""

import ast
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from holdfast.core.errors import InvalidOption
from holdfast.kinds import GROUP, StoreKind, kind_of
from holdfast.opening import absolute, check_shared, existing, make_store, parse_url, shown_url
from holdfast.pipeline.positions import POSITION_WIDTH, offset_before, positions
from holdfast.testing.conformance import Spaces
from tests.installed import installed

ROOT = Path(__file__).parents[2]
SOURCES, TESTS = ROOT / "src" / "holdfast", ROOT / "tests"

VAULT = """
from holdfast.kinds import OffsetForm, store_kind

@store_kind(
    install="holdfast-vault[driver]", create_option="build", space_option="room",
    offsets=OffsetForm(by_shard=True, used=2),
)
def open_vault(url):
    import vault_driver

@store_kind(place="directory", create_option="dig")
def open_cellar(url):
    pass

@store_kind(place="process")
def open_pocket(url):
    pass

def open_plain(url):
    pass
"""


@pytest.fixture(scope="module")
def stores():
    """The stores of another package."""
    openers = {name: f"open_{name}" for name in ("vault", "cellar", "pocket", "plain")}
    with installed("vault_store", VAULT, **openers):
        yield


@pytest.mark.usefixtures("stores")
class TestAStoreOfAnotherPackageDeclares:
    def test_a_store_declares_what_to_install(self):
        with pytest.raises(InvalidOption) as raised:
            make_store("vault://host")
        assert str(raised.value) == (
            "store: vault: needs vault_driver; install it with: pip install 'holdfast-vault[driver]'"
        )

    def test_a_store_declares_the_option_that_creates_it(self):
        assert existing("vault://host?a=1") == "vault://host?a=1&build=0"
        assert existing("cellar:./below") == "cellar:./below?dig=0"
        assert existing("cellar:./below?dig=1") == "cellar:./below?dig=1"
        assert existing("plain://host") == "plain://host"

    def test_a_store_declares_that_its_url_names_a_directory(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert absolute("cellar:a?dig=1") == f"cellar:{tmp_path}/a?dig=1"
        assert absolute("vault:a") == "vault:a"

    def test_a_store_declares_whether_its_url_can_have_a_login(self):
        assert shown_url("vault://me:secret@host") == "vault://me:***@host"
        assert shown_url("cellar:///a:b@c") == "cellar:///a:b@c"
        assert parse_url("cellar:///a?b=@").options == {"b": "@"}
        with pytest.raises(InvalidOption, match="there is an '@' after"):
            parse_url("vault://host?b=@")

    def test_a_store_declares_that_other_processes_cannot_open_it(self):
        with pytest.raises(InvalidOption, match="DST: a pocket: store ends soon"):
            check_shared("DST", "pocket:a", "ends soon")
        check_shared("DST", "cellar:a", "ends soon")

    def test_a_store_declares_how_its_offsets_become_positions(self):
        one, two = "7".zfill(POSITION_WIDTH), "12".zfill(POSITION_WIDTH)
        assert positions("vault://host", "7.12.999") == [one, two]
        assert positions("plain://host", "7.12") == [f"{one}.{two}"]
        assert offset_before("vault://host", 0, "7.12.999") == "6.12"
        assert offset_before("vault://host", 1, "7.12.999") == "7.11"
        assert offset_before("plain://host", 0, "7.12") == "7.11"

    def test_a_store_declares_where_the_conformance_suite_works(self):
        for url, place in (
            ("vault://host?room=a", "vault://host?room=a-{}"),
            ("cellar:a", "cellar:a/{}"),
            ("pocket:a", "pocket:a{}"),
        ):
            spaces = Spaces(url)
            assert spaces.url("x") == place.format(f"{spaces.run}-x")
        with pytest.raises(InvalidOption, match="plain: declares no `space_option`"):
            Spaces("plain://host").url("x")

    def test_an_empty_declaration_has_the_defaults(self):
        assert kind_of("plain://host") == kind_of("unknown://host") == StoreKind()


def test_a_declaration_of_ours_loads_without_a_driver_and_names_what_to_install():
    drivers = {"redis": "redis", "postgresql": "asyncpg", "https": "httpx", "fdb": "fdb"}
    program = f"""
import sys
drivers = {drivers!r}
class NotInstalled:
    def find_spec(name, path, target=None):
        if name in drivers.values():
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, NotInstalled)
from holdfast.core.errors import InvalidOption
from holdfast.opening import make_store
for scheme in drivers:
    try:
        make_store(scheme + (":" if scheme in ("fdb",) else "://localhost/x"))
    except InvalidOption as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    extras = {"redis": "redis", "postgresql": "postgres", "https": "http", "fdb": "fdb"}
    assert done.stdout.splitlines() == [
        f"store: {scheme}: needs {driver}; install it with: pip install 'holdfast[{extras[scheme]}]'"
        for scheme, driver in drivers.items()
    ]


# No name of a store outside the stores ------------------------------------------------------------------------------

OTHER_THINGS = {
    SOURCES / "blobs.py": {"memory", "file"},  # where blobs are
    SOURCES / "service" / "keys.py": {"file", "http", "https"},  # where the keys for tokens are
    **{SOURCES / "dashboard" / name: {"https"} for name in ("access.py", "app.py", "oidc.py")},  # how a browser asks
    SOURCES / "dashboard" / "guard.py": {"http", "https"},
    SOURCES / "testing" / "fdb" / "server.py": {"fdb"},  # the name of the driver
}
"""Places whose URLs are not those of stores."""


def compared(path, *, strict):
    """The names of stores that a file compares with. `strict`: also in assertions, and as keys of tables."""
    schemes = {point.name for point in entry_points(group=GROUP) if point.dist.name == "holdfast"}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped = {id(node) for one in ast.walk(tree) if isinstance(one, ast.Assert) for node in ast.walk(one)}
    found = {}
    for node in ast.walk(tree):
        if not strict and id(node) in skipped:
            continue
        match node:
            case ast.Compare():
                parts = [node.left, *node.comparators]
            case ast.Call(func=ast.Attribute(attr="startswith" | "endswith")):
                parts = node.args
            case ast.MatchValue():
                parts = [node.value]
            case ast.Dict() if strict:
                parts = [key for key in node.keys if key]
            case _:
                continue
        words = {one.value for part in parts for one in ast.walk(part) if isinstance(one, ast.Constant)}
        for word in words:
            if isinstance(word, str) and word.rstrip(":/") in schemes:
                found.setdefault(word.rstrip(":/"), node.lineno)
    return found


def test_no_module_outside_the_stores_compares_with_the_name_of_a_store():
    found = {
        f"{path}:{line}": name
        for path in SOURCES.rglob("*.py")
        if SOURCES / "stores" not in path.parents
        for name, line in compared(path, strict=True).items()
        if name not in OTHER_THINGS.get(path, ())
    }
    assert not found


def test_no_test_asks_for_a_kind_of_store():
    """A test names a capability, or has a table by kind. An assertion may say what a name is to be."""
    found = {
        f"{path}:{line}": name for path in TESTS.rglob("*.py") for name, line in compared(path, strict=False).items()
    }
    assert not found


def test_each_listed_exception_still_exists():
    assert {path: set(compared(path, strict=True)) for path in OTHER_THINGS} == OTHER_THINGS


def test_the_search_finds_a_comparison_with_a_store(tmp_path):
    for line in (
        'if scheme == "redis": pass', 'x = url.startswith(("file:", "a"))', 'if x in ("postgres", "b"): pass',
        'match x:\n case "memory": pass', 'x = {"valkey": 1}',
    ):  # fmt: skip
        path = tmp_path / "one.py"
        path.write_text(line)
        assert compared(path, strict=True), line
