"""An operator who changes a setting of the group while it runs: to what size it holds its log.

What it is told must be so: at the end the setting has the value that was acknowledged last, or one whose outcome nobody
knows. That all replicas have the same shows in their digests.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from broker.store.group_settings import GroupSettings
from broker.testing.broker_cluster import BrokerCluster
from broker.testing.client import Prefers, SimClient
from broker.testing.settings import BrokerSimSettings
from dledger.testing.state_checker import Violation
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

KEY: Final = "retentionBytes"
BYTES: Final = (6_000, 20_000)
REST_MS: Final = 150
END_PERMILLE: Final = 200
"""Of the changes those that end what was changed."""


class Setter(SimClient):
    """Changes the setting again and again, at the leader or at any member."""

    def __init__(
        self, cluster: BrokerCluster, settings: BrokerSimSettings, name: str, counts: Counter[str]
    ) -> None:
        super().__init__(cluster, settings, name, counts)
        self._acknowledged = ""
        self._unknown: Counter[str] = Counter()

    def go_on(self) -> None:
        """Change the setting."""
        if self.is_stopped:
            return
        value = "" if self.chance(END_PERMILLE) else str(self.rng.randint(*BYTES))
        # Whatever is answered, or not: from here on it may be so.
        self._unknown[value] += 1

        def answered(answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._acknowledged = value
                self._unknown[value] -= (
                    1  # one that asked for the same before may yet be carried out
                )
                self.counts["set"] += 1
            self.pause(self.go_on, least_ms=REST_MS)

        self.ask(
            RequestCode.UPDATE_BROKER_CONFIG,
            {},
            answered,
            body=f"{KEY}={value}\n".encode(),
            prefers=self.rng.choice((Prefers.LEADER, Prefers.ANYBODY)),
        )

    def check(self, kept: GroupSettings) -> None:
        """Demand that a replica, which has applied everything, has a value that it may have.

        Raises:
            Violation: it has another one.
        """
        value = kept.values().get(KEY, "")
        if value != self._acknowledged and not self._unknown[value]:
            raise Violation(
                f"{KEY} is {value or 'not set'}, acknowledged was {self._acknowledged or 'that it is not'}"
            )
