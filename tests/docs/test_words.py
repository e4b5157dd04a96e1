"""One word for one thing: words and names that are retired, and class names with two meanings.

Each area of the sources and docs is a test of its own, which lists what is left:
`pytest -q tests/docs/test_words.py -k redis`.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORES = "src/holdfast/stores"
TEXT = {".css", ".html", ".js", ".lua", ".md", ".py", ".pyi", ".sh", ".sql", ".toml", ".txt", ".yaml", ".yml", ""}

AREAS = {
    "postgres": (f"{STORES}/postgres/", "docs/howto/postgres.md", r"docs/adr/00(07|08|09|10|13|23)"),
    "foundationdb": (f"{STORES}/foundationdb/", "docs/howto/foundationdb.md", "docs/adr/0031"),
    "redis": (f"{STORES}/redis/", "docs/howto/redis.md", r"docs/adr/00(06|22)"),
    "filemem": (f"{STORES}/(file|memory)", "src/holdfast/tables/", "examples/", r"docs/adr/00(03|15)"),
    "service": (
        "src/holdfast/(service|protocol|telemetry)/",
        f"{STORES}/(http/|__init__)",
        "docs/howto/(serve|http-client|telemetry).md",
        "docs/(security|reference/http).md",
        r"docs/adr/00(17|18|24)",
        "bench/http",
        "SECURITY.md",
    ),
    "dashboard": ("src/holdfast/dashboard/", "docs/howto/dashboard.md", r"docs/adr/0028"),
    "worker": (
        "src/holdfast/(worker|maintenance|migrate)/",
        "docs/howto/(run-in-production|move-a-tenant|fastapi).md",
        r"docs/adr/0012",
    ),
    "pipe": (
        "src/holdfast/(pipeline|cli|demo)/",
        "src/pyspark_holdfast.py",
        "docs/(pipeline.md|tutorials/)",
        "docs/howto/(feed-and-work-on-spark|look-after-a-lake|pipeline-on-a-cluster|read-the-lake|test-the-pipeline).md",
        "docs/reference/(lake-and-store|query|spark-source|tables).md",
        r"docs/adr/00(11|19)",
    ),
    "queue": (
        "src/holdfast/(queue|jobs|schedules|flows|core)/",
        r"src/holdfast/\w+\.pyi?$",
        "docs/howto/(change-a-job|flows|idempotency|large-payloads|retries-and-dead-letters|schedules|tenants).md",
        r"docs/adr/00(01|02|04|05|14|16|20|21)",
    ),
    "reference": ("docs/reference/(cli|metrics|python|settings).md",),
    "general": ("src/holdfast/testing/", "docs/", "bench/", "scripts/", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    "tests": ("tests/(?!docs/test_words)",),
    "build": ("Makefile", "pyproject.toml", ".ci/", ".github/", ".pre-commit-config.yaml"),
}
"""Where each area is: the first pattern that fits takes a file. The reference is made from docstrings."""

WORDS = {
    # Parts of a program are not persons.
    **dict.fromkeys(
        ("whoever", "whomever", "nobody", "somebody", "everybody", "anybody"), "name the process or the part"
    ),
    **dict.fromkeys(("he", "him", "his", "himself"), "it, its"),
    **dict.fromkeys(("told", "news", "tidings"), "notified, learns; a notification"),
    **dict.fromkeys(("ear", "ears", "voice", "deaf", "hark", "harks"), "listener, notifier; misses notifications"),
    **dict.fromkeys(("bell", "bells", "ring", "rings"), "notify, a hint"),
    **dict.fromkeys(("offer", "offers", "offered"), "a waiter; registers"),
    **dict.fromkeys(("errand", "errands"), "step input"),
    **dict.fromkeys(("so many", "so often", "so long as", "so much as"), "the most, how often, a number of"),
    **dict.fromkeys(("straight on", "hand over", "hands over", "handed over", "handing over"), "hand off, directly"),
    **dict.fromkeys(("stands", "lies"), "is"),
    "lone": "single",
    "posts": "inboxes",
    "worn": "attempts exhausted",
    "conductor": "flow",
    "workflow": "flow",
    "doubtful": "needs_rescan",
    "stretch": "log range",
    "intake": "parsing",
}
"""Retired in prose and as a part of an identifier, with what to say instead."""

EXEMPT = {"stands for", "workflow }}", "workflows", 'nobody"', "nobody' cannot"}
"""Not retired: an abbreviation stands for something; CI has workflows; Unix has a user "nobody"."""

NAMES = {
    **dict.fromkeys(("Book", "Books"), "WaiterTable, MoveLog"),
    **dict.fromkeys(("Post", "Posts"), "WorkerInbox"),
    "Held": "Lease, ActiveJob, LockedRow",
    "Link": "Client, Connection",
    **dict.fromkeys(("Way", "Course"), "Mapping, MoveRecord"),
    **dict.fromkeys(("Reach", "Stretch"), "bounds, LogRange"),
    **dict.fromkeys(("Hub", "hub"), "context"),
    **dict.fromkeys(("tell", "tell_all", "tell_others"), "notify"),
    **dict.fromkeys(("Unit", "Tails"), "UnitOfWork, EventCache"),
}
"""Retired identifiers whose word may still be used in prose."""
CONSTANTS = re.compile(r"\b_?(?:MOST|FEW|LOOKS|AGAIN)(?:_[A-Z]+)*\b")
"""MAX_..., MIN_..., SCAN_LIMIT, RETRY_S."""
DRY = re.compile(r"\b(?:is_|_)?dry\b(?![-_ ]?run)")
MODULES = {
    "administration", "binding", "book", "conductor", "ears", "edge", "hub", "intake", "link", "lone", "moves",
    "offers", "posts", "reach", "stretch", "tails", "trouble", "unit", "wire",
}  # fmt: skip

TWINS = {
    ("Queue", "blocking"): "the same Queue without await",
    ("Ticket", "blocking"): "the same Ticket without await",
}
"""Names that two packages share on purpose, with the reason: (class, package that borrows it)."""

# A package keeps its class names against those that come later here.
RANK = [
    "core",
    "store",
    "extensions",
    "paging",
    "queue",
    "jobs",
    "schedules",
    "flows",
    "blobs",
    "worker",
    "maintenance",
]
RANK += ["testing", "telemetry", "protocol", "service", "migrate", "pipeline"]


@cache
def files() -> dict[str, list[str]]:
    """The files of each area."""
    found = defaultdict(list)
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().splitlines():
        if Path(name).suffix in TEXT and (ROOT / name).is_file():
            area = next((a for a, patterns in AREAS.items() if any(re.match(p, name) for p in patterns)), None)
            if area:
                found[area].append(name)
    return found


def report(found: list[tuple[str, str, str]]) -> str:
    """Counts by word, then the places."""
    counts = Counter(word for word, _, _ in found).most_common()
    lines = [f"{len(found)}: " + ", ".join(f"{word} {n}" for word, n in counts)]
    return "\n".join([*lines, *(f"{place}: {word} -> {better}" for word, place, better in found)])


def parts(text: str) -> str:
    """The text with its identifiers taken apart: `tell_ears` and `TellEars` become `tell ears`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", text)


