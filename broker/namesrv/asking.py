"""Questions to a broker that registers: one small question on a connection of its own, bounded in time and bytes.

It must not know what follows from an answer: that is `registrants`'.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from typing import Final

import trio

from broker.namesrv.registrants import Answer
from dledger import Index
from dledger_mq.net.address import Address
from dledger_mq.net.tls import why
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.errors import RemotingError
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import decode_command, encode_command, make_request
from dledger_mq.remoting.registrant import (
    ASK_REGISTRANT,
    CHAIN_FIELD,
    INDEX_FIELD,
    MEMBER_FIELD,
    TOKEN_FIELD,
)

_log = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 2.5
"""Shorter than a broker waits for the answer to its registration."""

ANSWER_BYTES_MAX: Final = 4096
_OPAQUE: Final = 1


async def ask_broker(
    address: Address,
    *,
    token: str | None = None,
    index: Index | None = None,
    member: str | None = None,
    tls: Callable[[], ssl.SSLContext | None] = lambda: None,
) -> Answer | None:
    """Ask a broker the questions that are given; return None for no answer, or none of our protocol.

    Args:
        address: of the broker.
        token: is the registration with this token yours?
        index: what is the chain CRC of the entry there?
        member: does a member of your group serve clients at this address?
        tls: returns what encrypts the connection; None: it is plain text.
    """
    ext = {} if token is None else {TOKEN_FIELD: token}
    if index is not None:
        ext[INDEX_FIELD] = str(index)
    if member is not None:
        ext[MEMBER_FIELD] = member
    question = encode_command(make_request(ASK_REGISTRANT, _OPAQUE, ext))
    with trio.move_on_after(ASK_TIMEOUT_S):
        try:
            frame = await _exchange(address, question, tls())
            return None if frame is None else _answer(frame)
        except (OSError, trio.BrokenResourceError, RemotingError) as error:
            _note_tls(address, error)
            return None
    return None


def _note_tls(address: Address, error: Exception) -> None:
    """Log why there is no agreement on TLS: that does not pass by itself."""
    cause = error.__cause__
    if isinstance(cause, ssl.SSLError):
        _log.warning("broker %s is asked back over TLS in vain: %s", address, why(cause))


async def _exchange(address: Address, question: bytes, tls: ssl.SSLContext | None) -> Frame | None:
    decoder = FrameDecoder(ANSWER_BYTES_MAX)
    async with await _open(address, tls) as stream:
        await stream.send_all(question)
        while (frame := decoder.next_frame()) is None:
            data = await stream.receive_some(ANSWER_BYTES_MAX)
            if not data:
                return None
            decoder.feed(bytes(data))
        return frame


async def _open(address: Address, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    stream = await trio.open_tcp_stream(address.host, address.port)
    if tls is None:
        return stream
    return trio.SSLStream(stream, tls, server_hostname=address.host, https_compatible=True)


def _answer(frame: Frame) -> Answer | None:
    """Read an answer.

    Raises:
        RemotingError: it is malformed.
    """
    answer = decode_command(frame)
    if not answer.is_response or answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    chain_crc = fields.int64(answer.ext, CHAIN_FIELD, None)
    is_member = {"true": True, "false": False}.get(answer.ext.get(MEMBER_FIELD, ""))
    return Answer(answer.code == ResponseCode.SUCCESS, chain_crc, is_member)
