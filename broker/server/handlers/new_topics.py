"""Topics that sends created and the name servers may not know yet: until then answers to their sends wait.

A client that is told of its first send, or another one that learns of it, looks for the topic's route next. It must not
know how name servers are told: see registrar.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.service.send import SendPlan
from broker.store.staging import StagedEntry

Act = Callable[[StagedEntry, int], None]
"""Answers a request whose record is committed, at its place in an entry."""


class NewTopics:
    """The topics that this node, leading, has created and not yet seen taken.

    Attributes:
        names: of these topics; hardly ever any. After a lost leadership they are forgotten.
    """

    def __init__(self, when_routed: Callable[[Callable[[], None]], None]) -> None:
        """Begin with none; `when_routed` calls back once the name servers know the topics of now."""
        self.names: set[str] = set()
        self._when_routed = when_routed

    def hold(self, plan: SendPlan, act: Act) -> Act:
        """Return what answers a send once it is committed: `act`, later if its topic is new."""
        if plan.creation.topics:
            self.names.add(plan.topic)
        elif plan.topic not in self.names:
            return act
        return partial(self._committed, plan.topic, act)

    def _committed(self, topic: str, act: Act, staged: StagedEntry, place: int) -> None:
        self._when_routed(partial(self._routed, topic, act, staged, place))

    def _routed(self, topic: str, act: Act, staged: StagedEntry, place: int) -> None:
        self.names.discard(topic)
        act(staged, place)

    def forget(self) -> None:
        """Forget all of them: the sends that created them are decided by the next leader."""
        self.names.clear()
