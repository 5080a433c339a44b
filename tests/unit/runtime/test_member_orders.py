"""The orders of an operator: what the exit code and the text say when one ends in the middle."""

from __future__ import annotations

import argparse
from typing import Any, cast

import pytest

from dledger.codec.client_rpc import MembersAnswer
from dledger.errors import (
    DeadlineError,
    DLedgerError,
    LeadershipLostError,
    MembersUnchangedError,
    UsageError,
)
from dledger.raft.configuration import ChangeKind, MemberChange
from dledger.runtime import members_command
from dledger.runtime.commands import EXIT_DONE, EXIT_REFUSED, EXIT_UNKNOWN

NEW = "n3-127.0.0.1:5"


def seen(
    *voters: str, learners: tuple[str, ...] = (), joining: tuple[str, ...] = ()
) -> MembersAnswer:
    return MembersAnswer(
        1, "n0", 1, 3, True, list(voters), [*learners, *joining], list(joining), {}, 3, {}, []
    )


class Service:
    """Answers in turn, and notes what it was asked."""

    group = "g"

    def __init__(self, *answers: MembersAnswer | DLedgerError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def _next(self, asked: str) -> MembersAnswer:
        self.asked.append(asked)
        answer = self.answers.pop(0)
        if isinstance(answer, DLedgerError):
            raise answer
        return answer

    async def members(self) -> MembersAnswer:
        return self._next("members")

    async def change_members(self, change: MemberChange) -> MembersAnswer:
        kind = "learner" if change.kind is ChangeKind.ADD and not change.is_joining else ""
        return self._next(f"{change.kind.value} {change.node_id} {kind}".strip())


async def order(service: Service, **options: Any) -> tuple[int, str]:
    """Give an order; its exit code, and all that was said."""
    said: list[str] = []
    given = argparse.Namespace(**{"json": False, "wait": 5.0, "learner": False, **options})
    code = await members_command.members(cast("Any", service), given, report=said.append)
    return code, "\n".join(said)


@pytest.mark.parametrize("error", [DeadlineError("no leader"), UsageError("no such thing")])
async def test_after_an_add_nothing_says_that_nothing_was_changed(error: DLedgerError) -> None:
    code, said = await order(Service(seen("n0", joining=("n3",)), error), verb="add", new=NEW)
    assert code == EXIT_UNKNOWN
    assert "n3 is added, by entry 3; whether it is a voter by now is not known" in said
    assert str(error) in said
    assert "Run the same command again" in said


async def test_an_add_that_is_refused_has_changed_nothing() -> None:
    service = Service(MembersUnchangedError("no majority answers"))
    assert (await order(service, verb="add", new=NEW))[0] == EXIT_REFUSED


async def test_who_was_removed_while_it_was_waited_for_was_added_all_the_same() -> None:
    service = Service(seen("n0", joining=("n3",)), seen("n0"))
    code, said = await order(service, verb="add", new=NEW)
    assert code == EXIT_UNKNOWN
    assert "n3 was added, and somebody has removed it meanwhile" in said


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (MembersUnchangedError("no majority answers"), "n1 is a member still"),
        (UsageError("n1 is the group's last voter"), "n1 is a member still"),
        (LeadershipLostError("gone"), "n1 may be a member still"),
    ],
)
async def test_a_replacement_that_stops_half_way_says_what_holds(
    error: DLedgerError, kept: str
) -> None:
    service = Service(seen("n0", "n1"), seen("n0", "n1", "n3"), error)
    code, said = await order(service, verb="replace", id="n1", new=NEW)
    assert code == EXIT_UNKNOWN
    assert f"n3 is a voter, and {kept}: {error}" in said
    assert "`members remove n1`" in said
    again = Service(seen("n0", "n1", "n3"), seen("n0", "n1", "n3"), seen("n0", "n3"))
    assert (await order(again, verb="replace", id="n1", new=NEW))[0] == EXIT_DONE


async def test_who_takes_the_place_of_one_that_is_joining_becomes_a_voter() -> None:
    before = seen("n0", joining=("x",))
    service = Service(before, seen("n0", "n3", joining=("x",)), seen("n0", "n3"))
    assert (await order(service, verb="replace", id="x", new=NEW))[0] == EXIT_DONE
    assert service.asked == ["members", "add n3", "remove x"]
    learner = Service(seen("n0", learners=("x",)), seen("n0", learners=("x", "n3")), seen("n0"))
    assert (await order(learner, verb="replace", id="x", new=NEW))[0] == EXIT_DONE
    assert learner.asked == ["members", "add n3 learner", "remove x"]


async def test_a_replacement_that_goes_on_waits_for_the_vote() -> None:
    service = Service(seen("n0", joining=("n3",)), seen("n0", "n3"))
    assert (await order(service, verb="replace", id="n1", new=NEW))[0] == EXIT_DONE
    assert service.asked == ["members", "members"]


async def test_the_removal_of_nobody_is_done_and_said() -> None:
    service = Service(seen("n0", "n1"), seen("n0", "n1"))
    code, said = await order(service, verb="remove", id="n7")
    assert (code, said) == (
        EXIT_DONE,
        "nothing was changed: n7 is no member; members are n0, n1",
    )
    code, said = await order(Service(seen("n0", "n1"), seen("n0")), verb="remove", id="n1")
    assert (code, said) == (EXIT_DONE, "")
