"""Detects another group that registers under this one's broker name: name servers hear both, and answer so to both.

Most often somebody copied a broker.conf and changed the members, but not the name. The name server keeps the route
with the group that had the name first; clients of the other one find no brokers, or those of the wrong group.
"""

from __future__ import annotations

import logging
from typing import Final

from dledger import LogServer
from dledger.runtime.events_log import log_event
from dledger_mq.net.address import Address

STATUS_ATTRIBUTE: Final = "name_contested"

_REASON: Final = (
    "two groups have one broker name, so clients find one of them only: give one of them another name, or correct its "
    "--peers or --namesrv (docs/nameserver.md)"
)
_SHOWN_MAX: Final = 64


class NameContested:
    """The rivals that each name server last named; one log line when one appears, one when none is left."""

    def __init__(self, log: LogServer, broker_name: str) -> None:
        self._log = log
        self._broker_name = broker_name
        self._rivals: dict[Address, str] = {}

    def take_answer(self, server: Address, rival: str) -> None:
        """Take what a name server answered; `rival` is the address of the other group's broker, empty without one."""
        was_contested = bool(self._rivals)
        if rival:
            self._rivals[server] = rival[:_SHOWN_MAX]
        else:
            self._rivals.pop(server, None)
        notice = "; ".join(f"by {rival} at {at}" for at, rival in self._rivals.items())
        self._log.status.show(STATUS_ATTRIBUTE, notice)
        if bool(self._rivals) == was_contested:
            return
        which = {"node": self._log.node_id, "group": self._log.config.group}
        if was_contested:
            log_event(logging.INFO, "name-free-again", **which, name=self._broker_name)
        else:
            log_event(
                logging.ERROR,
                "name-contested",
                **which,
                name=self._broker_name,
                rival=rival[:_SHOWN_MAX],
                name_server=server,
                reason=_REASON,
            )
