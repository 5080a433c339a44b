"""What `bench.proxies` makes of its rounds, and what it prints."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

pytest.importorskip("grpc", reason="grpcio is not installed (extra `grpc`)")

from bench.proxies import ProxyCost, ProxyFigures, median_of, show


def cost(proxy: str, per_second: float) -> ProxyCost:
    return ProxyCost(proxy, "send x 1", per_second, 2.0, 300.0, 400.0)


def test_of_rounds_the_median_counts() -> None:
    rounds = [cost("ours", rate) for rate in (10.0, 1000.0, 20.0)]
    assert median_of(rounds) == cost("ours", 20.0)


@pytest.mark.parametrize("lacking", [None, "no Java on this machine"])
def test_each_proxy_has_its_row_and_what_was_not_measured_is_said(lacking: str | None) -> None:
    out = io.StringIO()
    found = ProxyFigures([cost("ours", 1234.0), cost("apache", 5.0)], {"ours": 50.4}, lacking)
    show(found, Console(file=out, width=120))
    text = out.getvalue()
    assert "1,234" in text
    assert "ours: 50 MiB" in text
    assert ("not measured: no Java" in text) is (lacking is not None)
