"""Streams whose checkpoints lie in object stores, through Hadoop's file systems: what a session left (sessions.py)."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pipeline.object_store import ObjectFolder
from tests.integration.pipeline.sessions import SENT, Sessions
from tests.unit.pipeline.object_stores import SECRET_KEY, TOKEN

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.mark.usefixtures("store", "google")
def test_a_checkpoint_in_a_store_keeps_where_the_stream_is_and_where_it_began(
    sessions: Sessions,
) -> None:
    run = sessions.first
    for secret in (SECRET_KEY, TOKEN):
        assert secret not in run.stdout + run.stderr
    for name, place in sessions.places.items():
        assert f"{name} rows {SENT + 1}" in run.stdout, run.stderr[-20000:]  # one was inserted
        checkpoint = ObjectFolder(place / "checkpoint")
        batches = [name for name in checkpoint.names("offsets") if name.isdigit()]
        assert sorted(batches) == ["0", "1", "2"]
        assert checkpoint.names("rocketmq-source") == ["initial-offsets.json"]
    if sessions.lacking:
        names = " and ".join(f"{each.scheme}:// ({each.variable})" for each in sessions.lacking)
        pytest.skip(f"no jars for {names} (pipeline-jobs.md)")
