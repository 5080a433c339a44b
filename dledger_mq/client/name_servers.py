"""Asking name servers: the same one until it fails or hesitates, then the next.

Name servers hold soft state and every one hears from every broker, so any of them will do. The machine of a leader that
has gone silent may be that of a name server: so who hesitates is not waited for, but the next one is asked as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import anyio

from dledger_mq.client.errors import (
    ClientClosedError,
    ClientUsageError,
    ConnectionLostError,
    NameServersUnreachableError,
    RequestTimeoutError,
)
from dledger_mq.client.link import Link
from dledger_mq.client.wire import split_address
from dledger_mq.remoting.header import RemotingCommand

ANSWER_TIMEOUT_S: Final = 1.0  # they answer from memory; a silent one is left quickly
HESITATION_S: Final = 0.1  # no answer for so long: the next one is asked as well

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
        """Return the first answer of a name server, whatever its code.

        The one that answered last is asked first, and each further one when those before have failed, or have not
        answered for HESITATION_S.

        Raises:
            NameServersUnreachableError: none answered; the message says why, one by one.
            ClientClosedError: the client was left.
        """
        reasons: list[str] = []
        first = self._current
        try:
            answer = await self._ask(code, ext, body, timeout_s=timeout_s, reasons=reasons)
        except anyio.get_cancelled_exc_class():
            # Who asks next may have as little time as who gave up: the others would never be asked.
            if self._current == first:
                self._current = (first + 1) % len(self.addresses)
            raise
        if answer is not None:
            if self._are_silent:
                log.info("name server %s answers", self.current)
            self._are_silent = False
            return answer
        said = "; ".join(reasons)
        if not self._are_silent:
            log.warning("no name server answers (%s); they are asked again", said)
        self._are_silent = True
        raise NameServersUnreachableError(f"no name server answers: {said}")

    async def _ask(
        self,
        code: int,
        ext: Mapping[str, str],
        body: bytes,
        *,
        timeout_s: float,
        reasons: list[str],
    ) -> RemotingCommand | None:
        """Return the first answer; None if there is none, with the reasons added to `reasons`.

        Raises:
            ClientClosedError: the client was left.
        """
        closed: ClientClosedError | None = None
        answers: list[RemotingCommand] = []
        async with anyio.create_task_group() as asking:

            async def ask(place: int, link: Link, failed: anyio.Event) -> None:
                try:
                    answer = await link.call(code, ext, body, timeout_s=timeout_s)
                except (ConnectionLostError, RequestTimeoutError) as error:
                    reasons.append(str(error))
                    failed.set()
                else:
                    self._current = place
                    answers.append(answer)
                    asking.cancel_scope.cancel()

            first = self._current
            for step in range(len(self.addresses)):
                place, failed = (first + step) % len(self.addresses), anyio.Event()
                try:
                    link = self._get_link(self.addresses[place])
                except ClientClosedError as error:
                    closed = error  # raised outside of the group, which would wrap it
                    asking.cancel_scope.cancel()
                    break
                asking.start_soon(ask, place, link, failed)
                with anyio.move_on_after(HESITATION_S):
                    await failed.wait()
        if closed is not None and not answers:
            raise closed
        return answers[0] if answers else None
