"""Connections whose other machine died or was cut off: nobody says goodbye there, so the kernel has to ask.

A process that only stands still is no dead peer, since its kernel answers for it.
"""

from __future__ import annotations

import socket
from typing import Final

_PROBES: Final = 3


def notice_dead_peer(sock: socket.socket, *, after_s: int) -> None:
    """Let a connection break when its other end has given no sign of life for about so long, whether it is idle or not.

    Connections that a listening socket accepts take over its settings.
    """
    interval_s = max(1, after_s // (_PROBES + 1))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, after_s - _PROBES * interval_s))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, after_s * 1000)
