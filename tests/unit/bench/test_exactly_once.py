"""The proof of the pipeline's demo: a job that is slow has lost nothing, and that is told apart."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.pipeline import exactly_once
from bench.pipeline.exactly_once import ENRICHED, ORDERS, NoProofError, ProofRun, offsets_done
from dledger_mq import MessageQueue

QUEUES = [MessageQueue(ORDERS, "broker-a", number) for number in range(2)]


class Reader:
    """Topics of known lengths."""

    def __init__(self, ends: Mapping[MessageQueue, int], enriched: int) -> None:
        self._ends = ends
        self._enriched = enriched

    def ends(self, topic: str) -> Mapping[MessageQueue, int]:
        assert topic == ORDERS
        return self._ends

    def count(self, topic: str) -> int:
        return {ORDERS: sum(self._ends.values()), ENRICHED: self._enriched}[topic]


def checkpoint(folder: Path, *batches: tuple[int, int], done: int) -> Path:
    """A checkpoint as Spark keeps one, with the end of both queues in each batch."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, (first, second) in enumerate(batches):
        ends = f'{{"{ORDERS}":{{"broker-a":{{"0":{first},"1":{second}}}}}}}'
        (folder / "offsets" / str(number)).write_text(f"v1\n{{}}\n{ends}")
        (folder / "offsets" / f".{number}.crc").write_text("")
    for number in range(done):
        (folder / "commits" / str(number)).write_text("v1\n{}")
    return folder


def proof_run(folder: Path) -> ProofRun:
    group = cast("Any", SimpleNamespace(namesrv="127.0.0.1:1"))
    run = ProofRun(group, folder, kills=0, kinds=[], rate=1, chance=random.Random(0))
    run._job = cast(
        "Any", SimpleNamespace(is_running=True, log_tail=lambda: "27 s for batch 1 of the job")
    )
    return run


def test_what_is_done_stands_in_the_checkpoint(tmp_path: Path) -> None:
    assert offsets_done(tmp_path, ORDERS) == {}
    assert offsets_done(checkpoint(tmp_path / "a", (4, 5), done=0), ORDERS) == {}
    kept = checkpoint(tmp_path / "b", (4, 5), (10, 11), done=1)
    assert offsets_done(kept, ORDERS) == {("broker-a", 0): 4, ("broker-a", 1): 5}
    assert offsets_done(kept, "Others") == {}


def test_a_job_that_is_slow_proves_nothing_and_says_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactly_once, "THROUGH_S", 0.0)
    checkpoint(tmp_path / "checkpoint", (4, 5), (10, 11), done=1)
    reader = cast("Any", Reader(dict(zip(QUEUES, (10, 11), strict=True)), enriched=9))
    with pytest.raises(NoProofError) as caught:
        proof_run(tmp_path)._wait_through(reader)
    assert "the job has 12 of 21 orders before it after" in str(caught.value)
    assert "batch 1 is planned, and not done" in str(caught.value)
    assert "27 s for batch 1 of the job" in str(caught.value)


def test_a_job_that_is_done_is_compared_whatever_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path / "checkpoint", (4, 5), (10, 11), done=2)
    monkeypatch.setattr(exactly_once, "poll", lambda condition, *_, **__: condition())
    reader = Reader(dict(zip(QUEUES, (10, 11), strict=True)), enriched=9)
    run = proof_run(tmp_path)
    run._wait_through(cast("Any", reader))
    assert run.proof.holds, "nothing is judged before both topics are read"
