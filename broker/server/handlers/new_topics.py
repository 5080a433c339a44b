"""Topics that sends created and the name servers may not know yet: until then answers to their sends wait.

A client that is told of its first send, or another one that learns of it, looks for the topic's route next. It must not
know how name servers are told: see registrar.py. Nothing but the answer waits: that a record is committed is known to
all who look for it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.server.requests.request import PendingRequest
from broker.service.send import SendPlan

AGE_MAX_MS: Final = 1_700
"""Age of a request whose answer does not wait for a route, which may take a second: clients give a send 3 s."""


class NewTopics:
    """The topics that this node, leading, has created and not yet seen taken.

    Attributes:
        names: of these topics; hardly ever any. After a lost leadership they are forgotten.
    """

    def __init__(
        self,
        when_routed: Callable[[Callable[[], None]], None],
        age_ms: Callable[[PendingRequest], int],
    ) -> None:
        """Begin with none.

        Args:
            when_routed: calls back once the name servers know the topics of now.
            age_ms: how long ago a request came.
        """
        self.names: set[str] = set()
        self._when_routed = when_routed
        self._age_ms = age_ms

    def note(self, plan: SendPlan) -> None:
        """Note the topic that a send creates, if it creates one, when it is staged."""
        if plan.creation.topics:
            self.names.add(plan.topic)

    def answer(self, request: PendingRequest, topic: str, give: Callable[[], None]) -> None:
        """Give the answer to a send whose record is committed: at once, or later if its topic is new.

        A send that has waited for an election is answered before its client gives it up and sends it again.
        """
        if topic in self.names and self._age_ms(request) <= AGE_MAX_MS:
            self._when_routed(partial(self._routed, topic, give))
        else:
            give()

    def _routed(self, topic: str, give: Callable[[], None]) -> None:
        self.names.discard(topic)
        give()

    def forget(self) -> None:
        """Forget all of them: the sends that created them are decided by the next leader."""
        self.names.clear()
