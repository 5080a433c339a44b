"""Requests and answers over one connection: every request is matched with its answer by its opaque.

A link is a task in the client's nursery. It connects, serves, and when the connection ends it fails
whatever waits and is finished; a new one is made when the address is needed again (`Links`). One alarm looks
after the time of all requests that wait. Requests that the broker sends to us go to a handler, which must not block.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Mapping
from typing import Final

import anyio
from msgspec.structs import replace

from dledger_mq.client.credentials import Credentials, chosen_credentials, with_sender
from dledger_mq.client.deadline_watch import DeadlineWatch
from dledger_mq.client.errors import (
    ClientClosedError,
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    TooLateError,
)
from dledger_mq.client.gathering import RequestGathering
from dledger_mq.client.tls import chosen_tls
from dledger_mq.client.wire import Wire, open_wire
from dledger_mq.net.loop import Event, Starter, current_loop
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import (
    FLAG_ONEWAY,
    RemotingCommand,
    decode_command,
    encode_command,
)

CLIENT_LANGUAGE: Final = "PYTHON"
PROBE_AFTER_S: Final = 2.0
PROBE_PATIENCE_S: Final = 1.0


class Opaques:
    """Numbers for requests, unique in one client until they wrap around after 2**31."""

    def __init__(self) -> None:
        self._last = 0

    def take(self) -> int:
        """Return the next number."""
        self._last = (self._last + 1) & 0x7FFF_FFFF
        return self._last


class _Answer:
    """A place for one answer."""

    __slots__ = ("arrived", "command", "deadline", "is_gathered")

    def __init__(self, arrived: Event, deadline: float, *, is_gathered: bool) -> None:
        self.arrived = arrived
        self.deadline = deadline
        self.is_gathered = is_gathered
        self.command: RemotingCommand | None = None


RequestHandler = Callable[["Link", RemotingCommand], None]
Probe = Callable[[], tuple[int, bytes] | None]
"""Makes a request (code, body) that every server answers at once; None: there is none."""


class Link:
    """A connection to one address. `run` is its task; `call` and `post` are for everybody."""

    def __init__(
        self,
        address: str,
        nursery: Starter,
        *,
        opaques: Opaques,
        on_request: RequestHandler,
        probe: Probe,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = address
        self._nursery = nursery
        self._tls = tls
        self._credentials = credentials
        self.is_closed = False
        self.has_taken_heartbeat = False  # on this connection
        self._opaques = opaques
        self._on_request = on_request
        self._answers: dict[int, _Answer] = {}
        loop = current_loop()
        self._now, self._new_event = loop.now, loop.new_event
        self._deadlines = DeadlineWatch(loop, self._give_up_late)
        self._gathering = RequestGathering(loop, self._write)
        self._probe = probe
        self._wire: Wire | None = None
        self._settled = anyio.Event()  # connected, or known not to be
        self._scope = anyio.CancelScope()
        self._reason = ""

    async def run(self) -> None:
        """Connect and serve until the connection ends; never raises for what the peer does."""
        with self._scope:
            try:
                self._wire = await open_wire(self.address, self._nursery, tls=self._tls)
                self._settled.set()
                async with anyio.create_task_group() as nursery:
                    nursery.start_soon(self._watch_silence, self._wire)
                    nursery.start_soon(self._deadlines.run)
                    nursery.start_soon(self._gathering.run)
                    await self._wire.serve(self._on_frames)
            except* ConnectionLostError as group:
                self._reason = str(group.exceptions[0])
            finally:
                self._finish()
        self._finish()

    async def _watch_silence(self, wire: Wire) -> None:
        """Find out whether the other end lives, when answers are due and nothing is heard.

        A connection with a held pull is silent; a node that was paused, or whose machine is gone, is silent
        too, and the kernel says nothing for minutes.
        """
        while True:
            await anyio.sleep(PROBE_AFTER_S / 2)
            probe = self._probe()
            if not self._answers or wire.silence_s < PROBE_AFTER_S or probe is None:
                continue
            code, body = probe
            self._transmit(code, self._opaques.take(), ext=None, body=body)
            await anyio.sleep(PROBE_PATIENCE_S)
            if wire.silence_s >= PROBE_AFTER_S + PROBE_PATIENCE_S:
                raise ConnectionLostError(
                    f"{self.address} has been silent for {wire.silence_s:.1f} s"
                )

    def close(self) -> None:
        """End the connection; waiting calls fail."""
        self._scope.cancel()

    def _finish(self) -> None:
        self.is_closed = True
        if self._wire is not None:
            self._wire.close()
        self._settled.set()
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer.arrived.set()

    async def wait_connected(self) -> None:
        """Wait for the connection to be made.

        Raises:
            NotConnectedError: it could not be made, or is gone again.
        """
        await self._settled.wait()
        if self.is_closed:
            raise NotConnectedError(self._reason or f"{self.address}: closed")

    async def call(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
        is_gathered: bool = False,
    ) -> RemotingCommand:
        """Send a request and return its answer, whatever its code.

        With `is_gathered` it may wait a little for others, and leaves with them (gathering.py).

        Raises:
            NotConnectedError, TooLateError: the request was not sent: there was no connection, or
                none before the time was over.
            ConnectionLostError: the connection broke; whether the request was carried out is unknown.
            RequestTimeoutError: no answer in time; likewise.
        """
        deadline = self._now() + timeout_s
        if self._wire is None or self.is_closed or timeout_s <= 0:
            with anyio.move_on_after(max(timeout_s, 0.0)) as scope:
                await self.wait_connected()  # ends here when the time is over
            if scope.cancelled_caught:
                raise TooLateError(
                    f"no connection to {self.address} in {timeout_s:g} s; nothing was sent"
                )
        opaque = self._opaques.take()
        answer = _Answer(self._new_event(), deadline, is_gathered=is_gathered)
        self._answers[opaque] = answer
        self._deadlines.set(deadline)
        try:
            if is_gathered:
                self._gathering.put(opaque, self._frame(code, opaque, ext=ext, body=body))
            else:
                self._transmit(code, opaque, ext=ext, body=body)
            await answer.arrived.wait()
        finally:
            if self._answers.pop(opaque, None) is not None and is_gathered:
                self._gathering.ended((opaque,))
        if answer.command is not None:
            return answer.command
        if self.is_closed:
            raise ConnectionLostError(self._reason or f"{self.address}: closed")
        raise RequestTimeoutError(f"{self.address} did not answer code {code} in {timeout_s:g} s")

    def _give_up_late(self, now: float) -> float:
        """Wake the calls whose time is over; return the earliest deadline of the others."""
        earliest = math.inf
        for answer in self._answers.values():
            if answer.deadline <= now:
                answer.arrived.set()
            else:
                earliest = min(earliest, answer.deadline)
        return earliest

    def post(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a oneway request; nothing happens while there is no connection."""
        if self._wire is not None and not self.is_closed:
            self._transmit(code, self._opaques.take(), flag=FLAG_ONEWAY, ext=ext, body=body)

    def answer(self, command: RemotingCommand) -> None:
        """Send an answer to a request of the peer."""
        if self._wire is not None and not self.is_closed:
            self._wire.send_nowait(encode_command(command))

    def _transmit(
        self,
        code: int,
        opaque: int,
        *,
        flag: int = 0,
        ext: Mapping[str, str] | None,
        body: bytes,
    ) -> None:
        """Send a request at once; the callers have made sure that the link is connected."""
        self._write(self._frame(code, opaque, flag=flag, ext=ext, body=body))

    def _frame(
        self,
        code: int,
        opaque: int,
        *,
        flag: int = 0,
        ext: Mapping[str, str] | None,
        body: bytes,
    ) -> bytes:
        """Make a request, signed."""
        credentials = self._credentials
        command = RemotingCommand(
            code=code,
            opaque=opaque,
            flag=flag,
            language=CLIENT_LANGUAGE,
            ext=dict(ext or {}) if credentials is None else credentials.sign(ext or {}, body),
            body=body,
        )
        return encode_command(command)

    def _write(self, data: bytes) -> None:
        assert self._wire is not None, "connected"
        self._wire.send_nowait(data)

    def _on_frames(self, frames: list[Frame]) -> None:
        """Hand answers to those who wait and requests to the handler.

        A header that cannot be read ends the connection.
        """
        gathered: list[int] = []
        for frame in frames:
            try:
                command = decode_command(frame)
            except FrameError as error:
                raise ConnectionLostError(f"{self.address} sent a bad header: {error}") from error
            if not command.is_response:
                self._on_request(self, command)
                continue
            answer = self._answers.pop(command.opaque, None)
            if answer is not None:  # else its caller gave up
                answer.command = self._attributed(command)
                answer.arrived.set()
                if answer.is_gathered:
                    gathered.append(command.opaque)
        if gathered:
            self._gathering.ended(gathered)

    def _attributed(self, answer: RemotingCommand) -> RemotingCommand:
        """Return an answer whose remark says, where it is about access, whom the server has refused."""
        if answer.code == ResponseCode.SUCCESS or not answer.remark:
            return answer
        return replace(answer, remark=with_sender(answer.remark, self._credentials))


