"""Archives of what the brokers of the tests hold, made as the job makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import trio

from broker.admin.ask import ask_all
from jepsen.processes import poll
from pipeline.archive.writing import open_archive
from pipeline.locations import ObjectPath
from pipeline.scan.plan import CommittedBound
from pipeline.scan.stores import Store
from tests.integration.pipeline.topics import PATIENCE_S, Topics


def applied_index(topics: Topics, address: str) -> int:
    told: dict[str, str] = {}

    def has_answered() -> bool:
        (answer,) = trio.run(ask_all, [address])
        told.update(answer.table)
        return "raftAppliedIndex" in told

    assert poll(has_answered, PATIENCE_S), f"{address} says nothing in {PATIENCE_S} s"
    return int(told["raftAppliedIndex"])


def archive_all(spark: Any, topics: Topics, folder: Path | ObjectPath) -> None:
    """Archive what is committed now, from the store of one node, as the job does."""
    node = topics.group.nodes[0]
    bound = max(applied_index(topics, each.address) for each in topics.group.nodes)
    assert poll(lambda: applied_index(topics, node.address) >= bound, PATIENCE_S)
    store = Store(str(topics.group.folder / node.name))
    committed = CommittedBound(bound, "the test")
    with open_archive(folder) as archive:
        for stretch in archive.stretches(store, committed):
            archive.add(spark, store, stretch, broker_name="broker-a", known_by="the test")
