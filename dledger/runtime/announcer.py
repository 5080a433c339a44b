"""Announcements of a node's changes: log lines for people, and callbacks for those that watch its role.

Everything that a driver says of its engine to the outside goes through here; nothing here changes the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from dledger.engine import Engine
from dledger.raft.effects import (
    EntriesCut,
    HandsOver,
    MembersChanged,
    MembersCommitted,
    News,
    Role,
    RoleChanged,
)
from dledger.raft.ids import NodeId, Term
from dledger.runtime.events_log import log_event
from dledger.runtime.obstacles import Obstacles


@dataclass(frozen=True, slots=True)
class RoleView:
    """The role of a node. `is_serving`: it leads, and the first entry of its term is applied here."""

    role: Role
    term: Term
    leader_id: NodeId | None
    is_serving: bool


class Announcer:
    """The announcements of one node.

    Invariant: each view differs from the one announced before, and its term is not lower.

    Attributes:
        role_watchers: called with every new `RoleView`.
        members_watchers: called with each change of the configuration, and once one is known to be committed. What is
            in force may have changed further by then.
        election_count, leadership_count: how often this node asked for votes, and how often it was elected, since the
            start.
    """

    def __init__(self, node_id: NodeId, engine: Engine, obstacles: Obstacles) -> None:
        self.role_watchers: list[Callable[[RoleView], None]] = []
        self.members_watchers: list[Callable[[MembersChanged | MembersCommitted], None]] = []
        self.election_count = 0
        self.leadership_count = 0
        self._counted = (Role.FOLLOWER, Term(0))
        self._node_id = node_id
        self._engine = engine
        self._obstacles = obstacles
        self._view = self._view_now(is_serving=False)

    @property
    def is_serving(self) -> bool:
        """True if the last view that was announced said so."""
        return self._view.is_serving

    def announce(self, *, is_serving: bool) -> None:
        """Announce changes of role, and the moment in which a leader begins to serve."""
        for news in self._engine.take_news():
            self._log_news(news)
            if isinstance(news, MembersChanged | MembersCommitted):
                for changed in self.members_watchers:
                    changed(news)
        node, before = self._engine.node, self._view
        # Twice in each pass, and hardly ever news: no view is made to find that out.
        if (
            is_serving is before.is_serving
            and node.role is before.role
            and node.term == before.term
            and node.leader_id == before.leader_id
        ):
            return
        view = self._view_now(is_serving=is_serving)
        assert view.term >= before.term, f"term {view.term} after {before.term}"
        assert view.role is Role.LEADER or not is_serving, f"a {view.role.value} serves"
        if is_serving and not before.is_serving:
            self.log(logging.INFO, "serving")
        self._view = view
        self._obstacles.leader_changed(view.leader_id)
        for watcher in self.role_watchers:
            watcher(view)

    def log(self, level: int, event: str, **fields: object) -> None:
        """Write a log line with node, term and index."""
        node = self._engine.node
        log_event(
            level,
            event,
            node=self._node_id,
            term=node.term,
            index=node.log.last_index,
            **fields,
        )

    def _log_news(self, news: News) -> None:
        """Log one piece of news; what an operator should look into is a warning."""
        match news:
            case RoleChanged(role=role, term=term, leader_id=leader_id):
                self._count(role, term)
                self.log(logging.INFO, "role-changed", role=role.value, leader=leader_id)
            case MembersChanged(configuration=configuration, index=index):
                self.log(logging.WARNING, "members-changed", members=configuration, entry=index)
            case MembersCommitted(configuration=configuration, index=index):
                self.log(logging.INFO, "members-committed", members=configuration, entry=index)
            case EntriesCut(first=first, last=last, writers=writers) if writers:
                self.log(
                    logging.ERROR,
                    "forked-entries-cut",
                    first=first,
                    last=last,
                    writers=", ".join(sorted(writers)),
                    leader=self._engine.node.leader_id,
                    reason="this store was run apart from its group: what was acknowledged then is gone",
                )
            case EntriesCut(first=first, last=last):
                self.log(
                    logging.WARNING,
                    "entries-cut",
                    first=first,
                    last=last,
                    leader=self._engine.node.leader_id,
                    reason="they were never committed, as far as this node knows",
                )
            case HandsOver(target=target, own_ms=own_ms, others_ms=others_ms):
                self.log(
                    logging.WARNING,
                    "hands-over",
                    reason="slow disk",
                    to=target,
                    own_ms=own_ms,
                    others_ms=others_ms,
                )
            case _:
                assert_never(news)

    def _count(self, role: Role, term: Term) -> None:
        """Count elections and leaderships; a change of the known leader alone is neither."""
        if (role, term) != self._counted:
            self.election_count += role is Role.CANDIDATE
            self.leadership_count += role is Role.LEADER
        self._counted = (role, term)

    def _view_now(self, *, is_serving: bool) -> RoleView:
        node = self._engine.node
        return RoleView(node.role, node.term, node.leader_id, is_serving)
