"""Pictures of a profile: a short history fills them, and what there is nothing of says so."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.plots import figure_of, plot_profile

pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra `spark`)")

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
TRAFFIC = [{"topic": "T", "hour": HOUR, "messages": 7}]


def test_one_hour_is_no_axis_of_years() -> None:
    top, middle, bottom = figure_of(TRAFFIC, [], []).axes
    first, last = top.get_xlim()
    assert last - first == pytest.approx(2 / 24), "in days"
    assert [text.get_text() for axes in (middle, bottom) for text in axes.texts] == ["nothing"] * 2


def test_a_picture_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "p.PNG"
    plot_profile(path, TRAFFIC, [], [{"group": "g", "topic": "T", "p50_s": 1.0, "p99_s": 2.0}])
    assert path.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(OSError, match="no"):
        plot_profile(tmp_path / "no" / "p.png", TRAFFIC, [], [])
    assert [each.name for each in tmp_path.iterdir()] == ["p.PNG"]
