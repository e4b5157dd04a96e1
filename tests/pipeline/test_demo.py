"""The last part of the demo: its log as tables, proved, and a page of charts."""

from rich.console import Console

from holdfast.demo import history
from holdfast.demo.directory import store_url
from tests.log import all_events
from tests.pipeline.settings import only_full
from tests.pipeline.traffic import make_traffic, of_store


@only_full
def test_the_demo_proves_its_own_log_and_draws_it(spark, tmp_path, monkeypatch):
    # It stops its session at the end; this one is needed on.
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    directory = tmp_path / "demo data"
    url = store_url(directory)
    of_store(url, lambda store: make_traffic(store, 40))
    events = of_store(url, all_events)
    said = Console(record=True, width=300)
    assert history.audit_log(said, directory, url)
    text = said.export_text()
    assert f"ingest  {len(events):,} events" in text
    assert "build   40 job runs" in text
    assert f"0 violations over {len(events):,} events" in text
    assert f"report  {directory / 'report.html'}" in text
    assert "Holdfast demo" in (directory / "report.html").read_text()
