"""Topics that sends created and the name servers may not know yet: until then answers to their sends wait.

A client that is told of its first send, or another one that learns of it, looks for the topic's route next. It must not
know how name servers are told: see registrar.py. Nothing but the answer waits: that a record is committed is known to
all who look for it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from broker.service.send import SendPlan


class NewTopics:
    """The topics that this node, leading, has created and not yet seen taken.

    Attributes:
        names: of these topics; hardly ever any. After a lost leadership they are forgotten.
    """

    def __init__(self, when_routed: Callable[[Callable[[], None]], None]) -> None:
        """Begin with none; `when_routed` calls back once the name servers know the topics of now."""
        self.names: set[str] = set()
        self._when_routed = when_routed

    def note(self, plan: SendPlan) -> None:
        """Note the topic that a send creates, if it creates one, when it is staged."""
        if plan.creation.topics:
            self.names.add(plan.topic)

    def answer(self, topic: str, give: Callable[[], None]) -> None:
        """Give the answer to a send whose record is committed: at once, or later if its topic is new."""
        if topic in self.names:
            self._when_routed(partial(self._routed, topic, give))
        else:
            give()

    def _routed(self, topic: str, give: Callable[[], None]) -> None:
        self.names.discard(topic)
        give()

    def forget(self) -> None:
        """Forget all of them: the sends that created them are decided by the next leader."""
        self.names.clear()
