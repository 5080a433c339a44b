"""Answers to several connections at once, each of which gets its own: one system call for each, and little else.

Where there is no compiled code each is written to by itself, and so is a connection that does not take its bytes
directly.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger_mq.message import compiled
from dledger_mq.net.frame_socket import FrameSocket


def send_each(connections: Sequence[FrameSocket], pieces: Sequence[bytes]) -> None:
    """Send each of some connections what is its own, as `send_nowait` does; none of them comes twice.

    Where no bytes wait for a connection in plain text, they go to their sockets in one compiled loop, if there is one.
    """
    plain: list[FrameSocket] = []
    texts: list[bytes] = []
    others: list[tuple[FrameSocket, bytes]] = []
    for connection, data in zip(connections, pieces, strict=True):
        if connection.takes_directly:
            plain.append(connection)
            texts.append(data)
        else:
            others.append((connection, data))
    counts = compiled.send_each([connection.descriptor for connection in plain], texts)
    if counts is None:
        others += zip(plain, texts, strict=True)
    else:
        for connection, data, sent in zip(plain, texts, counts, strict=True):
            if sent == len(data):
                connection.sent_bytes += sent
            else:
                connection.was_sent(data, sent)
    for connection, data in others:
        connection.send_nowait(data)
