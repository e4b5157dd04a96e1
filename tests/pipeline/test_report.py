"""The report and the triage: hostile names do no harm, an empty lake says so, the numbers are those of the tables."""

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from holdfast import charts
from holdfast.core.errors import InvalidOption
from holdfast.core.events import fingerprint
from holdfast.core.job import AttemptError
from holdfast.pipeline.batches import Batch
from holdfast.pipeline.build import build
from holdfast.pipeline.figures import Figures, forecast
from holdfast.pipeline.lake import Lake
from holdfast.pipeline.report import render, report
from holdfast.pipeline.triage import quoted, triage
from tests.pipeline.histories import frame, to_row
from tests.pipeline.traces_by_hand import born, claimed, completed, failed

pytestmark = pytest.mark.xdist_group("spark")

HOSTILE = "<script>alert('x')</script>"
NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def lake(spark, tmp_path_factory):
    """Two days of jobs of an honest and of a hostile tenant, built."""
    lake = Lake(tmp_path_factory.mktemp("lakes") / "lake", create=True)
    rows = []
    for n in range(60):
        job = f"job-{n}", "honest" if n % 3 else HOSTILE
        at = 1_893_456_000_000 + n * 2_400_000
        rows += [born(*job, at), claimed(*job, at + 1000, n + 1)]
        rows += [failed(*job, at + 3000, n + 1, AttemptError("Boom", f"{HOSTILE} {n}"))] if n % 5 == 0 else [
            completed(*job, at + 3000, n + 1)
        ]  # fmt: skip
    rows = [to_row(event) | {"offset": str(n), "position": f"{n:018d}"} for n, event in enumerate(rows)]
    frame(spark, rows).write.partitionBy("date", "batch").parquet(str(lake.path("events")))
    lake.record_batch(Batch(0, len(rows)))
    build(spark, lake)
    return lake


class Page(HTMLParser):
    """What a browser makes of it."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.links = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data):
        self.words.append(data)


def test_the_report_shows_the_numbers_and_hostile_text_only_as_text(spark, lake, tmp_path):
    text = report(spark, lake, tmp_path / "out" / "report.html").read_text()
    page = Page(text)
    said = " ".join(page.words)
    assert "script" not in page.tags
    assert page.links == []
    assert HOSTILE in said
    assert page.tags.count("svg") == 2 * 5
    assert page.tags.count("details") == 5
    assert re.search(r"enqueued</dt><dd>60<", text)
    assert re.search(r"completed</dt><dd>48<", text)
    assert re.search(r"failed</dt><dd>12<", text)
    assert "default-src 'none'" in text
    assert "80.00 %" in said
    assert list(tmp_path.glob("out/.*")) == []


def test_a_report_of_an_empty_lake_says_so(spark, tmp_path):
    lake = Lake(tmp_path / "lake", create=True)
    text = report(spark, lake, tmp_path / "report.html").read_text()
    assert "Nothing here yet" in text
    assert "holdfast pipeline build" in text


def test_a_title_is_escaped_too():
    assert "<script" not in render(Figures(), title=HOSTILE, now=NOW)


def test_the_forecast_is_the_mean_of_the_same_hour_and_leaves_the_last_hour_out():
    hours = [NOW + timedelta(hours=n) for n in range(50)]
    counts = {hour: 10 if hour.day == 1 else 20 for hour in hours}
    counts[hours[-1]] = 1_000_000
    expected = forecast(counts, hours[-1])
    assert [one.hour for one in expected] == [hours[-1] + timedelta(hours=n) for n in range(1, 25)]
    assert {(one.mean, one.low, one.high) for one in expected if one.hour.hour == 5} == {(15, 10, 20)}
    assert forecast({NOW: 5}, NOW) == []


def test_dead_letters_are_grouped_by_cause_with_the_condition_that_picks_them(spark, lake):
    found = triage(spark, lake)
    assert found.total == 12
    (cause,) = found.causes
    assert cause.fingerprint == fingerprint(AttemptError("Boom", f"{HOSTILE} 0"))
    assert (cause.count, cause.tenants, cause.some_tenants) == (12, 2, [HOSTILE, "honest"])
    assert (cause.sample, cause.sample_job) == (f"{HOSTILE} 55", "job-55")
    assert cause.first_at == datetime(2030, 1, 1, 0, 0, 3, tzinfo=UTC)
    picked = lake.read(spark, "job_runs").where(cause.where)
    assert picked.count() == 12
    assert triage(spark, lake, where="tenant = 'absent'").total == 0
    json.dumps(found.document(), default=str)


def test_a_condition_that_makes_no_sense_is_refused_with_the_columns(spark, lake):
    with pytest.raises(InvalidOption, match=r"colour.*The columns are: tenant, queue"):
        triage(spark, lake, where="colour = 'red'")
    with pytest.raises(InvalidOption, match="cannot be read as one"):
        triage(spark, lake, where="tenant = = 1")


def test_a_quoted_text_means_itself(spark):
    text = "it's a \\ 'test'"
    assert spark.sql(f"SELECT {quoted(text)}").collect()[0][0] == text


@pytest.mark.parametrize("most", [0.7, 1, 1.2, 3.3, 4.6, 77, 4002])
def test_an_axis_has_round_numbers(most):
    ticks = charts.Scale(most).ticks()
    assert ticks[-1] >= most
    assert ticks == [round(tick, 1) for tick in ticks]


@pytest.mark.parametrize("size", [charts.WIDE, charts.NARROW])
@pytest.mark.parametrize("least, most", [(0, 0), (0, 3), (0.5, 9e8), (0, 4e6), (70_000, 900_000), (120, 121)])
def test_labels_of_an_axis_for_durations_do_not_touch(least, most, size):
    scale = charts.LogScale(least, most, size)
    heights = [scale.y(tick) for tick in scale.ticks()]
    assert len(heights) > 1
    assert all(above - below >= size.letters for above, below in pairwise(heights))
    assert charts.TOP <= scale.y(most) <= scale.y(least) <= size.height - charts.BOTTOM


def test_a_single_hour_is_a_dot_and_equal_lines_stay_visible():
    hours = [NOW + timedelta(hours=n) for n in range(168)]
    lines = [charts.Series(name, "c1", [5.0 if n == 80 else None for n in range(168)]) for name in ("99", "95", "50")]
    drawn = charts.Chart("wait", "Wait", hours, lines, str, logarithmic=True).svg()
    radii = [float(found) for found in re.findall(r'<circle [^>]* r="([^"]+)"', drawn)]
    assert radii == sorted(set(radii), reverse=True) * 2
    assert len(radii) == 2 * len(lines)