class Links:
    """The connections of one client by address, made when they are needed.

    Attributes:
        tls: encrypts them; None: plain text.
        credentials: sign what is sent; None: nothing is signed.
    """

    def __init__(
        self,
        nursery: Starter,
        opaques: Opaques,
        on_request: RequestHandler,
        probe: Probe = lambda: None,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._probe = probe
        self.tls = tls or chosen_tls()
        self.credentials = credentials or chosen_credentials()
        self._nursery = nursery
        self._opaques = opaques
        self._on_request = on_request
        self._links: dict[str, Link] = {}

    def get(self, address: str) -> Link:
        """Return the link to an address; a new one starts to connect at once.

        Raises:
            ClientClosedError: the client was left.
        """
        link = self._links.get(address)
        if link is None or link.is_closed:
            if self._nursery.cancel_scope.cancel_called:
                raise ClientClosedError("the client was left")
            link = Link(
                address,
                self._nursery,
                opaques=self._opaques,
                on_request=self._on_request,
                probe=self._probe,
                tls=self.tls,
                credentials=self.credentials,
            )
            self._links[address] = link
            self._nursery.start_soon(link.run, name=f"link {address}")
        return link

    def retire(self, keep: frozenset[str]) -> None:
        """Close the links to addresses that are in no route any more."""
        for address in [one for one in self._links if one not in keep]:
            self._links.pop(address).close()
