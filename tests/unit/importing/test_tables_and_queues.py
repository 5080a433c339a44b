"""The tables of a store and its consume queues, as RocketMQ writes them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from broker.importing.errors import SourceError
from broker.importing.json_tables import TimerProgress, read_tables
from broker.importing.queue_files import KnownQueue, read_queues
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from tests.unit.importing.source_store import SourceStore

OF_RELEASE_5 = """{
\t"dataVersion":{
\t\t"counter":2,
\t\t"stateVersion":0,
\t\t"timestamp":1795406693223
\t},
\t"groupTopicMap":{
\t\t"g":["T"]
\t},
\t"offsetTable":{
\t\t"T@g":{0:42,1:48,
\t\t\t12:0
\t\t},
\t\t"%RETRY%g@g":{0:1
\t\t}
\t}
}"""


def test_keys_that_look_like_numbers_are_texts_where_texts_are_meant(tmp_path: Path) -> None:
    folder = SourceStore(tmp_path / "s").save() / "config"
    text = '{"offsetTable":{"5:6, 7:8@9":{0:1,"1":2}}}'
    (folder / "consumerOffset.json").write_text(text)
    assert read_tables(folder).offsets == {("5:6, 7:8", "9"): {0: 1, 1: 2}}


def test_a_table_that_is_nested_without_end_is_damaged(tmp_path: Path) -> None:
    folder = SourceStore(tmp_path / "s").save() / "config"
    (folder / "consumerOffset.json").write_text('{1:{"offsetTable":' * 100_000)
    with pytest.raises(SourceError, match=r"consumerOffset\.json: body is nested deeper"):
        read_tables(folder)


def test_names_that_only_look_like_numbers_are_none(tmp_path: Path) -> None:
    folder = SourceStore(tmp_path / "s").save() / "consumequeue" / "T"
    for queue in ("\u00b2", "9" * 100):
        (folder / queue).mkdir(parents=True)
    (folder / "0").mkdir(exist_ok=True)
    (folder / "0" / ("\u00b2" * 20)).write_bytes(b"")
    assert {queue_id for _, queue_id in read_queues(folder.parent)} == {0}


def test_offsets_as_rocketmq_writes_them(tmp_path: Path) -> None:
    folder = SourceStore(tmp_path / "s").save() / "config"
    (folder / "consumerOffset.json").write_text(OF_RELEASE_5)
    assert read_tables(folder).offsets == {
        ("T", "g"): {0: 42, 1: 48, 12: 0},
        ("%RETRY%g", "g"): {0: 1},
    }


@pytest.mark.parametrize("text", ["", "{", None])
def test_a_damaged_table_means_its_copy(tmp_path: Path, text: str | None) -> None:
    folder = SourceStore(tmp_path / "s").save() / "config"
    path = folder / "consumerOffset.json"
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    path.with_name(path.name + ".bak").write_text(OF_RELEASE_5)
    tables = read_tables(folder)
    assert tables.offsets[("T", "g")][QueueId(0)] == 42
    assert list(tables.from_copies) == ["consumerOffset.json"]
    assert str(path) in tables.from_copies["consumerOffset.json"]


def test_a_damaged_table_without_a_copy_is_named(tmp_path: Path) -> None:
    folder = SourceStore(tmp_path / "s").save() / "config"
    (folder / "consumerOffset.json").write_text('{"offsetTable": 3}')
    with pytest.raises(SourceError, match=r"consumerOffset\.json: Expected `object`"):
        read_tables(folder)


def test_a_table_that_is_missing_is_noted(tmp_path: Path) -> None:
    folder = SourceStore(tmp_path / "s").save() / "config"
    assert read_tables(folder).missing == ()
    (folder / "delayOffset.json").unlink()
    tables = read_tables(folder)
    assert (tables.missing, tables.from_copies) == (("delayOffset.json",), {})


def test_without_topics_nothing_can_be_said(tmp_path: Path) -> None:
    folder = SourceStore(tmp_path / "s").save() / "config"
    (folder / "topics.json").unlink()
    with pytest.raises(SourceError, match="is missing"):
        read_tables(folder)


def test_tables_with_something_in_them_are_noted(tmp_path: Path) -> None:
    folder = SourceStore(tmp_path / "s").save() / "config"
    (folder / "consumerOrderInfo.json").write_text('{\n\t"table":{\n\t}\n}')
    (folder / "lmqConsumerOffset.json").write_text('{"lmqOffsetTable":{"%LMQ%a@g":3}}')
    assert list(read_tables(folder).others) == ["lmqConsumerOffset.json"]


def test_topics_and_groups_keep_what_they_say(tmp_path: Path) -> None:
    store = SourceStore(tmp_path / "s")
    store.topic("T", 3, order=True, perm=4, attributes={"message.type": "FIFO"}, more=1)
    store.groups["g"] = {"groupName": "g", "retryMaxTimes": 3, "consumeEnable": False}
    tables = read_tables(store.save() / "config")
    topic, group = tables.topics["T"], tables.groups["g"]
    assert (topic.read_queue_count, topic.perm, topic.is_order) == (3, 4, True)
    assert topic.attributes == {"message.type": "FIFO"}
    assert (group.retry_times_max, group.consume_enable, group.retry_queue_count) == (3, False, 1)


def test_how_far_timers_have_come(tmp_path: Path) -> None:
    folder = SourceStore(tmp_path / "s").save() / "config"
    assert read_tables(folder).timers == TimerProgress()
    (folder / "timercheck").write_bytes(struct.pack(">qqqq", 7000, 52, 9, 0).ljust(4096, b"\0"))
    assert read_tables(folder).timers == TimerProgress(7000, QueueOffset(9))
    (folder / "timercheck").write_bytes(bytes(20))
    with pytest.raises(SourceError, match="it is cut"):
        read_tables(folder)
    for read_ms, queue_offset in ((2**62, 9), (-1, 9), (7000, -9)):
        (folder / "timercheck").write_bytes(struct.pack(">qqqq", read_ms, 52, queue_offset, 0))
        with pytest.raises(SourceError, match="timercheck is damaged"):
            read_tables(folder)


def test_the_end_of_a_queue_follows_from_its_last_file(tmp_path: Path) -> None:
    store = SourceStore(tmp_path)
    store.queue_file("T", 0, 0, [(number * 100, 100) for number in range(7)])
    store.queue_file("T", 1, 300, [(5000, 50), (6000, 60)])
    store.queue_file("T", 2, 0, [(0, 2**31 - 1)] * 5)
    store.queue_file("T", 3, 200, [])
    (tmp_path / "consumequeue" / "T" / "1" / f"{8000:020}").write_bytes(bytes(2000))
    assert read_queues(tmp_path / "consumequeue") == {
        (b"T", 0): KnownQueue(QueueOffset(7), PhysicalOffset(700)),
        (b"T", 1): KnownQueue(QueueOffset(302), PhysicalOffset(6060)),
        (b"T", 2): KnownQueue(QueueOffset(5), PhysicalOffset(0)),
        (b"T", 3): KnownQueue(QueueOffset(200), PhysicalOffset(0)),
    }
    assert read_queues(tmp_path / "none") == {}


@pytest.mark.parametrize("left_bytes", [0, 1999])
def test_a_queue_file_that_is_cut_is_named(tmp_path: Path, left_bytes: int) -> None:
    """The queue has no message any more, so that the log does not tell where it goes on."""
    store = SourceStore(tmp_path)
    store.queue_file("T", 0, 0, [(number * 100, 100) for number in range(7)])
    os.truncate(tmp_path / "consumequeue" / "T" / "0" / f"{0:020}", left_bytes)
    with pytest.raises(SourceError, match=r"consumequeue/T/0/0{20}: it is cut"):
        read_queues(tmp_path / "consumequeue")


def test_a_next_queue_file_that_a_crash_left_empty_is_passed_over(tmp_path: Path) -> None:
    store = SourceStore(tmp_path)
    store.queue_file("T", 0, 0, [(number * 100, 100) for number in range(100)])
    (tmp_path / "consumequeue" / "T" / "0" / f"{2000:020}").touch()
    assert read_queues(tmp_path / "consumequeue")[b"T", QueueId(0)].max_offset == 100


def test_a_full_queue_file_ends_with_its_last_unit(tmp_path: Path) -> None:
    store = SourceStore(tmp_path)
    store.queue_file("T", 0, 0, [(number, 100) for number in range(100)])
    assert read_queues(tmp_path / "consumequeue")[b"T", QueueId(0)].max_offset == 100
