"""`dledger-admin groups` and `offsets` against a group in memory."""

from __future__ import annotations

import pytest

from dledger_mq import PoppedMessage, SimpleConsumer
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand, make_response
from tests.unit.admin.tool_group import BROKER, ToolGroup, dledger_admin, in_json, open_tool_group

Out = pytest.CaptureFixture[str]

MEMBER = {"clientId": "c1", "clientAddr": "10.0.0.9:4711", "language": "GO", "version": 317}


async def test_groups_are_listed_with_those_that_have_offsets_only(capfd: Out) -> None:
    async with open_tool_group() as group:
        group.fake.offsets["old", "Orders", 0] = 1
        group.fake.groups.add("TOOLS_CONSUMER")
        code, found = await in_json(group, capfd, "groups", "list")
        rows = {each["group"]: each["brokers"] for each in found["groups"]}
        assert (code, list(rows)) == (0, ["billing", "old"])
        settings = {"consume": True, "broadcast": True, "order": False}
        assert rows["billing"] == [
            {
                "broker": BROKER,
                "settings": {**settings, "retries": 16, "retry_queues": 1},
                "topics": ["Orders"],
            }
        ]
        assert rows["old"][0]["settings"] is None
        assert await dledger_admin(group, "groups", "list", "--all") == 0
        assert "TOOLS_CONSUMER" in capfd.readouterr().out


async def test_a_group_is_shown_with_its_members_and_lag(capfd: Out) -> None:
    async with open_tool_group() as group:
        group.members["billing"] = [MEMBER]
        code, found = await in_json(group, capfd, "groups", "show", "-g", "billing")
        assert code == 0
        assert found["members"] == [
            {"client_id": "c1", "address": "10.0.0.9:4711", "language": "GO", "version": "4.5.2"}
        ]
        assert found["topics"] == [
            {
                "topic": "Orders",
                "subscription": "red || blue",
                "queues": 2,
                "lag": 2,
                "in_flight": 0,
            }
        ]
        assert await dledger_admin(group, "groups", "show", "-g", "billing") == 0
        assert "c1 from 10.0.0.9:4711 (GO, 4.5.2)" in capfd.readouterr().out
        assert await dledger_admin(group, "groups", "show", "-g", "nobody") == 1


