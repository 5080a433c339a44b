"""`includeArchive`: history from Parquet and the rest from brokers, as one table without a seam."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from broker.admin.ask import ask_all
from dledger_mq import Message
from jepsen.processes import poll
from pipeline.archive.manifests import listed_files
from pipeline.archive.writing import Archive
from pipeline.scan.plan import CommittedBound
from pipeline.scan.stores import Store
from pipeline.spark.failures import reason_of
from tests.integration.pipeline.topics import Topics, load, numbers


def applied_index(topics: Topics, address: str) -> int:
    (answer,) = trio.run(ask_all, [address])
    return int(answer.table.get("raftAppliedIndex", 0))


def archive_all(spark: Any, topics: Topics, folder: Path) -> None:
    """Archive what is committed now, from the store of one node, as the job does."""
    node = topics.group.nodes[0]
    bound = max(applied_index(topics, each.address) for each in topics.group.nodes)
    assert poll(lambda: applied_index(topics, node.address) >= bound, 60)
    store = Store(str(topics.group.folder / node.name))
    committed = CommittedBound(bound, "the test")
    with Archive(folder) as archive:
        for stretch in archive.stretches(store, committed):
            archive.add(spark, store, stretch, broker_name="broker-a", known_by="the test")


def test_history_and_live_data_are_one_table(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topic = topics.fresh()
    topics.fill(topic, 80)
    topics.producer.send(Message(topic, b"80", tags="A", keys=("k",), properties={"c": "d"}))
    archive_all(spark, topics, tmp_path / "archive")
    topics.fill(topic, 40, first=81)
    both = {"includeArchive": tmp_path / "archive", "includeMetadata": True}
    whole = load(spark, topics, topic, **both)
    assert numbers(whole) == list(range(121))

    # Row for row what the brokers alone say, who still have everything here; only they know no terms.
    live = load(spark, topics, topic, includeMetadata=True)
    assert whole.drop("term").exceptAll(live.drop("term")).isEmpty()
    assert live.drop("term").exceptAll(whole.drop("term")).isEmpty()
    assert whole.where("term is not null").count() == 81

    assert numbers(load(spark, topics, topic, subExpression="A", **both)) == [80]
    as_map = load(spark, topics, topic, propertiesAs="map", subExpression="A", **both)
    assert [row.c for row in as_map.selectExpr("properties['c'] c").collect()] == ["d"]
    places = dict.fromkeys("0123", 10)
    middle = json.dumps({topic: {"broker-a": places}})
    assert load(spark, topics, topic, startingOffsets=middle, **both).count() == 121 - 40
    assert load(spark, topics, topic, endingOffsets=middle, **both).count() == 40

    # An archive that does not hold what it lists is an error, not fewer rows.
    Path(listed_files(tmp_path / "archive", frozenset({topic}))[0]).unlink()
    with pytest.raises(Exception, match="Error") as caught:
        load(spark, topics, topic, **both).count()
    assert "is missing, and a manifest lists it" in reason_of(caught.value)


def test_an_archive_that_is_not_there_is_an_error(spark: Any, topics: Topics) -> None:
    topic = topics.fresh()
    topics.fill(topic, 4)
    with pytest.raises(Exception, match="Error") as caught:
        load(spark, topics, topic, includeArchive="/no/such/folder").count()
    assert "there is no folder /no/such/folder" in reason_of(caught.value)
