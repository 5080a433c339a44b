"""The floor of the rows, on real processes: it does the little that it says, or it would be no floor."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.compare.rows import BY_NAME, BenchRow, RowKind
from bench.compare.runners import BareRunner
from bench.load.driver import LackingError
from bench.load.native import RequestLoad, lacking_generator
from bench.load.running import RoundPlan
from bench.loadgen import send_template
from bench.systems import bare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(lacking_generator() is not None, reason=str(lacking_generator())),
]

PACE = RoundPlan(0.1, 0.4, 1)


@pytest.mark.parametrize(
    ("connections", "in_flight"), [(1, 1), (8, 1), (1, 300)], ids=["lone", "many", "pipelined"]
)
def test_what_the_floor_acknowledges_stands_in_the_files_of_a_majority(
    tmp_path: Path, connections: int, in_flight: int
) -> None:
    template = send_template("Bench", 0, b"x" * 1024)
    frame_bytes = len(template.layout().frame)
    load = RequestLoad(templates=[template], connections=connections, in_flight=in_flight)
    with bare.running(tmp_path, nodes=3) as group:
        (found,) = group.run(load, PACE)
    assert found.messages > 0
    assert found.refused == 0
    logs = sorted((path.read_bytes().rstrip(b"\0") for path in tmp_path.glob("*/log")), key=len)
    least, majority, most = logs
    # The generator waits for all that it has sent, in and after its round.
    assert len(majority) >= found.messages * frame_bytes
    assert len(majority) % frame_bytes == 0
    assert most.startswith(majority)
    assert majority.startswith(least)


@pytest.mark.parametrize("name", ["batch", "pull-1", "pull-8"])
def test_the_floor_has_the_rows_of_batches_and_pulls(tmp_path: Path, name: str) -> None:
    row = BY_NAME[name]
    with bare.running(tmp_path, nodes=3) as group:
        measured = BareRunner(group).run(row, PACE)
    (found,) = measured.rounds
    assert found.messages > 0
    assert found.messages % (row.batch if row.kind is RowKind.BATCH else 32) == 0


def test_other_rows_are_not_measured_on_the_floor(tmp_path: Path) -> None:
    with bare.running(tmp_path, nodes=3) as group, pytest.raises(LackingError, match="the floor"):
        BareRunner(group).run(BenchRow("delays", "delays", RowKind.DELAY), PACE)
