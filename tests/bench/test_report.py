from __future__ import annotations

import io
import json
import math
import re
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

from bench import depth, goals, report, run, tables_peers
from bench.charts import Bar, Bars, Lines, chart, number_of
from bench.grounds import GROUNDS
from bench.measure import ALL_CORES, COMMIT, CORES, HELP, IMPORT, OURS, SETTLED, Figures
from bench.tables import CPU, RATES, WAITS

ABOUT = {"rounds": 5, "python": "3.11.7", "sqlite": "3.40.1", "system": "Linux x86_64", "processors": 2}
PAGE = """# Benchmarks

<!-- figures of disk -->
<!-- end of the figures of disk -->
Between.
<!-- figures of valkey -->
Of an earlier run.
<!-- end of the figures of valkey -->
After.
"""


def reported(group, *, faster=4.0):
    """As a run of five rounds says it: ours `faster` times as fast as each of the others."""
    figures = Figures()
    ground = GROUNDS.get(group)
    ours = ground.subject if ground else "file"
    others = [peer.name for peer in ground.peers] if ground else ["huey"]
    for turn in range(5):
        noise = 1 + turn / 50
        for subject, speed in ((ours, faster), *((name, 1.0) for name in others)):
            for measure in (*RATES, ALL_CORES):
                figures.add(measure, subject, 1000 * speed * noise)
            for measure in (*WAITS, CPU, "drain, server time"):
                figures.add(measure, subject, 10 / speed * noise)
    for waiting in depth.DEPTHS:
        figures.add(depth.measure(1, waiting), ours, 1.0)
        figures.add(depth.measure(100, waiting), ours, 3.0)
    for tenants in depth.TENANTS:
        figures.add(depth.measure_tenants(tenants), ours, math.log10(tenants) + 1)
    figures.add(SETTLED, ground.name if ground else "SQLite", 8000)
    figures.add(IMPORT, OURS, 50)
    figures.add(HELP, OURS, 250)
    figures.add(COMMIT, "SQLite", 1.0)
    peers = {name: {"versions": "1.0", "settings": "as it comes", "lacks": "events"} for name in others if ground}
    return {**ABOUT, "version": "9.1", "missing": {}, "peers": peers}, figures


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "benchmarks.md"
    path.write_text(PAGE)
    return path


def test_a_second_writing_changes_nothing(tmp_path, page):
    results = tmp_path / "results.json"
    for group in ("disk", "valkey"):
        run.keep(results, group, *reported(group))
    report.write(results, page)
    first = {path.name: path.read_text() for path in (page, *(tmp_path / "charts").iterdir())}
    assert set(first) == {"benchmarks.md", "disk.svg", "disk-claims.svg", "valkey.svg", "valkey-claims.svg"}
    assert "earlier run" not in first["benchmarks.md"]
    assert "Between.\n" in first["benchmarks.md"]
    assert first["benchmarks.md"].endswith("After.\n")
    report.write(results, page)
    assert {path.name: path.read_text() for path in (page, *(tmp_path / "charts").iterdir())} == first


def test_a_run_of_one_group_leaves_the_others(tmp_path, page):
    results = tmp_path / "results.json"
    run.keep(results, "valkey", *reported("valkey"))
    run.keep(results, "disk", *reported("disk"))
    run.keep(results, "valkey", *reported("valkey", faster=2.0))
    kept = json.loads(results.read_text())
    assert kept["disk"]["figures"]["drain"]["file"]["all"][0] == 4000
    assert kept["valkey"]["figures"]["drain"]["valkey"]["all"][0] == 2000


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no place for postgres"):
        report.between(PAGE, "postgres", "figures")


def test_every_table_has_as_many_cells_in_each_row():
    for group in ("disk", *GROUNDS):
        section, _ = report.made(group, *reported(group))
        tables = re.findall(r"(?:^\|.*\n?)+", section, re.MULTILINE)
        assert len(tables) >= 3
        for table in tables:
            assert len({line.count("|") for line in table.splitlines()}) == 1
        assert not re.search(r"\bnan\b", section)


def test_a_peer_that_is_missing_is_named_with_the_reason():
    about, figures = reported("valkey")
    about["missing"] = {"RQ": "not installed, npm is missing"}
    section, _ = report.made("valkey", about, figures)
    assert section.count("not installed, npm is missing") == 3


