"""Options and columns of the sink: everything that cannot be meant is refused, by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger_mq import MessageQueue
from pipeline.errors import PipelineError, PipelineUsageError
from pipeline.locations import ObjectPath
from pipeline.sink import queues as sink_queues
from pipeline.sink.columns import check_columns
from pipeline.sink.options import SinkOptions, placed_options, read_options

GIVEN = {"nameServer": "127.0.0.1:9876", "topic": "Out"}
ONCE = GIVEN | {"delivery": "exactly-once"}


def options(*, is_stream: bool = True, **more: str) -> SinkOptions:
    return read_options(GIVEN | more, is_stream=is_stream)


def test_what_is_not_said_is_safe() -> None:
    read = options()
    assert not read.is_exactly_once
    assert read.send_s == 12.0, "3 s and three more tries: a failover takes one to three seconds"
    assert (read.batch_bytes, read.queue_selector, read.row_keys) == (1 << 20, "hash", "auto")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"nameServer": "nobody"}, "option nameServer is 'nobody'"),
        ({"nameServer": ""}, "nameServer"),
        ({"topic": "a b"}, "illegal characters"),
        ({"delivery": "at-most-once"}, "at-least-once or exactly-once"),
        ({"queueSelector": "dice"}, "hash or roundrobin or column"),
        ({"delivery": "exactly-once", "queueSelector": "roundrobin"}, "same queue"),
        ({"sinkId": "x" * 129}, "1 to 128 bytes"),
        ({"sinkId": "a\nb"}, "printable"),
        ({"batchId": "1"}, "counts its own"),
        ({"sendTimeoutMs": "soon"}, "not a whole number"),
        ({"sendBatchBytes": "99999999"}, "it must be 1 to 4194304"),
        ({"reties": "3"}, "did you mean retries?"),
        ({"metadataPath": "viewfs://nn/m"}, "a folder that the driver sees"),
    ],
)
def test_options_that_cannot_be_meant(more: dict[str, str], why: str) -> None:
    with pytest.raises(PipelineUsageError, match="sink of format") as caught:
        options(**more)
    assert why in str(caught.value)


def test_an_exactly_once_batch_needs_a_name() -> None:
    with pytest.raises(PipelineUsageError, match="needs option sinkId"):
        read_options(ONCE, is_stream=False)
    read = read_options(ONCE | {"sinkId": "nightly", "batchId": "7"}, is_stream=False)
    assert (read.sink_id, read.batch_id) == ("nightly", 7)


@pytest.mark.parametrize(
    ("checkpoint", "folder"),
    [
        ("/tmp/cp", Path("/tmp/cp/rocketmq-sink")),
        ("file:///tmp/c%20p", Path("/tmp/c%20p/rocketmq-sink")),  # Hadoop's paths are not decoded
        ("file:/tmp/cp", Path("/tmp/cp/rocketmq-sink")),
        ("/tmp/c:p#1", Path("/tmp/c:p#1/rocketmq-sink")),
        ("hdfs://nn/cp", ObjectPath("nn", "cp/rocketmq-sink", "hdfs")),
        ("viewfs://nn/cp", None),
    ],
)
def test_the_queue_list_lies_below_a_checkpoint(
    checkpoint: str, folder: Path | ObjectPath | None
) -> None:
    assert options(checkpointLocation=checkpoint).metadata_folder == folder
    both = options(checkpointLocation=checkpoint, metadataPath="/tmp/m")
    assert both.metadata_folder == Path("/tmp/m")


@pytest.mark.parametrize(
    ("checkpoint", "folder"),
    [
        ("/user/x", ObjectPath("nn:9000", "user/x/rocketmq-sink", "hdfs")),
        ("x", None),  # the home of an account that only HDFS knows
        ("file:/tmp/cp", Path("/tmp/cp/rocketmq-sink")),
        ("s3a://bucket/cp", ObjectPath("bucket", "cp/rocketmq-sink")),
    ],
)
def test_a_checkpoint_without_a_scheme_lies_in_hadoops_default_file_system(
    checkpoint: str, folder: Path | ObjectPath | None
) -> None:
    given = GIVEN | {"checkpointLocation": checkpoint}

    def kept_in(default_store: str | None) -> Path | ObjectPath | None:
        return read_options(placed_options(given, default_store), is_stream=True).metadata_folder

    assert kept_in("hdfs://nn:9000") == folder
    here = folder if ":" in checkpoint else Path(checkpoint) / "rocketmq-sink"
    assert kept_in("file:///") == kept_in(None) == here
    assert kept_in("viewfs:///") == (folder if ":" in checkpoint else None)


@pytest.mark.parametrize(
    ("fields", "more", "why"),
    [
        ({"body": "binary", "colour": "string"}, {}, "no column colour, drop it"),
        ({"body": "binary", "tag": "string"}, {}, "did you mean tags?"),
        ({"body": "int"}, {}, "column body has type int, it must be string or binary"),
        ({"body": "string", "properties": "map<string,int>"}, {}, "properties has type"),
        ({"tags": "string"}, {}, "needs a column body"),
        (
            {"body": "string", "queueId": "int"},
            {"queueSelector": "column"},
            "brokerName and queueId",
        ),
        ({"body": "string"}, {"delivery": "exactly-once"}, "idempotencyKey"),
        (
            {"body": "string", "brokerName": "string", "queueId": "int", "queueOffset": "bigint"},
            {"delivery": "exactly-once"},
            "or keep the source's topic",
        ),
    ],
)
def test_columns_that_cannot_be_sent(
    fields: dict[str, str], more: dict[str, str], why: str
) -> None:
    with pytest.raises(PipelineUsageError) as caught:
        check_columns(fields, options(**more))
    assert why in str(caught.value)


def test_a_topic_comes_from_an_option_or_a_column() -> None:
    without = read_options({"nameServer": "h:1"}, is_stream=True)
    with pytest.raises(PipelineUsageError, match="option topic, or a column topic"):
        check_columns({"body": "string"}, without)
    assert "topic" in check_columns({"body": "string", "topic": "string"}, without)


def test_what_names_a_row_of_an_exactly_once_sink() -> None:
    once = {"delivery": "exactly-once"}
    source = {"topic": "string", "brokerName": "string", "queueId": "int", "queueOffset": "bigint"}
    body = {"body": "binary"}
    keyed = body | source | {"idempotencyKey": "string"}
    assert check_columns(keyed, options(**once)).key_columns == ("idempotencyKey",)
    assert check_columns(body | source, options(**once)).key_columns == tuple(source)
    assert check_columns(body, options(rowKeys="position", **once)).key_columns == ()
    assert check_columns(body | source, options()).key_columns == ()


QUEUES = tuple(MessageQueue("Out", "a", number) for number in range(2))


def test_the_queue_list_is_written_once_and_read_ever_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = options(delivery="exactly-once", metadataPath=str(tmp_path / "m"))
    answers = [QUEUES]
    monkeypatch.setattr(sink_queues, "ask_queues", lambda *_, **__: answers.pop())
    assert sink_queues.plan_queues(once) == QUEUES
    assert sink_queues.plan_queues(once) == QUEUES, "nobody was asked again"
    assert [file.name for file in (tmp_path / "m").iterdir()] == ["queues-Out.json"]


def test_topics_that_look_alike_have_lists_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = {"delivery": "exactly-once", "metadataPath": str(tmp_path)}
    for count, topic in ((2, "a|b"), (3, "a%b"), (4, "a_b")):
        found = tuple(MessageQueue(topic, "a", number) for number in range(count))
        monkeypatch.setattr(sink_queues, "ask_queues", lambda *_, found=found, **__: found)
        assert sink_queues.plan_queues(options(topic=topic, **once)) == found


@pytest.mark.parametrize("text", ["", "{", "[]", "[[1]]", '[["a","x"]]'])
def test_a_queue_list_that_is_none_is_an_error_that_names_the_file(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "queues-Out.json").write_text(text)
    with pytest.raises(PipelineError, match=r"queues-Out\.json"):
        sink_queues.plan_queues(options(delivery="exactly-once", metadataPath=str(tmp_path)))


def test_a_place_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sink_queues, "ask_queues", lambda *_, **__: QUEUES)
    once = options(delivery="exactly-once", metadataPath=str(tmp_path / "file" / "m"))
    with pytest.raises(PipelineError, match="queue list"):
        sink_queues.plan_queues(once)


def test_several_groups_need_a_place_for_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    two = (*QUEUES, MessageQueue("Out", "b", 0))
    monkeypatch.setattr(sink_queues, "ask_queues", lambda *_, **__: two)
    with pytest.raises(PipelineUsageError, match="several broker groups"):
        sink_queues.plan_queues(options(delivery="exactly-once"))
    assert sink_queues.plan_queues(options()) == two
