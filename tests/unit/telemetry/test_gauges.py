"""What is exported of a round, and what is not."""

from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from holdfast import InvalidName, InvalidOption
from holdfast.core.job import JobState
from holdfast.telemetry import gauges
from holdfast.telemetry.gauges import FAMILIES, MAX_QUEUES, MAX_TENANTS, STATES, Gauges, QueueCounts, Round
from holdfast.telemetry.metrics import MAX_QUEUE_NAMES


@pytest.fixture
def registry():
    return CollectorRegistry()


@pytest.fixture
def made(registry):
    yield gauges.enable(registry, tenants=["acme"])
    gauges.disable()


def counts(ready=1, **more):
    return QueueCounts(Counter({JobState.READY: ready}), **more)


def round_of(*queues):
    """A round over (tenant, queue, counts)."""
    found = Round(0.0, tenants={"acme": QueueCounts()}, took_s=0.5)
    for one in queues:
        found.add(*one)
    return found


def ready(registry, queue):
    return registry.get_sample_value("holdfast_queue_jobs", {"queue": queue, "state": "ready"})


def test_a_process_that_has_read_nothing_exports_nothing(made, registry):
    assert list(registry.collect()) == []
    made.publish(round_of(("acme", "mail", counts())))
    assert {family.name for family in registry.collect()} == set(FAMILIES)
    made.clear()
    assert list(registry.collect()) == []


def test_queues_of_the_same_name_are_summed(made, registry):
    found = round_of(
        ("acme", "mail", counts(2, expired_leases=1, oldest_ready_s=3.0)),
        ("globex", "mail", counts(5, expired_leases=2, oldest_ready_s=9.0)),
    )
    made.publish(found)
    assert ready(registry, "mail") == 7
    values = {
        scope: [
            registry.get_sample_value(f"holdfast_{scope}_{name}", {scope: label})
            for name in ("expired_leases", "oldest_ready_seconds")
        ]
        for scope, label in (("queue", "mail"), ("tenant", "acme"))
    }
    assert values == {"queue": [3, 9.0], "tenant": [1, 3.0]}
    assert registry.get_sample_value("holdfast_gauges_round_seconds") == 0.5
    assert registry.get_sample_value("holdfast_gauges_age_seconds") > 0


def test_every_state_is_exported_also_at_zero(made, registry):
    made.publish(round_of(("acme", "mail", QueueCounts())))
    labels = [{"queue": "mail", "state": state.value} for state in STATES]
    assert [registry.get_sample_value("holdfast_queue_jobs", one) for one in labels] == [0] * len(STATES)


def test_a_tenant_is_named_only_if_it_was_asked_for(made, registry):
    made.publish(round_of(("acme", "mail", counts()), ("globex", "mail", counts())))
    text = generate_latest(registry).decode()
    assert 'tenant="acme"' in text
    assert "globex" not in text


def test_one_tenant_cannot_use_up_the_names_of_queues(made, registry):
    """Names that several tenants share come first, and names that have a label keep it."""
    many = [("acme", f"a-{n:04}", counts(1000)) for n in range(3 * MAX_QUEUE_NAMES)]
    shared = [(tenant, "mail", counts()) for tenant in ("beta", "globex")]
    made.publish(round_of(*many, *shared))
    assert ready(registry, "mail") == 2
    assert ready(registry, "other") == 1000 * (3 * MAX_QUEUE_NAMES - (MAX_QUEUE_NAMES - 1))
    made.publish(round_of(*[("beta", f"b-{n}", counts(5000)) for n in range(50)], ("acme", "mail", counts())))
    assert (ready(registry, "mail"), ready(registry, "b-0"), ready(registry, "other")) == (1, None, 250_000)


def test_a_round_keeps_a_bounded_number_of_names_apart():
    found = round_of(*[("acme", f"q{n}", counts()) for n in range(MAX_QUEUES + 10)])
    assert len(found.queues) == MAX_QUEUES + 1
    assert found.queues["other"].jobs[JobState.READY] == 10


def test_the_tenants_are_bounded_and_checked(made):
    assert gauges.enable() is made
    with pytest.raises(InvalidOption, match="101 tenants"):
        Gauges([f"t{n}" for n in range(MAX_TENANTS + 1)])
    assert len(Gauges([f"t{n % MAX_TENANTS}" for n in range(3 * MAX_TENANTS)]).tenants) == MAX_TENANTS
    with pytest.raises(InvalidName):
        Gauges(["a b"])
