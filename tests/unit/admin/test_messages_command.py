"""`dledger-admin messages` against a group in memory."""

from __future__ import annotations

import base64

import pytest

from broker.admin import messages
from dledger_mq.message.ids import offset_msg_id
from tests.unit.admin.tool_group import BROKER, ToolGroup, dledger_admin, in_json, open_tool_group

Out = pytest.CaptureFixture[str]


def id_of(group: ToolGroup, queue: int, place: int) -> str:
    record = group.fake.messages("Orders", queue)[place]
    return offset_msg_id(record.store_host, record.physical_offset)


async def bodies(group: ToolGroup, capfd: Out, *words: str) -> list[str]:
    code, found = await in_json(group, capfd, "messages", *words)
    assert code == 0
    return [each["body"] for each in found["messages"]]


async def test_a_message_is_found_by_its_id_with_all_that_it_has(capfd: Out) -> None:
    async with open_tool_group() as group:
        wanted = id_of(group, 0, 2)
        code, found = await in_json(group, capfd, "messages", "id", "-i", wanted.lower())
        (one,) = found["messages"]
        record = group.fake.messages("Orders", 0)[2]
        place = (one["topic"], one["broker"], one["queue"], one["offset"])
        assert (code, found["total"], place) == (0, 1, ("Orders", BROKER, 0, 2))
        assert (one["message_id"], one["unique_key"]) == (wanted, "U2")
        assert (one["keys"], one["tags"]) == (["order-2", "all"], None)
        assert one["stored_ms"] == record.store_timestamp_ms
        assert one["properties"] == {"UNIQ_KEY": "U2", "KEYS": "order-2 all"}
        assert (one["body"], one["body_encoding"], one["body_bytes"]) == ("body 2", "text", 6)
        assert await dledger_admin(group, "queryMsgById", "-i", wanted) == 0
        printed = capfd.readouterr().out
        assert "Orders, broker-a queue 0, offset 2" in printed
        assert "    body 2\n" in printed
        assert "  property     KEYS = order-2 all\n" in printed


async def test_an_id_of_another_store_is_not_answered_with_what_stands_there(capfd: Out) -> None:
    async with open_tool_group() as group:
        stranger = "0A000001" + id_of(group, 0, 2)[8:]
        assert await dledger_admin(group, "messages", "id", "-i", stranger) == 1
        assert "what stands at its place has another id" in capfd.readouterr().err
        assert await dledger_admin(group, "messages", "id", "-i", "F" * 16 + "0" * 16) == 1


async def test_messages_are_found_by_keys(capfd: Out) -> None:
    async with open_tool_group() as group:
        assert await bodies(group, capfd, "key", "-t", "Orders", "-k", "order-1") == ["body 1"]
        found = await bodies(group, capfd, "key", "-t", "Orders", "-k", "all", "-c", "2")
        assert found == ["body 2", "body 3"], "the newest"
        assert await bodies(group, capfd, "unique-key", "-t", "Orders", "-i", "U3") == ["body 3"]
        unique = ("messages", "unique-key", "-t", "Orders", "-i", "order-1")
        assert await dledger_admin(group, *unique) == 1, "a key is no unique key"
        words = ("messages", "key", "-t", "Orders", "-k", "all", "--end", "1h")
        assert await dledger_admin(group, *words) == 1
        assert "no message of Orders with the key all" in capfd.readouterr().err


async def test_all_messages_with_a_key_are_found_page_by_page(capfd: Out) -> None:
    async with open_tool_group() as group:
        for number in range(150):
            group.put("Orders", number % 2, b"%d" % number, KEYS="many")
        words = ("key", "-t", "Orders", "-k", "many", "-kt", "keys", "-c", "1000")
        assert await bodies(group, capfd, *words) == [str(number) for number in range(150)]
        assert [each["maxNum"] for each in group.queries] == ["64"] * 4
        assert {each["indexType"] for each in group.queries} == {"K"}
        group.queries.clear()
        assert await bodies(group, capfd, *words[:-1], "70") == [str(n) for n in range(80, 150)]
        assert [each["maxNum"] for each in group.queries] == ["64", "6"]
        group.is_ours = False  # it gives the newest again and again
        assert await bodies(group, capfd, *words) == [str(number) for number in range(86, 150)]


