"""Asking name servers: one at a time, the same one until it fails, then the next.

Name servers hold soft state and every one hears from every broker, so any of them will do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from dledger_mq.client.errors import (
    ClientUsageError,
    ConnectionLostError,
    NameServersUnreachableError,
    RequestTimeoutError,
)
from dledger_mq.client.link import Link
from dledger_mq.client.wire import split_address
from dledger_mq.remoting.header import RemotingCommand

ANSWER_TIMEOUT_S: Final = 1.0  # they answer from memory; a silent one is left quickly

log = logging.getLogger(__name__)


def parse_name_servers(text: str) -> tuple[str, ...]:
    """Read "host:port;host:port"; commas and blanks separate too.

    Raises:
        ClientUsageError: there is none, or one is not host:port.
    """
    if not isinstance(text, str):
        raise ClientUsageError(f"namesrv is {text!r}, not text such as 'host:9876;other:9876'")
    addresses = tuple(text.replace(",", ";").replace(" ", ";").split(";"))
    addresses = tuple(address for address in addresses if address)
    if not addresses:
        raise ClientUsageError("no name server is given")
    for address in addresses:
        split_address(address)
    return addresses


class NameServers:
    """The name servers of one client."""

    def __init__(self, addresses: tuple[str, ...], get_link: Callable[[str], Link]) -> None:
        self.addresses = addresses
        self._get_link = get_link
        self._current = 0
        self._are_silent = False

    @property
    def current(self) -> str:
        """The address of the name server that is asked first."""
        return self.addresses[self._current]

    async def call(
        self,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> RemotingCommand:
        """Return the answer of the first name server that gives one, whatever its code.

        Raises:
            NameServersUnreachableError: none answered; the message says why, one by one.
        """
        reasons = []
        for _ in self.addresses:
            try:
                answer = await self._get_link(self.current).call(
                    code, ext, body, timeout_s=timeout_s
                )
            except (ConnectionLostError, RequestTimeoutError) as error:
                reasons.append(str(error))
                self._current = (self._current + 1) % len(self.addresses)
            else:
                if self._are_silent:
                    log.info("name server %s answers", self.current)
                self._are_silent = False
                return answer
        said = "; ".join(reasons)
        if not self._are_silent:
            log.warning("no name server answers (%s); they are asked again", said)
        self._are_silent = True
        raise NameServersUnreachableError(f"no name server answers: {said}")
