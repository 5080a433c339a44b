"""The facts that only this member knows of itself, as text for `dledger-admin status` (in the answer to 28).

Names begin with `raft`, since RocketMQ has none for them. Every fact is read when it is asked for; durations are sent
instead of times of day, so that nobody has to compare clocks. What is not known is not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from broker.server.config import BrokerConfig
from broker.server.links.private_codes import SERVICE_ADDRESS
from dledger import LogServer, RoleView
from dledger.version import __version__

_TROUBLES: Final = ("store", "majority", "repair")
"""Attributes of a member's status (`dledger status`) that are there only while something is wrong."""


class MemberInfo:
    """A member's facts about its group, its role, its stop, and its troubles.

    Attributes:
        rules_digests: returns the digests of the access rules, nothing where there is no secret to make them with;
            None: there are no rules.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: LogServer,
        *,
        monotonic_ms: Callable[[], int],
        client_count: Callable[[], int],
        stop_stage: Callable[[], str],
        rules_digests: Callable[[], Sequence[str]] | None,
    ) -> None:
        """Begin to count the time in a role.

        Args:
            config: names of group and members.
            log: role, and what the other members announce.
            monotonic_ms: a clock that never goes back.
            client_count: returns how many connections there are, without those of other members.
            stop_stage: returns how far an orderly stop is; empty: none is wanted.
            rules_digests: returns the digests of the access rules; None: everybody may do everything.
        """
        self._config = config
        self._log = log
        self._monotonic_ms = monotonic_ms
        self._client_count = client_count
        self._stop_stage = stop_stage
        self.rules_digests = rules_digests
        self._begun_ms = self._role_since_ms = monotonic_ms()
        self._role: tuple[object, ...] = ()

    def role_changed(self, view: RoleView) -> None:
        """Note when the role began; a leader's begins when it serves."""
        role = (view.role, view.is_serving)
        if role != self._role:
            self._role = role
            self._role_since_ms = self._monotonic_ms()

    @property
    def up_ms(self) -> int:
        """The time since this process set up its services."""
        return self._monotonic_ms() - self._begun_ms

    def table(self) -> dict[str, str]:
        """Return names and values."""
        own = self._log.status.attributes(self._log.node_id)
        return {
            "raftVersion": __version__,
            "raftGroup": self._config.broker_name,
            "raftLogGroup": self._config.group,
            "raftServing": str(self._log.is_serving).lower(),
            "raftRoleMs": str(self._monotonic_ms() - self._role_since_ms),
            "raftUpMs": str(self.up_ms),
            "raftMemberAddresses": json.dumps(self._addresses()),
            "raftConnected": ",".join(self._log.status.peers_connected()),
            "raftClients": str(self._client_count()),
            "raftStopping": self._stop_stage(),
            **self._access_rules(),
            "raftTrouble": "; ".join(own[name] for name in self._troubles() if own.get(name)),
        }

    def _access_rules(self) -> dict[str, str]:
        """Return what tells whether members go by the same rules: empty where everybody may do everything."""
        if self.rules_digests is None:
            return {"raftAccessRules": ""}
        digests = self.rules_digests()
        return {"raftAccessRules": ",".join(digests)} if digests else {}

    def _troubles(self) -> tuple[str, ...]:
        """Return the names of the attributes that are troubles, if they say something."""
        return _TROUBLES if self._log.is_accepted else (*_TROUBLES, "membership")

    def _addresses(self) -> Mapping[str, Mapping[str, str]]:
        """Return each member's address for members, and for clients if it ever connected to this one."""
        status = self._log.status
        return {
            node_id: {"log": status.address_of(node_id)}
            | (
                {"clients": address}
                if (address := status.attributes(node_id).get(SERVICE_ADDRESS))
                else {}
            )
            for node_id in self._log.roster.in_force.members
        }
