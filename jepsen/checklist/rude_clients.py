"""Misbehaving clients, for scenarios that show what they cost the other clients."""

from __future__ import annotations

import select
import socket
import time
from typing import Final

from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.header import RemotingCommand, encode_command

BURST: Final = 64


def ask_and_never_read(port: int, seconds: float) -> int:
    """Ask one question after another on one connection and read no answer; returns how many were asked.

    Ends early when the server cuts the connection or takes nothing more.
    """
    request = encode_command(RemotingCommand(code=RequestCode.GET_BROKER_CONFIG, opaque=1))
    asked = 0
    deadline = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        while time.monotonic() < deadline:
            _, writable, _ = select.select([], [connection], [], 1.0)
            if not writable:
                continue
            try:
                connection.send(request * BURST)
            except BlockingIOError:
                continue
            except OSError:
                break  # cut off, as it should be
            asked += BURST
    return asked