async def test_what_is_popped_and_not_acknowledged_is_shown(
    capfd: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_tool_group() as group:
        subscriptions = {"Orders": "*"}
        async with SimpleConsumer(
            group.fake.namesrv, "popping", subscriptions=subscriptions, start_from="first"
        ) as consumer:
            found: list[PoppedMessage] = []
            while len(found) < 5:
                found += await consumer.receive()
            await consumer.ack(found[:2])
        _, said = await in_json(group, capfd, "groups", "show", "-g", "popping")
        rows = {each["topic"]: (each["lag"], each["in_flight"]) for each in said["topics"]}
        assert rows["Orders"] == (0, 3)
        code, said = await in_json(group, capfd, "lag", "-t", "Orders")
        counts = {"billing": 0, "popping": 0}
        for each in said["queues"]:
            counts[each["group"]] += each["in_flight"]
        assert (code, counts) == (0, {"billing": 0, "popping": 3})
        assert await dledger_admin(group, "lag", "-g", "popping", "-t", "Orders") == 0
        assert "in flight" in capfd.readouterr().out
        monkeypatch.setattr(group.fake.pops, "counts", lambda: None)  # as of RocketMQ's brokers
        _, said = await in_json(group, capfd, "lag", "-g", "popping")
        assert {each["in_flight"] for each in said["queues"]} == {None}
        assert await dledger_admin(group, "lag", "-g", "popping") == 0


async def test_a_group_is_made_and_changed_only_in_what_is_named(capfd: Out) -> None:
    async with open_tool_group() as group:
        words = ("groups", "create", "-g", "new")
        code, found = await in_json(group, capfd, *words, "-r", "3")
        (row,) = found["brokers"]
        assert (code, row["before"], row["after"]["retries"]) == (0, None, 3)
        _, found = await in_json(group, capfd, *words, "--consume", "false")
        (row,) = found["brokers"]
        assert (row["after"]["retries"], row["after"]["consume"]) == (3, False)
        assert await dledger_admin(group, "updateSubGroup", "-g", "new", "-s", "true") == 0
        assert "new: may consume, 3 retries" in capfd.readouterr().out


async def test_a_group_is_removed_with_yes_and_when_nobody_is_online(capfd: Out) -> None:
    async with open_tool_group() as group:
        words = ("groups", "delete", "-g", "billing")
        code, said = await in_json(group, capfd, *words)
        assert (code, said["done"], said["topics"]) == (1, False, ["Orders"])
        group.members["billing"] = [MEMBER]
        assert await dledger_admin(group, *words, "--yes") == 1
        assert "nothing was removed: c1 is online" in capfd.readouterr().err
        assert "billing" in group.fake.groups
        del group.members["billing"]
        assert await dledger_admin(group, *words, "--yes", "--keep-offsets") == 0
        assert ("billing", "Orders", 0) in group.fake.offsets
        assert "billing" not in group.fake.groups
        assert await dledger_admin(group, *words, "--yes") == 0
        assert group.fake.offsets == {}


async def test_places_of_a_group_are_shown(capfd: Out) -> None:
    async with open_tool_group() as group:
        group.fake.drop_before("Orders", 0, 3)
        code, found = await in_json(group, capfd, "offsets", "show", "-g", "billing")
        first, second = found["queues"]
        assert code == 0
        assert first == {
            "topic": "Orders",
            "broker": BROKER,
            "queue": 0,
            "min": 3,
            "max": 4,
            "committed": 2,
            "lag": 1,
            "missed": 1,
            "consumed_ms": None,
        }
        assert (second["committed"], second["lag"], second["missed"]) == (None, None, 0)
        assert await dledger_admin(group, "offsets", "show", "-g", "billing", "-t", "Orders") == 0
        assert "billing: lag 1 messages" in capfd.readouterr().out
        assert await dledger_admin(group, "offsets", "show", "-g", "nobody") == 1


def places(group: ToolGroup) -> dict[int, int]:
    return {
        queue: offset
        for (name, _, queue), offset in group.fake.offsets.items()
        if name == "billing"
    }


RESET = ("offsets", "reset", "-g", "billing", "-t", "Orders")


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (("--to", "earliest"), {0: 1, 1: 0}),
        (("--to", "latest"), {0: 4, 1: 1}),
        (("--to-offset", "3"), {0: 3, 1: 1}),
        (("--to-offset", "0"), {0: 1, 1: 0}),
        (("--to-offset", "0", "-q", "1"), {0: 2, 1: 0}),
        (("--to-time", "1h"), {0: 1, 1: 0}),
        (("--to-time", "now"), {0: 4, 1: 1}),
    ],
)
async def test_a_reset_is_shown_and_then_carried_out(
    words: tuple[str, ...], after: dict[int, int], capfd: Out
) -> None:
    async with open_tool_group() as group:
        group.fake.drop_before("Orders", 0, 1)
        before = places(group)
        code, shown = await in_json(group, capfd, *RESET, *words)
        assert (code, shown["done"], places(group)) == (1, False, before)
        code, done = await in_json(group, capfd, *RESET, *words, "--yes")
        assert (code, done["done"], done["problems"]) == (0, True, [])
        assert done["queues"] == shown["queues"]
        assert places(group) == after
        assert {row["queue"]: row["new"] for row in done["queues"]}.items() <= after.items()


async def test_a_preview_says_what_a_reset_means(capfd: Out) -> None:
    async with open_tool_group() as group:
        assert await dledger_admin(group, *RESET, "--to", "earliest") == 1
        said = capfd.readouterr()
        assert "2 again" in said.out
        assert "begins there, 1 to come" in said.out
        assert "nothing was changed: --yes sets the offsets" in said.err
        words = ("skipAccumulatedMessage", "-g", "billing", "-t", "Orders", "--yes")
        assert await dledger_admin(group, *words) == 0
        assert "2 left out" in capfd.readouterr().out
        assert places(group) == {0: 4, 1: 1}


async def test_a_group_that_is_online_is_moved_by_a_broker_that_makes_members_follow(
    capfd: Out,
) -> None:
    async with open_tool_group() as group:
        group.members["billing"] = [MEMBER]
        group.moves_groups = False
        code, said = await in_json(group, capfd, *RESET, "--to", "latest", "--yes")
        assert (code, said["done"], said["members"]) == (1, False, ["c1"])
        assert "cannot make members follow" in said["problems"][0]["problem"]
        assert places(group) == {0: 2}
        group.moves_groups = True
        code, said = await in_json(group, capfd, *RESET, "--to", "latest", "--yes")
        assert (code, said["done"], said["members"]) == (0, True, ["c1"])
        assert places(group) == {0: 4, 1: 1}
        assert await dledger_admin(group, *RESET, "--to", "latest") == 1
        assert "online: c1; they go on there, if the broker can make them" in capfd.readouterr().out


