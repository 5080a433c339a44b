"""`dledger-admin topics` against a group in memory."""

from __future__ import annotations

from typing import Any

import pytest

from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand, make_response
from tests.unit.admin.tool_group import BROKER, dledger_admin, in_json, open_tool_group

Out = pytest.CaptureFixture[str]


async def test_applications_topics_are_listed_and_all_where_asked(capfd: Out) -> None:
    async with open_tool_group() as group:
        group.fake.create_topic("%RETRY%billing", 1)
        code, found = await in_json(group, capfd, "topics", "list")
        settings = {"read_queues": 2, "write_queues": 2, "perm": "rw", "order": False}
        row = {"broker": BROKER, **settings, "attributes": {}}
        assert (code, found) == (
            0,
            {"topics": [{"topic": "Orders", "kind": "application", "brokers": [row]}]},
        )
        _, found = await in_json(group, capfd, "topics", "list", "--all")
        kinds = {each["topic"]: each["kind"] for each in found["topics"]}
        assert kinds == {"Orders": "application", "%RETRY%billing": "retries"}
        assert await dledger_admin(group, "topicList") == 0
        printed = capfd.readouterr().out
        assert "topics: 1" in printed
        assert "Orders" in printed


async def test_a_topic_is_shown_with_what_its_queues_hold(capfd: Out) -> None:
    async with open_tool_group() as group:
        newest = group.fake.messages("Orders", 0)[-1].store_timestamp_ms
        group.fake.drop_before("Orders", 0, 1)
        code, found = await in_json(group, capfd, "topics", "show", "-t", "Orders")
        assert code == 0
        assert (found["topic"], found["messages"], found["groups"]) == ("Orders", 4, ["billing"])
        (broker,) = found["brokers"]
        assert broker["nodes"] == {"0": group.fake.nodes[0].address}
        assert broker["queues"][0] == {
            "queue": 0,
            "min": 1,
            "max": 4,
            "messages": 3,
            "newest_ms": newest,
        }
        assert await dledger_admin(group, "topics", "show", "-t", "Orders") == 0
        printed = capfd.readouterr().out
        assert "Orders: 4 messages" in printed
        assert "consumed by: billing" in printed
        assert "UTC" in printed


async def test_what_is_not_there_is_said_with_its_own_exit_code(capfd: Out) -> None:
    async with open_tool_group() as group:
        assert await dledger_admin(group, "topicStatus", "-t", "Unknown") == 1
        assert capfd.readouterr().err == "dledger-admin: there is no topic Unknown on broker-a\n"
        assert await dledger_admin(group, "topics", "list", "--broker", "broker-b") == 1
        assert "know no broker group broker-b; known are: broker-a" in capfd.readouterr().err
        assert await dledger_admin(group, "topics", "delete", "-t", "TBW102", "--yes") == 2


async def test_a_topic_is_made_and_changed_only_in_what_is_named(capfd: Out) -> None:
    async with open_tool_group() as group:
        words = ("topics", "create", "-t", "New")
        code, found = await in_json(group, capfd, *words, "-r", "4", "-a", "+message.type=FIFO")
        (row,) = found["brokers"]
        assert (code, row["outcome"], row["before"]) == (0, "done", None)
        assert (row["after"]["read_queues"], row["after"]["write_queues"]) == (4, 8)
        assert row["after"]["attributes"] == {"message.type": "FIFO"}
        _, found = await in_json(group, capfd, *words, "-w", "5", "-p", "r")
        (row,) = found["brokers"]
        assert row["before"]["write_queues"] == 8
        assert (row["after"]["read_queues"], row["after"]["write_queues"]) == (4, 5)
        assert row["after"]["perm"] == "r"
        assert await dledger_admin(group, "updateTopic", "-t", "New", "-p", "6") == 0
        assert "perm rw (before: 4 read and 5 write queues, perm r" in capfd.readouterr().out


def refusing(text: str) -> Any:
    def answer(request: RemotingCommand) -> RemotingCommand:
        return make_response(request.opaque, ResponseCode.SYSTEM_ERROR, text)

    return answer


@pytest.mark.parametrize(
    ("text", "code", "outcome"),
    [
        ("unsupported key: colour", 1, "refused"),
        ("outcome unknown: the leader was lost; the change may have been made", 3, "unknown"),
    ],
)
async def test_a_change_that_failed_says_what_may_be_concluded(
    text: str, code: int, outcome: str, capfd: Out
) -> None:
    async with open_tool_group() as group:
        group.answers[17] = refusing(text)
        words = ("topics", "create", "-t", "Orders", "-a", "+colour=red")
        found, said = await in_json(group, capfd, *words)
        (row,) = said["brokers"]
        assert (found, row["outcome"], row["problem"]) == (code, outcome, text)
        assert await dledger_admin(group, *words) == code
        meaning = {"refused": "was not changed", "unknown": "may have been changed"}[outcome]
        assert f"broker-a {meaning}" in capfd.readouterr().out


async def test_a_topic_is_removed_with_yes_only(capfd: Out) -> None:
    async with open_tool_group() as group:
        words = ("topics", "delete", "-t", "Orders")
        code, said = await in_json(group, capfd, *words)
        assert (code, said["done"], said["messages"]) == (1, False, 5)
        assert said["groups"] == ["billing"]
        assert "Orders" in group.fake.log.queues
        assert await dledger_admin(group, *words) == 1
        assert "--yes removes Orders" in capfd.readouterr().err
        code, said = await in_json(group, capfd, *words, "--yes")
        assert (code, said["done"]) == (0, True)
        assert "Orders" not in group.fake.log.queues
        assert await dledger_admin(group, *words, "--yes") == 1, "there is none"
