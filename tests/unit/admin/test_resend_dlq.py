"""Dead letters get another chance (rule L20)."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from broker.admin.cli import main
from broker.admin.resend_dlq import TO_ORIGIN, TO_RETRY, Choice, ResendOutcome, again, resend
from dledger_mq import ClientUsageError, Message, MessageQueue, NoRouteError, ReceivedMessage
from dledger_mq.client.messages import check_message, message_properties
from dledger_mq.message.properties import decode_properties, encode_properties
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.testing import FakeGroup, open_fake_group

DLQ = "%DLQ%g"


def bury(group: FakeGroup, key: str, origin: str | None = "Orders", **more: str) -> None:
    named = {"UNIQ_KEY": key, "ORIGIN_MESSAGE_ID": f"origin-{key}", "WAIT": "false", **more}
    if origin is not None:
        named["RETRY_TOPIC"] = origin
    if DLQ not in group.log.queues:
        group.create_topic(DLQ, 1)
    group.put(DLQ, 0, key.encode(), encode_properties(named))


def bodies(group: FakeGroup, topic: str) -> list[bytes]:
    return sorted(message.body for message in group.messages(topic))


def letter(**changes: Any) -> ReceivedMessage:
    usual: dict[str, Any] = {
        "topic": DLQ,
        "body": b"b",
        "queue": MessageQueue(DLQ, "broker-a", 0),
        "queue_offset": 0,
        "physical_offset": 0,
        "message_id": "ID",
        "unique_key": "u",
        "tags": "TagA",
        "keys": ("k1", "k2"),
        "properties": {},
        "flag": 5,
        "born_timestamp_ms": 0,
        "store_timestamp_ms": 0,
        "reconsume_times": 16,
    }
    return ReceivedMessage(**(usual | changes))


SYSTEM = {
    "UNIQ_KEY": "u",
    "TAGS": "TagA",
    "KEYS": "k1 k2",
    "RETRY_TOPIC": "Orders",
    "WAIT": "false",
    "DELAY": "18",
    "REAL_TOPIC": "%RETRY%g",
    "REAL_QID": "0",
    "CLUSTER": "C",
    "TIMER_OUT_MS": "5",
    "TIMER_DELAY_MS": "5",
}


def test_it_is_the_message_that_it_was() -> None:
    found = again(letter(properties=SYSTEM | {"colour": "red"}), "g", to=TO_RETRY)
    assert isinstance(found, Message)
    check_message(found)
    assert (found.topic, found.body, found.flag, found.delay_level) == ("%RETRY%g", b"b", 5, 0)
    assert decode_properties(message_properties(found, "u")) == {
        "UNIQ_KEY": "u",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "RETRY_TOPIC": "Orders",
        "colour": "red",
    }


def test_to_the_origin_it_is_no_retry() -> None:
    found = again(letter(properties=SYSTEM), "g", to=TO_ORIGIN)
    assert isinstance(found, Message)
    assert found.topic == "Orders"
    assert "RETRY_TOPIC" not in found.properties


def test_what_cannot_be_sent_says_why() -> None:
    assert "RETRY_TOPIC" in str(again(letter(), "g", to=TO_RETRY))
    assert "compressed" in str(again(letter(properties=SYSTEM, is_packed=True), "g", to=TO_RETRY))


async def run(group: FakeGroup, choice: Choice | None = None, **more: Any) -> ResendOutcome:
    with trio.fail_after(60):
        return await resend(group.namesrv, "g", choice or Choice(), **more)


async def test_each_is_sent_once_also_by_a_second_run() -> None:
    async with open_fake_group() as group:
        for number in range(40):
            bury(group, f"k{number}")
        assert (await run(group)).resent == [f"k{number}" for number in range(40)]
        assert bodies(group, "%RETRY%g") == sorted(b"k%d" % number for number in range(40))
        assert (await run(group)).examined == 0
        bury(group, "new")
        assert (await run(group)).resent == ["new"]
        assert (await run(group, Choice(is_all=True), is_dry=True)).examined == 41


async def test_choices_move_no_offset() -> None:
    async with open_fake_group() as group:
        bury(group, "a")
        bury(group, "b", "Other")
        bury(group, "c")
        assert (await run(group, Choice(origin="Other"), to=TO_ORIGIN)).resent == ["b"]
        assert bodies(group, "Other") == [b"b"]
        assert (await run(group, Choice(message_ids=frozenset({"origin-c"})))).resent == ["c"]
        assert (await run(group, is_dry=True)).resent == ["a", "b", "c"]
        assert (await run(group, limit=2)).resent == ["a", "b"]
        assert (await run(group)).resent == ["c"]
        assert not group.offsets.get(("g", "Other", 0))


async def test_what_fails_is_told_and_tried_again_next_time() -> None:
    async with open_fake_group() as group:
        bury(group, "lost", None)
        bury(group, "a")
        bury(group, "b")
        group.script.extend([0, int(ResponseCode.MESSAGE_ILLEGAL)])
        first = await run(group, to=TO_ORIGIN)
        assert first.resent == ["a"]
        assert set(first.failed) == {"lost", "b"}
        assert "RETRY_TOPIC" in first.failed["lost"]
        second = await run(group, to=TO_ORIGIN)
        assert (second.resent, second.failed) == (["b"], {})


async def test_without_dead_letters_or_with_bad_wishes() -> None:
    async with open_fake_group() as group:
        group.has_topics_on_demand = False
        with pytest.raises(NoRouteError):
            await run(group)
        with pytest.raises(ClientUsageError, match="limit"):
            await run(group, limit=0)


async def test_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    async with open_fake_group() as group:
        bury(group, "a")
        bury(group, "lost", None)

        async def command(*arguments: str) -> int:
            whole = ["resend-dlq", "g", "-n", group.namesrv, *arguments]
            return await trio.to_thread.run_sync(main, whole)

        assert await command("--dry-run", "--json") == 1
        said = json.loads(capfd.readouterr().out)
        assert (said["resent"], said["examined"], said["dryRun"]) == (["a"], 2, True)
        assert await command() == 1
        assert "2 dead letters examined" in capfd.readouterr().out
        assert await command("--msg-id", "a", "--to", "origin") == 0
        assert bodies(group, "Orders") == [b"a"]
        assert await command("--limit", "0") == 2
