"""The report as a browser shows it: real jobs of tenants with hostile names, in Debian's Chromium."""

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from playwright.sync_api import sync_playwright

from holdfast.pipeline.figures import PERCENTS, Figures, forecast
from holdfast.pipeline.report import render, report
from tests.machine import chromium, skip_for
from tests.pipeline.hostile import HOSTILE, QUEUES, TENANTS
from tests.pipeline.settings import FULL

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

FLAGS = ("--no-sandbox", "--disable-background-networking")
CHARTS = ("throughput", "wait", "run", "budget")
SIZES = {"phone": (360, 740), "desk": (1280, 900)}
SCHEMES = {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 18, 22)"}
"""And the colour behind all."""
DRAWN = {"phone": "narrow", "desk": "wide"}
ROWS = 20
OUTSIDE = """cards => cards.flatMap(card => {
    const edges = card.getBoundingClientRect()
    const all = [...card.querySelectorAll('svg text')].map(label => [label.textContent, label.getBoundingClientRect()])
    const seen = all.filter(([, box]) => box.width)
    const meet = (a, b) => a.left < b.right && b.left < a.right && a.top + 3 < b.bottom && b.top + 3 < a.bottom
    const out = seen.filter(([, box]) => box.left < edges.left + 1 || box.right > edges.right - 1)
    const close = seen.filter(([, box], n) => seen.slice(n + 1).some(([, other]) => meet(box, other)))
    return out.concat(close).map(([text]) => text)
})"""
"""Labels that stick out of their card, or meet each other."""
CUT = "boxes => boxes.filter(at => at.scrollHeight > at.clientHeight || at.scrollWidth > at.clientWidth).length"
HEIGHTS = "codes => codes.map(code => Math.round(code.getBoundingClientRect().height))"
LOOKS = [*product(SCHEMES, SIZES)] if FULL else [("light", "phone"), ("dark", "desk")]


@pytest.fixture(scope="module")
def page_file(spark, history, tmp_path_factory):
    return report(spark, history, tmp_path_factory.mktemp("page") / "report.html", title=f"Jobs {HOSTILE}")


@pytest.fixture(scope="module")
def long_file(tmp_path_factory):
    """A week in which there was little to do, with as many rows as a table can have."""
    hours = [datetime(2030, 1, 1, 5, tzinfo=UTC) + timedelta(hours=n) for n in range(168)]
    some = [5 if n % 9 == 0 else 0 for n in range(168)]
    slow = [dict.fromkeys((1, 200, 400), 1) if count else {} for count in some]
    rows = [
        {"tenant": f"tenant-{n}", "queue": "mail"}
        | dict.fromkeys(("enqueued", "completed", "failed", "retried", "expired", "canceled"), 10**5)
        | {f"{measure}_p{percent}": 98_765.4 for measure in ("wait", "run") for percent in PERCENTS}
        | {"error_type": "ValueError", "fingerprint": f"{n:016x}", "type": "send", "sample": "no luck " * 50}
        | {"count": 9, "dead": 9, "tenants": 3, "first_seen_at": hours[0], "last_seen_at": hours[-1]}
        for n in range(ROWS)
    ]
    found = Figures(
        hours, defaultdict(lambda: some), slow, slow, some, some, 0.99, 30_000, rows, rows, rows,
        forecast(dict(zip(hours, some, strict=True)), hours[-1]),
    )  # fmt: skip
    file = tmp_path_factory.mktemp("long") / "report.html"
    file.write_text(render(found, title="Long", now=hours[-1]), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def looks(page_file, long_file):
    """What is seen of the page, by scheme and size."""
    if lack := skip_for("" if chromium() else "there is no Chromium; install it, on Debian with: apt install chromium"):
        pytest.skip(lack)
    # Playwright runs an event loop in its thread, where no other could run then.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_look, page_file, long_file).result()


def _look(file, long_file):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium() or "chromium", args=list(FLAGS))
        seen = {look: _seen(browser, file, *look) | _seen_of_tables(browser, long_file, *look) for look in LOOKS}
        browser.close()
        return seen


def _seen(browser, file, scheme, size):
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.screenshot(path=file.with_name(f"{scheme}-{size}.png"), full_page=True)
    for summary in page.locator("summary").all():
        summary.click()
    charts = {
        chart.get_attribute("aria-labelledby"): (chart.bounding_box(), _widest(chart.locator("polyline, circle").all()))
        for chart in page.locator("svg:visible").all()
    }
    seen = {
        "said": said, "asked": asked, "charts": charts,
        "foreign": page.locator("script, img").count(),
        "width": page.evaluate("document.documentElement.scrollWidth"),
        "background": page.evaluate("getComputedStyle(document.body).backgroundColor"),
        "title": page.locator("h1").inner_text(),
        "text": page.locator("main").inner_text(),
    }  # fmt: skip
    page.close()
    return seen


def _seen_of_tables(browser, file, scheme, size):
    """What is seen of long tables: at first, when all is asked for, and on paper."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.goto(file.as_uri())
    page.screenshot(path=file.with_name(f"{scheme}-{size}.png"), full_page=True)
    rows = page.locator("tbody tr:visible")
    seen = {"rows": [rows.count()], "outside": page.locator("section").evaluate_all(OUTSIDE)}
    seen["code_heights"] = set(page.locator("code:visible").evaluate_all(HEIGHTS))
    page.locator(".more input").first.check()
    seen["rows"].append(rows.count())
    page.locator(".more input").first.uncheck()
    page.set_viewport_size({"width": 717, "height": 1000})  # A4 with Chromium's margins
    page.emulate_media(media="print")
    seen["rows"].append(rows.count())
    seen["cut"] = page.locator(".scroll:visible").evaluate_all(CUT)
    page.close()
    return seen


def _widest(lines):
    return max((line.bounding_box()["width"] for line in lines), default=0)


@pytest.mark.parametrize("scheme, size", LOOKS)
def test_the_report_shows_its_charts_and_asks_for_nothing(looks, page_file, scheme, size):
    seen = looks[scheme, size]
    assert seen["said"] == []
    assert seen["asked"] == [page_file.as_uri()]
    assert seen["foreign"] == 0
    for name in CHARTS:
        box, line = seen["charts"][f"{name}-{DRAWN[size]}"]
        assert box["width"] > 250, name
        assert box["height"] > 150, name
        assert line > 3, name
    assert len(seen["charts"]) == len(CHARTS) + (f"forecast-{DRAWN[size]}" in seen["charts"])
    assert seen["width"] <= SIZES[size][0]
    assert seen["background"] == SCHEMES[scheme]
    assert seen["title"] == f"Jobs {HOSTILE}"
    for name in (*TENANTS, *QUEUES, HOSTILE):
        assert name in seen["text"]


@pytest.mark.parametrize("scheme, size", LOOKS)
def test_long_tables_are_cut_with_a_note_and_printed_whole(looks, scheme, size):
    seen = looks[scheme, size]
    assert seen["rows"] == [3 * 10, 3 * 10 + ROWS - 10, 3 * ROWS]
    assert seen["cut"] == 0
    assert len(seen["code_heights"]) == 1
    assert max(seen["code_heights"]) < 20
    assert seen["outside"] == []
