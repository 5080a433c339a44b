"""`dledger-admin connections`, `config` and `top` against a group in memory."""

from __future__ import annotations

import pytest

from broker.admin.ask import NodeReply
from broker.admin.config import read_settings
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand, make_response
from dledger_mq.remoting.json_body import write_json
from tests.unit.admin.runtime_tables import GROUP
from tests.unit.admin.tool_group import ToolGroup, dledger_admin, in_json, open_tool_group

Out = pytest.CaptureFixture[str]

MEMBER = {"clientId": "c1", "clientAddr": "10.0.0.9:4711", "language": "JAVA", "version": 479}


def answering(group: ToolGroup, code: int, body: bytes) -> None:
    def answer(request: RemotingCommand) -> RemotingCommand:
        return make_response(request.opaque, ResponseCode.SUCCESS, body=body)

    group.answers[code] = answer


async def test_producers_are_listed_with_what_they_are(capfd: Out) -> None:
    async with open_tool_group() as group:
        one = {"clientId": "p1", "remoteIP": "10.0.0.7:5", "language": "GO", "version": 317}
        shown = {"shop": [one | {"lastUpdateTimestamp": 1_795_554_000_000}]}
        answering(group, 328, write_json({"data": shown}))
        code, found = await in_json(group, capfd, "connections", "producers")
        assert (code, found["problems"]) == (0, [])
        assert found["producers"] == [
            {
                "group": "shop",
                "client_id": "p1",
                "address": "10.0.0.7:5",
                "language": "GO",
                "version": "4.5.2",
                "nodes": [group.fake.nodes[0].address],
                "seen_ms": 1_795_554_000_000,
                "topics": {},
            }
        ]
        assert await dledger_admin(group, "producerConnection", "-g", "shop") == 0
        assert "4.5.2" in capfd.readouterr().out
        assert await dledger_admin(group, "producerConnection", "-g", "nobody") == 1
        assert "nobody of nobody is connected to any node" in capfd.readouterr().err


async def test_consumers_are_listed_with_what_they_want(capfd: Out) -> None:
    async with open_tool_group() as group:
        group.fake.groups.add("idle")
        group.members["billing"] = [MEMBER]
        code, found = await in_json(group, capfd, "connections", "consumers")
        (one,) = found["consumers"]
        assert (code, one["group"], one["version"]) == (0, "billing", "5.3.3")
        assert one["topics"] == {"Orders": "red || blue"}
        assert await dledger_admin(group, "consumerConnection", "-g", "billing") == 0
        assert "Orders: red || blue" in capfd.readouterr().out


async def test_a_node_that_does_not_answer_is_named_and_the_rest_is_shown(capfd: Out) -> None:
    async with open_tool_group() as group:
        group.members["billing"] = [MEMBER]
        nodes = f"{group.fake.nodes[0].address};127.0.0.1:1"
        assert await dledger_admin(group, "connections", "consumers", "-b", nodes) == 3
        printed = capfd.readouterr().out
        assert "127.0.0.1:1: Connection refused" in printed
        assert "billing" in printed
        answering(group, 328, b"no JSON")
        code, found = await in_json(group, capfd, "connections", "producers")
        assert code == 3
        assert "body" in found["problems"][0]


SETTINGS = b"# fileReservedTime was changed by 10.0.0.1:5 at noon, for the group\nfileReservedTime=48\nlistenPort=1\n"


async def test_settings_are_shown_and_filtered(capfd: Out) -> None:
    async with open_tool_group() as group:
        answering(group, 26, SETTINGS)
        code, found = await in_json(group, capfd, "config", "show", "-k", "RESERVED")
        address = group.fake.nodes[0].address
        assert (code, found["nodes"]) == (0, {address: {"fileReservedTime": "48"}})
        assert found["notes"][address] == [
            "fileReservedTime was changed by 10.0.0.1:5 at noon, for the group"
        ]
        assert await dledger_admin(group, "getBrokerConfig") == 0
        assert "settings: 2" in capfd.readouterr().out
        assert await dledger_admin(group, "config", "show", "-k", "colour") == 1
        assert await dledger_admin(group, "config", "show", "--differing") == 0
        assert "settings: 0" in capfd.readouterr().out


async def test_a_setting_is_changed_and_shown_before_and_after(capfd: Out) -> None:
    async with open_tool_group() as group:
        held = {"fileReservedTime": "72"}

        def show(request: RemotingCommand) -> RemotingCommand:
            body = "".join(f"{key}={value}\n" for key, value in held.items()).encode()
            return make_response(request.opaque, ResponseCode.SUCCESS, body=body)

        def change(request: RemotingCommand) -> RemotingCommand:
            key, _, value = request.body.decode().strip().partition("=")
            if key not in held:
                text = f"nothing was changed: {key} is unknown"
                return make_response(request.opaque, ResponseCode.SYSTEM_ERROR, text)
            held[key] = value
            return make_response(request.opaque, ResponseCode.SUCCESS)

        group.answers |= {26: show, 25: change}
        words = ("config", "set", "-k", "fileReservedTime", "-v", "48")
        code, said = await in_json(group, capfd, *words)
        (row,) = said["nodes"]
        assert (code, row["before"], row["after"], row["outcome"]) == (0, "72", "48", "done")
        assert await dledger_admin(group, "updateBrokerConfig", "-k", "colour", "-v", "red") == 1
        assert "was not changed: nothing was changed: colour is unknown" in capfd.readouterr().out


async def test_a_change_is_shown_as_it_holds_on_a_node_that_applies_it_a_little_later(
    capfd: Out,
) -> None:
    async with open_tool_group() as group:
        shown = iter(["72", "72", "72", "48"])

        def show(request: RemotingCommand) -> RemotingCommand:
            body = f"fileReservedTime={next(shown)}\n".encode()
            return make_response(request.opaque, ResponseCode.SUCCESS, body=body)

        group.answers[26] = show
        answering(group, 25, b"")
        words = ("config", "set", "-k", "fileReservedTime", "-v", "48")
        code, said = await in_json(group, capfd, *words)
        (row,) = said["nodes"]
        assert (code, row["before"], row["after"], row["outcome"]) == (0, "72", "48", "done")


def test_a_node_without_an_answer_has_no_settings() -> None:
    assert read_settings(NodeReply("a:1", problem="away")).problem == "away"
    refused = make_response(1, ResponseCode.NO_PERMISSION, "strangers")
    assert "code 16: strangers" in read_settings(NodeReply("a:1", refused)).problem


@pytest.mark.slow
async def test_top_shows_leaders_topics_and_groups(capfd: Out) -> None:
    async with open_tool_group() as group:
        address = group.fake.nodes[0].address
        words = ("top", "--once", "-i", "0.2")
        code, seen = await in_json(group, capfd, *words)
        assert code == 0, seen
        assert [each["leader"] for each in seen["leaders"]] == ["n0"]
        (topic,) = seen["topics"]
        assert (topic["topic"], topic["messages"], topic["in_rate"]) == ("Orders", 5, 0.0)
        (billing,) = seen["groups"]
        assert (billing["group"], billing["lag"], billing["seconds"]) == ("billing", 2, None)
        assert await dledger_admin(group, *words, "-t", "Orders") == 0
        printed = capfd.readouterr().out
        assert f"{GROUP}  n0 leads, term 7" in printed
        assert "not as it goes" in printed
        await group.fake.kill(group.fake.nodes[0])
        assert await dledger_admin(group, *words) == 3
        assert address not in capfd.readouterr().out
