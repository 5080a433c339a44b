"""Message trace with Java's own classes: each reads what the other wrote, and mqadmin shows both."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from dledger_mq import Message, ReceivedMessage
from dledger_mq.blocking import Producer, PushConsumer
from dledger_mq.client.inspector import Inspector
from dledger_mq.client.trace_reader import ClientTrace, read_trace
from dledger_mq.message.names import TRACE_TOPIC
from dledger_mq.message.trace_records import (
    ConsumeEnd,
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TracedKind,
    TraceRecord,
    encode_trace_record,
)
from jepsen.processes import SMALL_SEGMENTS, Group, poll, program
from tests.interop.conftest import (
    JAVAS,
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    java_words,
    lacking,
)
from tests.interop.mqadmin import Mqadmin
from tests.interop.test_mqadmin import tools

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENCE_S = WAIT_S


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    settings = f"{SMALL_SEGMENTS}traceTopicEnable=true\n"
    folder = tmp_path_factory.mktemp("traced")
    with Group(folder, nodes=1, settings=settings) as processes:
        processes.start()
        processes.wait_listening()
        running = RunningGroup(processes)
        running.wait_leader()
        running.wait_leader(topic=TRACE_TOPIC)
        yield running


def trace_of(group: RunningGroup, key: str, topic: str = TRACE_TOPIC) -> ClientTrace:
    async def read() -> ClientTrace:
        async with Inspector(group.namesrv) as inspector:
            return await read_trace(inspector, key, topic=topic)

    return trio.run(read)


def wait_ends(group: RunningGroup, key: str, count: int) -> ClientTrace:
    """Wait until a send and so many calls of handlers are told to their end."""

    def is_whole() -> bool:
        found = trace_of(group, key)
        return (
            len(found.sends) == 1
            and sum(one.after is not None for one in found.deliveries) >= count
        )

    assert poll(is_whole, PATIENCE_S), trace_of(group, key)
    return trace_of(group, key)


def test_each_reads_the_other_and_mqadmin_shows_both(
    group: RunningGroup, name: str, java: ForeignClient, tmp_path: Path
) -> None:
    """A message of Java's producer and one of ours, each consumed by a group of Java's and one of ours."""
    jars, classes = tools(java.kind.removeprefix("java-"))
    topic = group.create_topic(name, 1)
    ours, theirs = f"{name}-ours", f"{name}-java"
    taken: list[ReceivedMessage] = []
    to = ("--topic", topic, "--trace-topic", TRACE_TOPIC, "--steered")
    sending = java.start("produce", *to, "--count", "1", "--tag", "red", "--key-prefix", "k")
    reading = java.start("consume", *to, "--count", "9", "--group", theirs, "--timeout", "500")
    assert reading.stdin is not None
    with (
        Listener(sending) as sent,
        Listener(reading) as read,
        Producer(group.namesrv, "our-shop", trace=True, timeout_s=WAIT_S) as producer,
        PushConsumer(
            group.namesrv,
            ours,
            taken.append,
            subscriptions={topic: "*"},
            start_from="first",
            trace=True,
        ),
    ):
        sent.wait_lines(1)
        of_java = str(sent.lines[0]["msg_id"])
        of_ours = producer.send(Message(topic, b"ours", tags="blue", keys=("a", "b"))).unique_key
        read.wait_lines(1)
        reading.stdin.write("\n")
        reading.stdin.flush()
        traces = {key: wait_ends(group, key, 2) for key in (of_java, of_ours)}

    for key, shop, tag in (
        (of_java, "interop_java_producer", "red"),
        (of_ours, "our-shop", "blue"),
    ):
        (send,) = traces[key].sends
        assert (send.told.group, send.told.tags, send.told.is_success) == (shop, tag, True)
        assert (send.told.region, send.told.store_host) == ("DefaultRegion", group.leader().address)
        assert {one.group for one in traces[key].deliveries} == {ours, theirs}
        assert all(one.after is not None and one.after.is_success for one in traces[key].deliveries)
        assert traces[key].unreadable == 0
    with Mqadmin(jars, classes, tmp_path) as mqadmin:
        for key, shop in ((of_java, "interop_java_producer"), (of_ours, "our-shop")):
            printed = mqadmin.run(["queryMsgTraceById", "-n", group.namesrv, "-i", key])
            rows = [
                line.split() for line in printed.splitlines() if line.startswith(("Pub ", "Sub "))
            ]
            shown = sorted((row[0], row[1], row[2], row[-1]) for row in rows)
            assert shown == [
                ("Pub", shop, "127.0.0.1", "success"),
                *sorted(("Sub", one, "127.0.0.1", "success") for one in (ours, theirs)),
            ], printed


def test_a_custom_topic_and_transactions_are_read(
    group: RunningGroup, name: str, java: ForeignClient
) -> None:
    topic, own = group.create_topic(name), group.create_topic(f"{name}-trace", 1)
    child = java.start(
        *(
            "produce",
            "--topic",
            topic,
            "--count",
            "2",
            "--transaction",
            "--timeout",
            "500",
            "--group",
            f"{name}-p",
        ),
        *("--trace-topic", own, "--steered"),
    )
    with Listener(child) as said:
        said.wait_lines(2)
        keys = [str(line["msg_id"]) for line in said.lines[:2]]
        assert poll(lambda: all(trace_of(group, key, own).ends for key in keys), PATIENCE_S)
    found = [trace_of(group, key, own) for key in keys]
    assert [one.sends[0].told.kind for one in found] == [TracedKind.HALF, TracedKind.HALF]
    assert [one.ends[0].told.state for one in found] == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"]
    words = ("messages", "trace", "-n", group.namesrv, "-i", keys[1], "-t", own, "--json")
    shown = subprocess.run(
        [program("dledger-admin"), *words], capture_output=True, check=True, timeout=WAIT_S
    )
    told = json.loads(shown.stdout)
    assert [each["state"] for each in told["transactions"]] == ["ROLLBACK_MESSAGE"]
    assert [each["group"] for each in told["sends"]] == [f"{name}-p"]


REQUEST = "7" * 32
RECORDS: list[tuple[TraceRecord, str]] = [
    (
        PubTrace(
            at_ms=1, region="r", group="g", topic="T", message_id="ID", tags="", keys="a b", store_host="h:1",
            body_bytes=9, cost_ms=7, kind=TracedKind.DELAY, offset_message_id="OFF", is_success=True,
        ),
        "Pub 1 r g 7 true 0 T ID null a_b h:1 9 0 Delay_Msg OFF null null false",
    ),
    (
        SubBeforeTrace(2, "", "g", REQUEST, "ID", 3, ""),
        "SubBefore 2 null g 0 true 0  ID  null * 0 3 null  null null false",
    ),
    (
        SubAfterTrace(REQUEST, "ID", 5, is_success=False, keys="", end=ConsumeEnd.EXCEPTION, at_ms=4, group="g"),
        "SubAfter 4  g 5 false 2  ID  null * 0 0 null  null null false",
    ),
    (
        EndTransactionTrace(
            at_ms=6, region="r", group="g", topic="T", message_id="ID", tags="red", keys="", store_host="",
            kind=TracedKind.COMMIT, transaction_id="TX", state="UNKNOW", is_from_check=True,
        ),
        "EndTransaction 6 r g 0 true 0 T ID red null null 0 0 Trans_msg_Commit  TX UNKNOW true",
    ),
    (RecallTrace(8, "r", "g", "T", "ID", is_success=True), ""),
]  # fmt: skip
"""Records of ours, some without values; and what Java's decoder makes of them, which passes over those of recalls.

A star stands where it puts the machine's own address, since the record has none.
"""


@pytest.mark.parametrize("kind", JAVAS)
def test_javas_decoder_reads_what_we_write(kind: str) -> None:
    if reason := lacking(kind):
        pytest.skip(reason)
    body = "".join(encode_trace_record(record) for record, _ in RECORDS).encode()
    done = subprocess.run(
        java_words(kind, "TraceReader"),
        input=base64.b64encode(body) + b"\n",
        capture_output=True,
        check=True,
        timeout=WAIT_S,
    )
    rows = [line.split("\t") for line in done.stdout.decode().splitlines() if line]
    read = []
    for row in rows:
        if row[0] == "Recall":
            continue
        del row[
            4
        ]  # whether the request id, which Java makes up where there is none, has 32 characters
        row[11] = "*" if row[0].startswith("Sub") else row[11]
        read.append(" ".join(value.replace(" ", "_") for value in row))
    assert read == [wanted for _, wanted in RECORDS if wanted]
