from __future__ import annotations

import socket

from jepsen.ports import VIP_DISTANCE, free_ports, is_free


def test_ports_differ_from_each_other_and_from_each_others_vip_ports() -> None:
    ports = free_ports(7)
    everything = {*ports, *(port - VIP_DISTANCE for port in ports)}
    assert len(everything) == 14
    assert all(is_free(port) for port in everything)


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not is_free(server.getsockname()[1])
