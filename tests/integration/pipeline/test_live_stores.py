"""Jobs on the stores of a running group, as far as it says that they are committed; clients and codecs say the same."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from dledger.codec.entry import EntryFormatError, decode_entry
from dledger.raft.entry import EntryKind
from dledger_mq import Message, MessageQueue
from dledger_mq.blocking import PullConsumer
from dledger_mq.message.record import StoredMessage, decode_records
from jepsen.processes import poll
from pipeline.archive.manifests import listed_files
from pipeline.cli import main
from pipeline.jobs.context import JobContext
from tests.integration.pipeline.archiving import applied_index
from tests.integration.pipeline.second_way import by_queue, rows_of
from tests.integration.pipeline.topics import PATIENCE_S, Topics

pytestmark = [pytest.mark.slow, pytest.mark.integration]

NODE = "n1"
SEGMENT_BYTES = 16 * 1024 * 1024
LARGE = 900_000

Job = Callable[..., dict[str, Any]]


@pytest.fixture
def job(spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Job:
    """Runs a command in the session of the tests, insists that it ends well, and returns its JSON."""
    monkeypatch.setattr(JobContext, "spark", spark)
    monkeypatch.setattr(JobContext, "close", lambda _: None)

    def run(*words: object) -> dict[str, Any]:
        capsys.readouterr()
        code = main([*map(str, words), "--json"])
        said = capsys.readouterr()
        assert code == 0, said
        found: dict[str, Any] = json.loads(said.out)
        return found

    return run


def records_in_log(store: Path, topic: str) -> list[StoredMessage]:
    """What stands of a topic in the files of a log, decoded entry by entry up to where there is none."""
    found: list[StoredMessage] = []
    for path in sorted((store / "data").iterdir()):
        if not path.name.isdigit():
            continue
        data, at = path.read_bytes(), 0
        while at < len(data):
            try:
                entry = decode_entry(data, at)
            except EntryFormatError:
                break
            at += entry.size_bytes
            if entry.kind is EntryKind.NORMAL:
                found += [each for each in decode_records(entry.body) if each.topic == topic]
    return found


def wait_applied(topics: Topics) -> None:
    """Wait until every node has what any node has now, so that each one's commit index covers it."""
    bound = max(applied_index(topics, each.address) for each in topics.group.nodes)
    for node in topics.group.nodes:
        assert poll(partial(is_applied, topics, node.address, bound), PATIENCE_S)


def is_applied(topics: Topics, address: str, bound: int) -> bool:
    return applied_index(topics, address) >= bound


def test_jobs_read_stores_up_to_where_the_running_group_has_committed(
    job: Job, topics: Topics, tmp_path: Path
) -> None:
    old, new, stores = topics.fresh(), topics.fresh(), topics.group.folder
    topics.fill(old, 90)
    queue = MessageQueue(old, topics.group.group, 3)
    large = [Message(old, os.urandom(LARGE)) for _ in range(SEGMENT_BYTES // LARGE + 2)]
    for message in large:  # so that a segment of the log is over
        topics.producer.send(message, queue=queue)
    with PullConsumer(topics.namesrv, "behind", timeout_s=PATIENCE_S) as group:
        group.commit_all({queue: 5})
        assert poll(lambda: group.committed(queue) == 5, PATIENCE_S)
    wait_applied(topics)
    store = stores / NODE
    asked = ("-n", topics.namesrv, "--node", NODE)
    before, logged = by_queue(topics, old), records_in_log(store, old)
    assert sum(map(len, before.values())) == len(logged) == 90 + len(large)

    command = ("replay", "--store", store, "--topic", old, "--to-topic", new, "--id", new)
    topics.fill(new, 1)
    done = job(*command, *asked, "--name-server", topics.namesrv)
    assert (done["sent"], done["already_there"]) == (len(logged), 0)
    assert {each["queue"]: each["messages"] for each in done["queues"]} == Counter(
        each.queue_id for each in logged
    )
    after = by_queue(topics, new)
    after[0] = after[0][1:]
    for number, some in before.items():
        assert [each.body for each in after[number]] == [each.body for each in some]

    profile = job("profile", "--store", store, *asked)
    traffic = [row for row in profile["traffic"] if row["topic"] == old]
    assert sum(row["messages"] for row in traffic) == len(logged)
    assert sum(row["bytes"] for row in traffic) == sum(len(each.body) for each in logged)
    assert max(row["max_bytes"] for row in traffic) == LARGE
    (of_group,) = [row for row in profile["groups"] if row["group"] == "behind"]
    assert (of_group["topic"], of_group["commits"]) == (old, 1)

    verified = job("verify", store, *asked)
    assert verified["knownBy"] == f"commit index of node {NODE}"
    assert (verified["differences"], verified["index"] > 0) == ([], True)
    assert any("computed by Spark" in each for each in verified["compared"])

    audited = job("audit", *(stores / node.name for node in topics.group.nodes), *asked[:2])
    assert (audited["identical"], sorted(audited["replicas"])) == (True, ["n0", "n1", "n2"])
    assert audited["knownBy"].startswith("least commit index of n0, n1, n2")

    archive = tmp_path / "archive"
    assert job("archive", store, archive, *asked)["rows"] == 0, "nothing is older than 72 h"
    kept = job("archive", store, archive, *asked, "--older-than", "0s")
    assert 0 < kept["lastIndex"] <= verified["index"]
    held = [
        (row["queueId"], row["queueOffset"], row["body"])
        for row in rows_of(listed_files(archive, frozenset({old})))
    ]
    expected = [
        (each.queue_id, each.queue_offset, each.body)
        for each in logged
        if each.physical_offset < kept["endPosition"]
    ]
    assert sorted(held) == sorted(expected)
    assert len(expected) > 90
