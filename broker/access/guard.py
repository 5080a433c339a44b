"""The check of requests against the rules that hold now: who sends them, and whether he may.

It is made where a request comes in, by the node that the client is connected to, before anything else looks at it
(adr/0216). It must not know where rules come from.
"""

from __future__ import annotations

import logging
from typing import Final

from broker.access.addresses import host_of, matches_any
from broker.access.needs import needs_of
from broker.access.rules import AccessRules
from dledger.runtime.events_log import LimitedLog
from dledger_mq.remoting.errors import BodyError, FieldError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.requests import decode_request
from dledger_mq.remoting.signature import ACCESS_KEY, is_signed_with

_EXCEPTION: Final = "org.apache.rocketmq.acl.common.AclException: "
"""People and tools look for RocketMQ's words."""

_WHY_CHARS_MAX: Final = 300


class AccessGuard:
    """Decides on requests.

    Attributes:
        rules: what holds now; whoever has read newer ones puts them here.
        refused_count: the requests that were refused.
    """

    def __init__(self, rules: AccessRules) -> None:
        """Go by these rules."""
        self.rules = rules
        self.refused_count = 0
        self._lines = LimitedLog()

    def refusal(self, address: str, frame: Frame, command: RemotingCommand) -> str | None:
        """Return why a request may not be carried out; None: it may.

        Args:
            address: the client's, host:port.
            frame: the request as it came.
            command: the same, decoded.
        """
        host = host_of(address)
        problem = self._problem(host, frame, command)
        if problem is None:
            return None
        self._note(host, command.code, problem)
        return f"{_EXCEPTION}{problem}"

    def _problem(self, host: str, frame: Frame, command: RemotingCommand) -> str | None:
        """Go through RocketMQ's order: addresses of all, the account, its addresses, the signature, its rights."""
        rules = self.rules
        if matches_any(rules.white_addresses, host):
            return None
        access_key = command.ext.get(ACCESS_KEY)
        if not access_key:
            return "No accessKey is configured"
        account = rules.accounts.get(access_key)
        if account is None:
            return f"No acl config for {access_key[:64]}"
        if account.white_addresses.matches(host):
            return None
        try:
            if not is_signed_with(account.key, command.ext, command.body):
                return f"Check signature failed for accessKey={access_key}"
            acted_on = decode_request(frame)
            if acted_on.code != command.code:
                return "the header says two request codes"
            return account.why_not(needs_of(acted_on, frame.body), command.code)
        except (FieldError, BodyError, UnicodeError) as error:
            return f"the request cannot be read: {error}"

    def _note(self, host: str, code: int, problem: str) -> None:
        """Log a refusal; a stranger who causes many fills no disk, and what he says stays in its place."""
        self.refused_count += 1
        self._lines.log_event(
            logging.WARNING, "request-refused", host=host, code=code, why=problem[:_WHY_CHARS_MAX]
        )