def test_a_chart_is_sound_xml_and_says_every_name():
    bars = Bars(
        "Drain <1>", "a second", [Bar("Holdfast", 27_500, 20_000, 30_000, is_ours=True), Bar("R&Q", 90, 80, 95)]
    )
    lines = Lines("Claims", "ms", "waiting", [("claim of 1", [(1_000, 0.2), (1_000_000, 0.3)])])
    root = ET.fromstring(chart("A & B", [bars, lines]))
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Drain <1>", "Holdfast", "R&Q", "27,500", "90", "claim of 1", "1,000,000"} <= set(words)
    assert "nan" not in chart("A & B", [bars, lines])


@pytest.mark.parametrize(
    "value, words", [(0, "0"), (27_512, "27,500"), (1.0612, "1.06"), (612.4, "612"), (0.0312, "0.0312")]
)
def test_a_number_is_as_short_as_it_says_enough(value, words):
    assert number_of(value) == words


def test_goals_are_reached_and_missed_by_what_was_found():
    _, figures = reported("valkey", faster=8.0)
    found = {goal.what: goal for goal in goals.on_valkey(figures, ["RQ", "arq"], ["BullMQ"])}
    assert found["drain / best in Python"].found == pytest.approx(8)
    assert found["drain / best in Python"].verdict == "yes"
    assert found["request/response p50, not worse than RQ"].verdict == "yes"
    assert found["claim of 100 over 10,000 tenants / one"].verdict == "no"
    _, figures = reported("valkey", faster=0.5)
    found = {goal.what: goal for goal in goals.on_valkey(figures, ["RQ", "arq"], ["BullMQ"])}
    assert {found["drain / BullMQ"].verdict, found["bulk enqueue, not worse than RQ"].verdict} == {"no"}


def test_a_file_is_held_to_the_disk_and_to_how_soon_a_program_is_there():
    found = {goal.what: goal.verdict for goal in goals.on_disk(reported("disk")[1])}
    assert found["claim of 100 over 10,000 tenants / one"] == "no"
    assert (found["import holdfast, ms"], found["holdfast --help, ms"]) == ("yes", "no")
    section, _ = report.made("disk", *reported("disk"))
    assert "`import holdfast` takes 50 ms, `holdfast --help` 250 ms." in section
    assert re.search(r"^\| drain \| huey, .* \| 0\.52 \|$", section, re.MULTILINE)  # Beside the raw limit.


def test_a_peer_without_a_bulk_call_is_compared_by_its_best_call():
    figures = Figures()
    figures.add("awaited enqueue", "huey", 3_000)
    figures.add("concurrent enqueue", "platformatic", 20_000)
    figures.add("bulk enqueue", "BullMQ", 10_000)
    names = ["huey", "platformatic", "BullMQ"]
    kinds = ("awaited enqueue", "concurrent enqueue", "bulk enqueue")
    assert [tables_peers.best(figures, kind, names).name for kind in kinds] == ["huey", "platformatic", "platformatic"]


def test_one_process_of_holdfast_is_compared_with_all_cores_of_a_peer():
    figures = Figures()
    for subject, measure, value in (
        ("valkey", "drain", 8_000),
        ("dramatiq", "drain", 1_000),
        ("dramatiq", ALL_CORES, 2_000),
    ):
        figures.add(measure, subject, value)
    console = Console(width=140, record=True, file=io.StringIO())
    for table in tables_peers.beside_peers(GROUNDS["valkey"], figures, 1, {}):
        console.print(table)
    rows = {row.split("│")[1].strip(): row for row in console.export_text().splitlines() if row.startswith("│")}
    assert "8.00 x" in rows["drain, one worker process"]
    assert "2,000" in rows[f"drain, {CORES} worker processes"]
    assert "4.00 x" in rows[f"ours with one / theirs with {CORES}"]


def test_many_peers_are_shown_a_few_at_a_time():
    about, figures = reported("valkey")
    shown = [*tables_peers.beside_peers(GROUNDS["valkey"], figures, 5, {})]
    headers = [[str(column.header) for column in table.columns] for table in shown]
    assert [name for names in headers for name in names if name in about["peers"]] == [*about["peers"]]
    assert ["best in Python" in str(names) for names in headers] == [False, True]


def test_an_unmeasured_goal_is_neither_reached_nor_missed():
    assert {goal.verdict for goal in goals.on_postgres(Figures(), ["PgQueuer"], ["graphile-worker"])} == {
        "not measured"
    }
