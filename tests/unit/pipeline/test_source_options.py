"""Options: known, typed, refused with their name before anybody is asked."""

from __future__ import annotations

import pytest

from dledger_mq.client.queues import MessageQueue
from pipeline.errors import PipelineUsageError
from pipeline.selection import MessageChoice
from pipeline.source_options import BoundaryKind, Use, read_source_options

LEAST = {"nameServer": "127.0.0.1:9876", "topic": "T"}


def test_defaults() -> None:
    batch = read_source_options(LEAST, "batch")
    stream = read_source_options(LEAST, "stream")
    assert batch.starting.kind is BoundaryKind.EARLIEST
    assert stream.starting.kind is BoundaryKind.LATEST
    assert (batch.ending.kind, batch.topics, batch.selection) == (
        BoundaryKind.LATEST,
        ("T",),
        MessageChoice(),
    )
    assert (batch.pull_batch_size, batch.pull_timeout_ms, batch.fetch_retries) == (256, 3000, 3)
    assert stream.max_trigger_delay_ms == 15 * 60_000
    assert stream.fail_on_data_loss
    assert not stream.reads_followers


def test_names_are_read_without_case_and_aliases_mean_the_same() -> None:
    options = read_source_options(
        {"NAMESERVER": "h:1, h:2", "subscribe": "B, A,B", "includeheaders": "FALSE"}, "batch"
    )
    assert options.name_server == "h:1;h:2"
    assert options.topics == ("A", "B")
    assert not options.has_properties


def test_messages_are_chosen_by_tags_a_condition_and_keys() -> None:
    given = {"subExpression": "b || a", "sqlExpression": " n > 5 ", "keys": " k2 k1  k2"}
    selection = read_source_options(LEAST | given, "stream").selection
    assert selection == MessageChoice(("a", "b"), "n > 5", ("k1", "k2"))


def test_offsets_in_json_may_have_marks() -> None:
    text = '{"T": {"broker-a": {"0": 23, "1": -2}}}'
    options = read_source_options(LEAST | {"startingOffsets": text}, "batch")
    assert options.starting.offsets == {
        MessageQueue("T", "broker-a", 0): 23,
        MessageQueue("T", "broker-a", 1): -2,
    }


def test_timestamps_come_before_offsets() -> None:
    options = read_source_options(
        LEAST | {"startingOffsets": "latest", "startingTimestamp": "17", "endingTimestamp": "18"},
        "either",
    )
    assert (options.starting.kind, options.starting.timestamp_ms) == (BoundaryKind.TIME, 17)
    assert (options.ending.kind, options.ending.timestamp_ms) == (BoundaryKind.TIME, 18)