@pytest.mark.parametrize("is_ours", [True, False])
async def test_other_brokers_get_a_commit(is_ours: bool, capfd: Out) -> None:
    """RocketMQ 4.x would take a reset of one queue for one of all, to the end."""
    async with open_tool_group() as group:
        group.is_ours, group.moves_groups = is_ours, not is_ours
        words = (*RESET, "--to-offset", "1", "-q", "0", "--yes")
        code, said = await in_json(group, capfd, *words)
        assert (code, said["done"], places(group)) == (0, True, {0: 1})


async def test_a_place_that_does_not_hold_is_told(capfd: Out) -> None:
    """The broker passes over a commit that goes back, or a member that came online has committed its own."""
    async with open_tool_group() as group:
        group.moves_groups = False

        def answer(request: RemotingCommand) -> RemotingCommand:
            return make_response(request.opaque, ResponseCode.SUCCESS)

        group.answers[15] = answer
        code, said = await in_json(group, capfd, *RESET, "--to", "earliest", "-q", "0", "--yes")
        assert (code, said["done"]) == (1, False)
        assert "the group is at 2: the broker did not go there" in said["problems"][0]["problem"]


async def test_a_member_that_goes_on_from_the_new_place_leaves_the_outcome_open(capfd: Out) -> None:
    """The group is neither where it was nor where it was moved to: that it was not changed would be a lie."""
    async with open_tool_group() as group:
        group.moves_groups = False

        def answer(request: RemotingCommand) -> RemotingCommand:
            group.fake.offsets["billing", "Orders", 0] = 1
            return make_response(request.opaque, ResponseCode.SUCCESS)

        group.answers[15] = answer
        code, said = await in_json(group, capfd, *RESET, "--to", "earliest", "-q", "0", "--yes")
        assert (code, said["problems"][0]["outcome"]) == (3, "unknown")


async def test_a_broker_that_does_not_say_what_it_is_moves_nobody(capfd: Out) -> None:
    async with open_tool_group() as group:

        def refuse(request: RemotingCommand) -> RemotingCommand:
            return make_response(request.opaque, ResponseCode.NO_PERMISSION, "strangers")

        group.answers[28] = refuse
        code, said = await in_json(group, capfd, *RESET, "--to", "latest", "--yes")
        outcomes = {each["outcome"] for each in said["problems"]}
        assert (code, said["done"], outcomes, places(group)) == (1, False, {"refused"}, {0: 2})


async def test_what_cannot_be_reset_is_said(capfd: Out) -> None:
    async with open_tool_group() as group:
        assert await dledger_admin(group, *RESET, "--to", "latest", "-q", "7") == 1
        assert "no queue [7] of topic Orders" in capfd.readouterr().err
        words = ("offsets", "reset", "-g", "billing", "-t", "Unknown", "--to", "latest")
        assert await dledger_admin(group, *words) == 1
        assert "there is no topic Unknown" in capfd.readouterr().err


async def test_a_clone_is_shown_and_then_carried_out(capfd: Out) -> None:
    async with open_tool_group() as group:
        words = ("offsets", "clone", "-s", "billing", "-d", "copy")
        code, said = await in_json(group, capfd, *words)
        assert (code, said["done"]) == (1, False)
        (row,) = said["queues"]
        assert (row["queue"], row["source"], row["target"]) == (0, 2, None)
        code, said = await in_json(group, capfd, *words, "--yes")
        assert (code, said["done"], said["queues"][0]["target"]) == (0, True, 2)
        group.members["copy"] = [MEMBER]
        assert await dledger_admin(group, "cloneGroupOffset", *words[2:], "--yes") == 1
        assert "c1 of copy is online" in capfd.readouterr().err
        group.fake.offsets["billing", "Orders", 0] = 4
        assert await dledger_admin(group, *words, "--yes") == 1
        assert group.fake.offsets["copy", "Orders", 0] == 2
        assert await dledger_admin(group, "offsets", "clone", "-s", "nobody", "-d", "copy") == 1
