"""Watches a group from outside: who leads which term, and whether all nodes are together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import trio

from dledger import StatusAnswer
from dledger.raft.ids import Term
from jepsen.guards import member_client
from jepsen.history.ops import OBSERVER, OpLog
from jepsen.history.values import LeaderSeen
from jepsen.processes import Process

INTERVAL_S: Final = 0.05
STATUS_TIMEOUT_S: Final = 0.3
CLOSE_ENTRIES: Final = 50  # a node this close behind the leader has caught up, under load


class Watched(Protocol):
    """A group of members, as the onlooker needs it: where they listen, and what the group is called."""

    @property
    def peers(self) -> str:
        """All members, as `dledger.Client` takes them."""

    @property
    def group(self) -> str:
        """Name of the group."""

    @property
    def nodes(self) -> Sequence[Process]:
        """The members."""


def note_leader(log: OpLog, node: str, term: Term, group: str = "") -> None:
    """Note who leads from now on, and in which term; an empty name when nobody does.

    Args:
        log: the history.
        node: who leads.
        term: in which.
        group: of which group, where there are several.
    """
    seen: LeaderSeen = {"term": term, "group": group} if group else {"term": term}
    log.add(OBSERVER, "info", "leader" if node else "leaderless", seen, node=node)


class Observer:
    """Asks every node again and again. `run` is its task.

    Attributes:
        leader: the node that serves as leader, None while there is none.
        term: of that leader, or the last one.
    """

    def __init__(self, group: Watched, on_leader: Callable[[str, Term], None]) -> None:
        """Start without a leader; `run` begins to ask.

        Args:
            group: whom to watch.
            on_leader: called with the name and the term of whoever leads from now on; an empty name when nobody does.
        """
        self.leader: str | None = None
        self.term = Term(0)
        self._group = group
        self._on_leader = on_leader
        self._claims: dict[Term, set[str]] = {}  # by term: who was seen to lead in it
        self._seen: dict[str, StatusAnswer] = {}
        self._changed = trio.Event()

    async def run(self) -> None:
        """Ask until cancelled."""
        group = self._group
        async with member_client(
            group.peers, group=group.group, timeout_s=STATUS_TIMEOUT_S
        ) as client:
            while True:
                answers = await client.status()
                self._seen = {
                    str(name): answer
                    for name, answer in answers.items()
                    if isinstance(answer, StatusAnswer)
                }
                self._note_leader()
                self._changed.set()
                self._changed = trio.Event()
                await trio.sleep(INTERVAL_S)

    def _note_leader(self) -> None:
        """Report a change: of several that claim to lead, the one of the highest term counts, the others are stale."""
        serving = [answer for answer in self._seen.values() if answer.is_serving]
        if not serving:
            if self.leader is not None:
                self._on_leader("", self.term)
            self.leader = None
            return
        for answer in serving:
            term = Term(answer.term)
            claims = self._claims.setdefault(term, set())
            if claims and answer.node_id not in claims:
                self._on_leader(answer.node_id, term)  # a second one: checkers judge that
            claims.add(answer.node_id)
        newest = max(serving, key=lambda answer: answer.term)
        is_back = self.leader is None and newest.term == self.term
        self.leader = newest.node_id
        if newest.term > self.term or is_back:
            self.term = Term(newest.term)
            self._on_leader(newest.node_id, self.term)

    def is_whole(self) -> bool:
        """Return whether one node leads and all others follow closely."""
        if self.leader is None or len(self._seen) < len(self._group.nodes):
            return False
        commit = max(answer.commit_index for answer in self._seen.values())
        return all(
            answer.leader_id == self.leader and answer.applied_index >= commit - CLOSE_ENTRIES
            for answer in self._seen.values()
        )

    async def wait_whole(self, timeout_s: float) -> bool:
        """Wait until `is_whole`; whether that came in time."""
        with trio.move_on_after(timeout_s):
            # What was seen before, or was being asked just now, may be older than what the caller has done.
            for _ in range(2):
                await self._changed.wait()
            while not self.is_whole():
                await self._changed.wait()
            return True
        return False

    async def wait_leader(self, timeout_s: float) -> str | None:
        """Wait for a leader; None when there is none in time."""
        with trio.move_on_after(timeout_s):
            while self.leader is None:
                await self._changed.wait()
        return self.leader
