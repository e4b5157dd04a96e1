"""The report as a browser shows it: real jobs of tenants with hostile names, in Debian's Chromium."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
from playwright.sync_api import sync_playwright

from holdfast.pipeline.report import report
from tests.machine import chromium, skip_for
from tests.pipeline.hostile import HOSTILE, QUEUES, TENANTS
from tests.pipeline.settings import FULL

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

FLAGS = ("--no-sandbox", "--disable-background-networking")
CHARTS = ("throughput", "wait", "run", "budget")
SIZES = {"phone": (360, 740), "desk": (1280, 900)}
SCHEMES = {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 18, 22)"}
"""And the colour behind all."""
LOOKS = [*product(SCHEMES, SIZES)] if FULL else [("light", "phone"), ("dark", "desk")]


@pytest.fixture(scope="module")
def page_file(spark, history, tmp_path_factory):
    return report(spark, history, tmp_path_factory.mktemp("page") / "report.html", title=f"Jobs {HOSTILE}")


@pytest.fixture(scope="module")
def looks(page_file):
    """What is seen of the page, by scheme and size."""
    if lack := skip_for("" if chromium() else "there is no Chromium; install it, on Debian with: apt install chromium"):
        pytest.skip(lack)
    # Playwright runs an event loop in its thread, where no other could run then.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_look, page_file).result()


def _look(file):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium() or "chromium", args=list(FLAGS))
        seen = {look: _seen(browser, file, *look) for look in LOOKS}
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
        chart.get_attribute("aria-labelledby"): (chart.bounding_box(), _widest(chart.locator("polyline").all()))
        for chart in page.locator("svg").all()
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


def _widest(lines):
    return max((line.bounding_box()["width"] for line in lines), default=0)


@pytest.mark.parametrize("scheme, size", LOOKS)
def test_the_report_shows_its_charts_and_asks_for_nothing(looks, page_file, scheme, size):
    seen = looks[scheme, size]
    assert seen["said"] == []
    assert seen["asked"] == [page_file.as_uri()]
    assert seen["foreign"] == 0
    for name in CHARTS:
        box, line = seen["charts"][f"{name}-t"]
        assert box["width"] > 250, name
        assert box["height"] > 80, name
        assert line > 10, name
    assert seen["width"] <= SIZES[size][0]
    assert seen["background"] == SCHEMES[scheme]
    assert seen["title"] == f"Jobs {HOSTILE}"
    for name in (*TENANTS, *QUEUES, HOSTILE):
        assert name in seen["text"]