@pytest.mark.parametrize(
    ("use", "more", "text"),
    [
        ("batch", {"topik": "x"}, "no option topik; did you mean topic?"),
        ("batch", {"group": "g"}, "option group is not taken: where a query stands"),
        ("batch", {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
        ("batch", {"commitGroup": "g"}, "commitGroup is for streams"),
        ("stream", {"endingOffsets": "latest"}, "endingOffsets is for batch reads"),
        (
            "stream",
            {"includeArchive": "/a"},
            "a stream reads from brokers only: read the history as",
        ),
        ("stream", {"commitGroup": "a b"}, "commitGroup is 'a b'"),
        ("batch", {"startingOffsets": "latest"}, "startingOffsets is latest"),
        ("batch", {"startingOffsets": "{"}, "option startingOffsets is no JSON"),
        ("batch", {"startingOffsets": '{"T":{}, "T":{}}'}, "stands twice"),
        ("batch", {"startingOffsets": '{"T":{"b":{"0":-1}}}'}, "queue 0: the offset -1 is not"),
        ("batch", {"endingOffsets": '{"T":{"b":{"0":-2}}}'}, "queue 0: the offset -2 is not"),
        ("batch", {"endingOffsets": "earliest"}, "endingOffsets is earliest"),
        ("batch", {"numPartitions": "0"}, "numPartitions is 0, it must be 1 to"),
        ("batch", {"numPartitions": "many"}, "numPartitions is 'many', not a whole number"),
        ("batch", {"failOnDataLoss": "yes"}, "failOnDataLoss is 'yes', it must be true or false"),
        ("batch", {"pullBatchSize": "2000"}, "pullBatchSize is 2000, it must be 1 to 1024"),
        ("batch", {"nameServer": "nowhere"}, "option nameServer is 'nowhere'"),
        ("batch", {"nameServer": " "}, "option nameServer is blank"),
        ("batch", {"topic": "a b"}, "option topic names 'a b'"),
        ("batch", {"topicPattern": "T.*"}, "given: topic, topicPattern"),
        ("batch", {"assign": '{"T":[0]}'}, "given: topic, assign"),
        ("stream", {"endingOffsetsByTimestamp": "{}"}, "endingOffsetsByTimestamp is for batch"),
        ("batch", {"startingOffsetsByTimestamp": "7"}, "startingOffsetsByTimestamp: 7 is not an"),
        ("batch", {"subExpression": "||"}, "option subExpression is '||'"),
        (
            "stream",
            {"sqlExpression": "a = 1 OR OR b = 2"},
            "option sqlExpression is no condition: the filter 'a = 1 OR OR b = 2' cannot be used: line 1, column 10",
        ),
        ("batch", {"sqlExpression": "a LIKE 'x%'"}, "option sqlExpression is no condition"),
        ("batch", {"keys": "a||b"}, "option keys is 'a||b': blanks separate keys, not ||"),
        ("batch", {"propertiesAs": "xml"}, "propertiesAs is 'xml', it must be json or map"),
        ("stream", {"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon', not a duration"),
        ("stream", {"metadataPath": "abfs://b/x"}, "metadataPath names no folder: 'abfs://b/x' is"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_name(
    use: Use, more: dict[str, str], text: str
) -> None:
    with pytest.raises(PipelineUsageError) as caught:
        read_source_options(LEAST | more, use)
    assert text in str(caught.value)


def test_queues_can_be_assigned() -> None:
    text = '{"A": [0, 2], "B": {"broker-a": [1]}}'
    options = read_source_options({"nameServer": "h:1", "assign": text}, "batch")
    assert options.topics == ("A", "B")
    queues = [MessageQueue(t, b, n) for t in "ABC" for b in ("broker-a", "b") for n in range(3)]
    assert [str(queue) for queue in queues if options.reads(queue)] == [
        "A@broker-a/0",
        "A@broker-a/2",
        "A@b/0",
        "A@b/2",
        "B@broker-a/1",
    ]
    assert options.assigned is not None
    assert options.assigned.missing(queues[:1]) == ["A@any broker/2", "B@broker-a/1"]
    for wrong in ("{}", "[]", '{"A": []}', '{"A": [-1]}', '{"A": {"b": 1}}', '{"a b": [1]}', "{"):
        with pytest.raises(PipelineUsageError, match="option assign"):
            read_source_options({"nameServer": "h:1", "assign": wrong}, "batch")


def test_a_bad_pattern_and_missing_options() -> None:
    with pytest.raises(PipelineUsageError, match="topicPattern is '\\(', no regex"):
        read_source_options({"nameServer": "h:1", "topicPattern": "("}, "batch")
    with pytest.raises(PipelineUsageError, match="given: none"):
        read_source_options({"nameServer": "h:1"}, "batch")
    with pytest.raises(PipelineUsageError, match="needs option nameServer"):
        read_source_options({"topic": "T"}, "batch")


def test_durations() -> None:
    for text, ms in (("500ms", 500), ("30s", 30_000), ("2h", 7_200_000), ("1d", 86_400_000)):
        options = read_source_options(LEAST | {"maxTriggerDelay": text}, "stream")
        assert options.max_trigger_delay_ms == ms
