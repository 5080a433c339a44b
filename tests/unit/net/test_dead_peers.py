"""Connections that break by themselves when the other machine is gone."""

from __future__ import annotations

import socket

import pytest

from broker.net.dead_peers import notice_dead_peer


@pytest.mark.parametrize("after_s", [1, 2, 10, 15, 60])
def test_what_a_listening_socket_accepts_is_watched_for_about_so_long(after_s: int) -> None:
    with socket.socket() as listening, socket.socket() as client:
        listening.bind(("127.0.0.1", 0))
        notice_dead_peer(listening, after_s=after_s)
        listening.listen()
        client.connect(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            idle_s, interval_s, probes = (
                accepted.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert after_s <= idle_s + probes * interval_s <= max(after_s, 4)
            timeout_ms = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert timeout_ms == after_s * 1000
