"""The fault that asks a member for its vote twice, where it cannot ask."""

from __future__ import annotations

import random
from typing import cast

import pytest
import trio.testing

from dledger import Term
from dledger.raft.ids import EntryId, Index
from jepsen.nemeses import NothingStruckError, votes
from jepsen.nemeses.votes import GRANT_ATTEMPTS, VoteTwice
from jepsen.systems.api import System


class Member:
    """A process that is what it is asked to be."""

    command = ("--group", "g", "--peers", "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3")
    pid: int | None = 1

    def __init__(self, name: str) -> None:
        self.name = name

    def kill(self) -> None:
        self.pid = None

    def start(self) -> None:
        self.pid = 1

    def is_listening(self) -> bool:
        return self.pid is not None


class Members:
    """The part of a system that the fault uses."""

    def __init__(self, count: int) -> None:
        self.nodes = [Member(f"n{number}") for number in range(count)]

    def node(self, name: str) -> Member:
        return next(node for node in self.nodes if node.name == name)


async def test_a_member_that_never_votes_was_not_struck(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def refuse(*_: object, **claimed: object) -> bool:
        asked.append(claimed)
        return False

    async def status(*_: object) -> tuple[Term, EntryId]:
        return Term(3), EntryId(Term(3), Index(7))

    monkeypatch.setattr(votes, "_ask", refuse)
    monkeypatch.setattr(votes, "_status", status)
    with pytest.raises(NothingStruckError, match="never voted for"):
        await VoteTwice("vote-twice").inject(cast("System", Members(3)), random.Random(0))
    assert len(asked) == GRANT_ATTEMPTS


async def test_a_voter_that_cannot_be_asked_again_has_refused_nothing(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    async def grant(*_: object, **_claimed: object) -> bool:
        return True

    async def status(*_: object) -> tuple[Term, EntryId]:
        return Term(3), EntryId(Term(3), Index(7))

    monkeypatch.setattr(votes, "_ask", grant)
    monkeypatch.setattr(votes, "_status", status)
    monkeypatch.setattr(Member, "start", lambda _self: None)
    with pytest.raises(NothingStruckError, match="did not listen again"):
        await VoteTwice("vote-twice").inject(cast("System", Members(3)), random.Random(0))


async def test_a_group_of_two_has_no_second_candidate() -> None:
    with pytest.raises(NothingStruckError, match="two candidates"):
        await VoteTwice("vote-twice").inject(cast("System", Members(2)), random.Random(0))