async def test_a_follower_that_answers_says_what_it_lacks(capfd: Out) -> None:
    async with open_tool_group() as group:
        words = ("messages", "key", "-t", "Orders", "-k", "order-1", "--broker-id", "0")
        _, found = await in_json(group, capfd, *words)
        assert found["answered_by"] == [
            {"broker": BROKER, "member": "n0", "leads": True, "behind": 0}
        ]
        group.standing |= {"dledgerLeads": "false", "dledgerBehind": "17"}
        assert await dledger_admin(group, *words) == 0
        said = capfd.readouterr().out
        assert "broker-a: n0 has answered, which follows; 17 entries are not applied yet" in said
        group.standing["dledgerBehind"] = "many"
        assert await dledger_admin(group, *words) == 3
        assert "unreadable answer" in capfd.readouterr().err
        assert await dledger_admin(group, *words[:-1], "7") == 3
        assert "no node of this group has the id 7" in capfd.readouterr().err


async def test_messages_are_read_from_a_place_on(capfd: Out) -> None:
    async with open_tool_group() as group:
        place = ("offset", "-t", "Orders", "-q", "0", "-o")
        assert await bodies(group, capfd, *place, "1") == ["body 1"]
        assert await bodies(group, capfd, *place, "2", "-c", "9") == ["body 2", "body 3"]
        group.fake.drop_before("Orders", 0, 2)
        for gone in ("1", "4"):
            assert await dledger_admin(group, "messages", *place, gone) == 1
            assert f"no offset {gone} in queue 0 of Orders: it has 2 to 3" in capfd.readouterr().err
        words = ("messages", "offset", "-t", "Orders", "-q", "9", "-o", "0")
        assert await dledger_admin(group, *words) == 1


async def test_messages_of_all_queues_are_read_by_time(capfd: Out) -> None:
    async with open_tool_group() as group:
        code, found = await in_json(group, capfd, "messages", "range", "-t", "Orders", "-c", "3")
        assert (code, found["total"], len(found["messages"])) == (0, 5, 3)
        times = [each["stored_ms"] for each in found["messages"]]
        assert times == sorted(times)
        newest = await bodies(group, capfd, "range", "-t", "Orders", "--newest", "-c", "1")
        assert newest == ["ff00"]
        assert await bodies(group, capfd, "range", "-t", "Orders", "--end", "1h") == []
        at_ms = str(times[1])
        then = ("range", "-t", "Orders", "--begin", at_ms, "--end", at_ms)
        found_then = await bodies(group, capfd, *then)
        assert found_then == ["body 1"], "both ends count"
        found_now = await bodies(group, capfd, "range", "-t", "Orders", "--begin", "1h")
        assert len(found_now) == 5
        assert await dledger_admin(group, "printMsg", "-t", "Orders", "-c", "2") == 0
        assert "messages: 2 of 5" in capfd.readouterr().out
        assert await dledger_admin(group, "printMsg", "-t", "Unknown") == 1


async def test_no_more_is_read_than_there_is_room_for(
    capfd: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_tool_group() as group:
        size = group.fake.messages("Orders", 0)[0].size_bytes
        monkeypatch.setattr(messages, "READ_BYTES_MAX", 2 * size)
        assert len(await bodies(group, capfd, "offset", "-t", "Orders", "-q", "0", "-o", "0")) == 1
        assert await dledger_admin(group, "messages", "range", "-t", "Orders") == 2
        assert "ask for fewer with --limit" in capfd.readouterr().err


async def test_bodies_are_shown_as_asked_and_bounded(capfd: Out) -> None:
    async with open_tool_group() as group:
        group.put("Orders", 1, b"a\x1b[31mb\nc\xc3\xa9" + b"x" * 5000)
        red = ("offset", "-t", "Orders", "-q", "1", "-o", "0")
        long = (*red[:-1], "1")
        group.put("Orders", 0, b"a\0b")
        assert await bodies(group, capfd, "offset", "-t", "Orders", "-q", "0", "-o", "4") == [
            "610062"
        ]
        assert await bodies(group, capfd, *red) == ["ff00"]
        coded = await bodies(group, capfd, *red, "--body", "base64")
        assert base64.b64decode(coded[0]) == b"\xff\x00"
        assert await bodies(group, capfd, *red, "--body", "none") == [None]
        _, found = await in_json(group, capfd, "messages", *long, "--body-bytes", "10")
        (one,) = found["messages"]
        assert (one["body"], one["body_cut"]) == ("a\x1b[31mb\nc", True), "no half characters"
        assert one["body_bytes"] == 5011
        assert await dledger_admin(group, "messages", *long) == 0
        printed = capfd.readouterr().out
        assert "a\\x1b[31mb\n    c" in printed
        assert "... 3987 bytes more: --body-bytes" in printed
        assert await dledger_admin(group, "messages", *red, "--body", "hex") == 0
        assert "000000  ff 00" in capfd.readouterr().out
