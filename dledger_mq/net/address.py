"""Addresses as people write them: `host:port`, `port`, `[v6]:port`."""

from __future__ import annotations

from typing import NamedTuple

_PORT_MAX = 0xFFFF


class Address(NamedTuple):
    """Host and port; an empty host stands for every interface."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, default_host: str = "") -> Address:
    """Read `[HOST:]PORT`.

    Raises:
        ValueError: no port, or one that is not in 0..65535; the message quotes the text.
    """
    host, _, port_text = text.strip().rpartition(":")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > _PORT_MAX:
        raise ValueError(f"{text!r} is not [HOST:]PORT with a port from 0 to {_PORT_MAX}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return Address(host or default_host, int(port_text))