PATTERN = re.compile(
    r"\b(" + "|".join(word.replace(" ", r"\s+") for word in sorted(WORDS, key=len, reverse=True)) + r")\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("area", AREAS)
def test_prose_and_names_use_plain_words(area: str) -> None:
    found = []
    for name in files()[area]:
        text = parts((ROOT / name).read_text(encoding="utf-8"))
        for match in PATTERN.finditer(text):
            if not any(text[match.start() :].lower().startswith(phrase) for phrase in EXEMPT):
                word = " ".join(match[0].lower().split())
                found.append((word, f"{name}:{text.count(chr(10), 0, match.start()) + 1}", WORDS[word]))
    assert not found, report(found)


def identifiers(name: str, text: str) -> Iterator[tuple[str, int]]:
    """The identifiers of a source with their lines; of Lua and SQL, all words."""
    if name.endswith((".py", ".pyi")):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NAME:
                yield token.string.strip("_"), token.start[0]
        return
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((word, number) for word in re.findall(r"[A-Za-z]\w*", line.partition("--")[0]))


@pytest.mark.parametrize("area", AREAS)
def test_retired_names_are_gone(area: str) -> None:
    found = []
    for name in files()[area]:
        if name.endswith(".md") or not name.startswith(("src/", "bench/", "scripts/", "examples/")):
            continue
        path = Path(name)
        if path.stem in MODULES and path.suffix in {".py", ".lua", ".sql"}:
            found.append((path.name, f"{name}:1", "words.md"))
        text = (ROOT / name).read_text(encoding="utf-8")
        found += [(word, f"{name}:{number}", NAMES[word]) for word, number in identifiers(name, text) if word in NAMES]
        for number, line in enumerate(text.splitlines(), 1):
            found += [(word, f"{name}:{number}", "MAX_, MIN_, SCAN_LIMIT, RETRY_S") for word in CONSTANTS.findall(line)]
            found += [(word, f"{name}:{number}", "exhausted") for word in DRY.findall(line)]
    assert not found, report(found)


def package(name: str) -> str:
    """The package of a file: a store counts as one."""
    names = Path(name).relative_to("src/holdfast").with_suffix("").parts
    return "/".join(names[:2]) if names[0] == "stores" else names[0]


def rank(name: str) -> tuple[int, str]:
    home = package(name)
    return (RANK.index(home) if home in RANK else len(RANK), name)


@cache
def classes() -> dict[str, list[str]]:
    """The files that define each class, the one that keeps the name first."""
    found = defaultdict(list)
    for path in (ROOT / "src/holdfast").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name.strip("_")].append(str(path.relative_to(ROOT)))
    return {name: sorted(set(places), key=rank) for name, places in found.items()}


def same_thing(first: str, second: str, name: str) -> bool:
    """One package; the same part of two stores; a body over HTTP and the record that it carries; or a listed pair."""
    if package(first) == package(second) or (name, package(second)) in TWINS:
        return True
    if first.startswith(STORES) and second.startswith(STORES):
        return Path(first).name == Path(second).name
    # `protocol` and the public records show what `core` decides, and are named after it.
    return package(second) in {"protocol", "queue"} and package(first) in {"core", "store", "queue", "flows"}


@pytest.mark.parametrize("area", AREAS)
def test_a_class_name_means_one_thing(area: str) -> None:
    found = []
    for name, (first, *others) in classes().items():
        clashes = [place for place in others if place in files()[area] and not same_thing(first, place, name)]
        found += [(name, place, f"{first} has it: another name") for place in clashes]
    assert not found, report(found)


def test_every_source_and_page_is_in_an_area() -> None:
    named = {name for names in files().values() for name in names}
    ours = [str(path.relative_to(ROOT)) for top in ("src", "docs") for path in (ROOT / top).rglob("*.*")]
    assert not [n for n in ours if Path(n).suffix in TEXT - {""} and n not in named and "__pycache__" not in n]
