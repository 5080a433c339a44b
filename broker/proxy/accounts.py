"""Who calls, and whether he may: the accounts of plain_acl.yml, and the signatures of RocketMQ 5's clients.

A client signs its own date (`x-mq-date-time`) with HMAC-SHA1, nothing else: not the call, nor what is in it. So whoever
reads one call can make others, for as long as the date is believed. Clients in Java and Python write the time of
their zone with a Z, so a date is believed from far off.

Rights are those of brokers (broker/access), which see the proxy's own account only (adr/0256).
"""

from __future__ import annotations

import hmac
import logging
import re
from binascii import a2b_hex, b2a_base64
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from broker.access.addresses import host_of, matches_any
from broker.access.rules import AccessRules, Account, Needs, Permission
from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError
from dledger.runtime.events_log import LimitedLog
from dledger_mq.message.names import retry_topic

SKEW_S: Final = 15 * 3600
"""Zones are up to 14 hours from UTC; an hour is left for clocks that are wrong."""

_FORM: Final = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=(?P<key>[^,]+), *SignedHeaders=[^,]*x-mq-date-time[^,]*, *"
    r"Signature=(?P<signature>[0-9A-Fa-f]{40})"
)
_DATE_FORM: Final = "%Y%m%dT%H%M%SZ"
_WHY_CHARS_MAX: Final = 300


class CallSender(NamedTuple):
    """The one who makes a call.

    Attributes:
        account: its access key; empty for those that need none.
        address: host:port.
    """

    account: str
    address: str


ANYBODY: Final = CallSender("", "")


class Accounts:
    """Decides on callers.

    Attributes:
        rules: what holds now, put here by whoever has read newer ones; None: everybody may do everything.
    """

    def __init__(
        self, rules: AccessRules | None, now: Callable[[], datetime] | None = None
    ) -> None:
        self.rules = rules
        self._now = now or (lambda: datetime.now(UTC))
        self._lines = LimitedLog()

    @property
    def is_open(self) -> bool:
        """True while everybody may do everything."""
        return self.rules is None

    def sender(self, call: str, metadata: Mapping[str, str | bytes], address: str) -> CallSender:
        """Return who makes a call.

        Raises:
            CallRefusedError: it is not proved.
        """
        rules, host = self.rules, host_of(address)
        if rules is None or matches_any(rules.white_addresses, host):
            return CallSender("", address)
        account, problem = _account_of(rules, host, metadata, self._now())
        if account is None or problem:
            self._note(call, host, problem)
            raise CallRefusedError(Code.UNAUTHORIZED, problem)
        return CallSender(account.access_key, address)

    def check(self, call: str, sender: CallSender, needs: Needs) -> None:
        """Let a call pass for which its sender has the rights.

        Raises:
            CallRefusedError: it has not.
        """
        problem = self.why_not(sender, needs)
        if problem is not None:
            self._note(call, host_of(sender.address), problem)
            raise CallRefusedError(Code.FORBIDDEN, problem)

    def why_not(self, sender: CallSender, needs: Needs) -> str | None:
        """Return why a sender may not do something, by the rules of now; None: it may."""
        rules, host = self.rules, host_of(sender.address)
        if rules is None or matches_any(rules.white_addresses, host):
            return None
        account = rules.accounts.get(sender.account)
        if account is None:
            return f"No acl config for {sender.account[:64]}"
        if account.white_addresses.matches(host):
            return None
        return account.why_not(needs, 0)

    def _note(self, call: str, host: str, problem: str) -> None:
        """Log a refusal; a stranger who causes many fills no disk."""
        self._lines.log_event(
            logging.WARNING, "call-refused", host=host, call=call, why=problem[:_WHY_CHARS_MAX]
        )


def _account_of(
    rules: AccessRules, host: str, metadata: Mapping[str, str | bytes], now: datetime
) -> tuple[Account | None, str]:
    """Return the account that a call names, and what is wrong with that; empty: nothing."""
    found = _FORM.fullmatch(str(metadata.get("authorization", "")))
    if found is None:
        return None, "No accessKey is configured: the call has no authorization MQv2-HMAC-SHA1"
    named = found["key"].strip()
    account = rules.accounts.get(named) or rules.accounts.get(named.partition("/")[0])
    if account is None:
        return None, f"No acl config for {named[:64]}"
    if account.white_addresses.matches(host):
        return account, ""
    date = str(metadata.get("x-mq-date-time", ""))
    wanted = account.key.signature(date.encode())
    given = b2a_base64(a2b_hex(found["signature"]), newline=False)
    if not hmac.compare_digest(given, wanted):
        return account, f"Check signature failed for accessKey={account.access_key}"
    return account, _date_problem(date, now)


def _date_problem(date: str, now: datetime) -> str:
    """Return what is wrong with a date, empty: nothing."""
    try:
        said = datetime.strptime(date, _DATE_FORM).replace(tzinfo=UTC)
    except ValueError:
        return f"x-mq-date-time {date[:40]!r} is no date such as 20260131T235959Z"
    off_s = abs((now - said).total_seconds())
    if off_s > SKEW_S:
        return f"x-mq-date-time {date} is {off_s:.0f} s from the proxy's clock, at most {SKEW_S}"
    return ""


def to_send(topics: Iterable[str]) -> Needs:
    """Return what it takes to send to topics."""
    return Needs(resources=tuple((topic, Permission.PUB) for topic in sorted(set(topics))))


def to_consume(group: str, topics: Iterable[str]) -> Needs:
    """Return what it takes to consume topics with a group."""
    of_topics = tuple((topic, Permission.SUB) for topic in sorted(set(topics)))
    return Needs(resources=((retry_topic(group), Permission.SUB), *of_topics))
