"""The dashboard for Grafana and the alert rules name metrics and labels that exist, in expressions that parse."""

import json
import re
from pathlib import Path

import pytest
import yaml

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([\w, ]*) \|", re.MULTILINE)
GROUPS = re.compile(r"\b(?:by|on) ?\(([\w, ]*)\)")
SELECTOR = re.compile(r"(\w*)\{([^{}]*)\}")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"[^"]*"')
RANGE = re.compile(r"\[(?:\d+[smhd]|\$__rate_interval)\]")
NAME = re.compile(r"\b([A-Za-z_]\w*)(\s*\()?")
REST = re.compile(r"[\w\s.,()<>=*/+-]*")
FUNCTIONS = {"sum", "max", "topk", "rate", "histogram_quantile", "absent"}
KEYWORDS = {"unless", "offset"}
ADDED = {"instance", "job", "le"}
"""Labels that Prometheus adds itself."""


def metrics():
    """The labels by the names of series, from the page that the code makes."""
    found = {}
    for name, kind, labels in ROW.findall((REFERENCE / "metrics.md").read_text(encoding="utf-8")):
        names = [f"{name}_{part}" for part in ("bucket", "sum", "count")] if kind == "histogram" else [name]
        found |= dict.fromkeys(names, {one for one in labels.split(", ") if one} | ADDED)
    return found


METRICS = metrics()


def dashboard():
    return json.loads((REFERENCE / "grafana.json").read_text(encoding="utf-8"))


def rules():
    (group,) = yaml.safe_load((REFERENCE / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return group["rules"]


EXPRESSIONS = [
    *[
        (f"{panel['title']} {target['refId']}", target["expr"])
        for panel in dashboard()["panels"]
        for target in panel.get("targets", [])
    ],
    *[(rule["alert"], rule["expr"]) for rule in rules()],
]


def problems(expression):
    """What is wrong with an expression, as texts."""
    found, used = [], set()
    grouping = {label for group in GROUPS.findall(expression) for label in group.split(", ")}
    rest = RANGE.sub("", GROUPS.sub("", expression))
    for metric, inside in SELECTOR.findall(rest):
        labels = MATCHER.findall(inside)
        if MATCHER.sub("", inside).strip(", "):
            found.append(f"cannot read {inside!r}")
        found += [f"{metric} has no label {label}" for label in labels if label not in METRICS.get(metric, ())]
    rest = SELECTOR.sub(r"\1", rest)
    for match in NAME.finditer(rest):
        name = match[1]
        if match[2]:
            found += [] if name in FUNCTIONS else [f"there is no function {name}"]
        elif name in METRICS:
            used.add(name)
        elif name not in KEYWORDS:
            found.append(f"there is no metric {name}")
    if not REST.fullmatch(rest) or not balanced(rest):
        found.append(f"cannot read {rest!r}")
    known = {label for name in used for label in METRICS[name]}
    return [*found, *[f"no metric has the label {label}" for label in grouping - known]]


def balanced(text):
    """Whether every bracket that opens is closed, and none is empty."""
    brackets = re.sub(r"\(\s*\)", "!", text)
    while "()" in (brackets := re.sub(r"[^()!]", "", brackets)):
        brackets = brackets.replace("()", "")
    return not brackets


@pytest.mark.parametrize("name, expression", EXPRESSIONS, ids=[name for name, _ in EXPRESSIONS])
def test_an_expression_names_what_there_is(name, expression):
    assert problems(expression) == []


@pytest.mark.parametrize(
    "expression, problem",
    [
        ("sum(holdfast_queue_jobs", "cannot read 'sum(holdfast_queue_jobs'"),
        ("sum(holdfast_queue_jobs))", "cannot read 'sum(holdfast_queue_jobs))'"),
        ("sum()", "cannot read 'sum()'"),
        ("holdfast_queue_job", "there is no metric holdfast_queue_job"),
        ('holdfast_queue_jobs{tenant="x"}', "holdfast_queue_jobs has no label tenant"),
        ("holdfast_queue_jobs{state=ready}", "cannot read 'state=ready'"),
        ("sum by (tenant) (holdfast_queue_jobs)", "no metric has the label tenant"),
        ("sums(holdfast_held)", "there is no function sums"),
        ("rate(holdfast_held[5 minutes])", "cannot read 'rate(holdfast_held[5 minutes])'"),
    ],
)
def test_wrong_expressions_are_found(expression, problem):
    assert problem in problems(expression)


def test_every_gauge_of_the_store_is_on_the_dashboard_or_in_a_rule():
    everything = " ".join(expression for _, expression in EXPRESSIONS)
    gauges = {name for name in METRICS if re.match("holdfast_(queue|tenant)_", name)}
    assert {name for name in gauges if name not in everything} == {"holdfast_tenant_expired_leases"}


def test_panels_and_rules_are_complete():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [tuple(panel["gridPos"][one] for one in "xy") for panel in panels]
    assert len(set(places)) == len(places)
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"].endswith(".")
        for name in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            assert re.search(rf"by \([^)]*\b{name}\b", rule["expr"]), f"{rule['alert']} drops the label {name}"
