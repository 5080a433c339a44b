"""Questions and answers as JSON lines over TCP: one line a question, one line its answer."""

from __future__ import annotations

from typing import Final

import msgspec
import trio

LINE_BYTES_MAX: Final = 64 * 1024 * 1024


class LineError(Exception):
    """The other side hung up, or sent what is no JSON line."""


class JsonLines:
    """One end of a connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._kept = bytearray()

    async def ask(self, question: object) -> object:
        """Send a question and wait for its answer.

        Raises:
            LineError, trio.BrokenResourceError: there will be none.
        """
        await self.send(question)
        return await self.receive()

    async def send(self, value: object) -> None:
        """Send one line."""
        await self._stream.send_all(msgspec.json.encode(value) + b"\n")

    async def receive(self) -> object:
        """Return the next line.

        Raises:
            LineError: the other side hung up, or talks differently.
        """
        searched = 0
        while (end := self._kept.find(b"\n", searched)) < 0:
            searched = len(self._kept)
            data = await self._stream.receive_some()
            if not data or len(self._kept) > LINE_BYTES_MAX:
                raise LineError("the other side hung up" if not data else "a line without an end")
            self._kept += data
        line = bytes(self._kept[:end])
        del self._kept[: end + 1]
        try:
            return msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise LineError(f"no JSON: {error}") from error

    async def __aenter__(self) -> JsonLines:
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.aclose_forcefully(self._stream)
