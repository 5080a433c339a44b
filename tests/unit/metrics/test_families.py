"""Families of series: their labels, their parts, and the bound on how many series there are."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from broker.metrics.exposition import render, text_parts
from broker.metrics.families import PART_SERIES, Families
from dledger.runtime.durations import Durations


class Fixed(Collector):
    """A collector of what it is given."""

    def __init__(self, *families: Metric) -> None:
        self.families = families

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> tuple[Metric, ...]:
        return self.families


def make(series_max: int = 1000) -> Families:
    return Families({"cluster": "C", "node_id": "b"}, series_max=series_max)


def registry_of(*families: Metric) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Fixed(*families))
    return registry


def figures_of(text: bytes) -> dict[tuple[str, str], float]:
    """The figures of a text, by name and the value of the label that is not the node's."""
    own = {"cluster", "node_id"}
    return {
        (sample.name, "".join(sample.labels[name] for name in {*sample.labels} - own)): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_a_family_of_many_series_is_one_family_in_parts() -> None:
    count = 3 * PART_SERIES + 1
    rows = [([f"t{number}"], float(number)) for number in range(count)]
    parts = list(make().gauges("dledger_x", "help", ["topic"], rows))
    text = await render(registry_of(*parts))
    assert len(parts) == 4
    assert text.count(b"# TYPE dledger_x gauge") == text.count(b"# HELP") == 1
    assert figures_of(text) == {("dledger_x", f"t{number}"): number for number in range(count)}


async def test_a_carriage_return_in_a_label_ends_no_line_in_the_later_parts_of_a_family() -> None:
    rows = [([f"t{number}\r#"], float(number)) for number in range(PART_SERIES + 1)]
    text = await render(registry_of(*make().gauges("dledger_x", "help", ["topic"], rows)))
    assert text.count(b'\r#"} ') == PART_SERIES + 1
    assert [line for line in text.split(b"\n")[2:-1] if not line.startswith(b"dledger_x{")] == []


async def test_series_carry_the_labels_of_the_node_and_what_is_in_them_is_escaped() -> None:
    rows = [(['a"b\nc\\'], 1.0)]
    text = await render(registry_of(*make().counters("dledger_y", "help", ["topic"], rows)))
    assert b'dledger_y_total{cluster="C",node_id="b",topic="a\\"b\\nc\\\\"} 1.0\n' in text
    assert figures_of(text) == {("dledger_y_total", 'a"b\nc\\'): 1.0}


def test_series_over_the_limit_are_left_out_and_counted() -> None:
    families = make(series_max=PART_SERIES + 2)
    rows = [([str(number)], 1.0) for number in range(PART_SERIES + 5)]
    parts = list(families.gauges("dledger_x", "help", ["topic"], rows))
    assert [len(part.samples) for part in parts] == [PART_SERIES, 2]
    assert families.left_out == {"dledger_x": 3}
    list(families.gauges("dledger_x", "help", ["topic"], rows[: PART_SERIES + 2]))
    assert families.left_out == {}


def test_a_family_without_series_is_named_still() -> None:
    (part,) = make().gauges("dledger_x", "help", ["topic"], [])
    (text,) = text_parts(registry_of(part))
    assert text == b"# HELP dledger_x help\n# TYPE dledger_x gauge\n"


async def test_durations_are_a_histogram_in_seconds_or_milliseconds() -> None:
    durations = Durations((1, 10))
    durations.add(1)
    durations.add(5, count=3)
    durations.add(1000)
    for in_seconds, bounds, total in ((True, ("0.001", "0.01"), 1.016), (False, ("1", "10"), 1016)):
        rows = [((), durations)]
        parts = make().histograms("dledger_s", "help", [], rows, in_seconds=in_seconds)
        found = figures_of(await render(registry_of(*parts)))
        assert [found["dledger_s_bucket", bound] for bound in (*bounds, "+Inf")] == [1, 4, 5]
        assert found["dledger_s_count", ""] == 5
        assert found["dledger_s_sum", ""] == total
