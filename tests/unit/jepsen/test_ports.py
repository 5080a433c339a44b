from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from jepsen.ports import (
    BLOCK_PORTS,
    HIGHEST,
    LOWEST,
    VIP_DISTANCE,
    PortBlock,
    free_port_rows,
    free_ports,
    is_free,
)


def test_ports_differ_from_each_other_and_from_each_others_vip_ports() -> None:
    ports = free_ports(7)
    everything = {*ports, *(port - VIP_DISTANCE for port in ports)}
    assert len(everything) == 14
    assert all(is_free(port) for port in everything)
    assert all(LOWEST <= port <= HIGHEST for port in everything)


def test_rows_of_ports_do_not_meet() -> None:
    rows = [range(first, first + 30, 10) for first in free_port_rows(3, length=3, step=10)]
    assert len({port for row in rows for port in row}) == 9
    assert all(is_free(port) for row in rows for port in row)


def test_rows_of_ports_stay_in_the_block_of_their_process() -> None:
    blocks: set[int] = set()
    for _ in range(4):  # begins in each part of the block
        free_ports(17)
        for first in free_port_rows(3, length=5, step=10):
            blocks.update((port - LOWEST) // BLOCK_PORTS for port in range(first, first + 50, 10))
    assert len(blocks) == 1


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not is_free(server.getsockname()[1])


def test_a_port_is_not_chosen_again_while_it_is_down() -> None:
    assert not {*free_ports(7)} & {*free_ports(40)}


def test_more_than_there_are_is_an_error() -> None:
    with pytest.raises(OSError, match="of 1000 free ports"):
        free_ports(1000)


@pytest.mark.slow
def test_two_processes_never_choose_the_same_port() -> None:
    """Each has chosen and does not listen yet."""
    choose = "from jepsen.ports import free_ports; print(*free_ports(40), flush=True); input()"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", choose],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    chosen = [*free_ports(40)]
    try:
        for other in others:
            assert other.stdout is not None
            chosen += map(int, other.stdout.readline().split())
    finally:
        for other in others:
            other.communicate("\n")
    assert len(set(chosen)) == 4 * 40


@pytest.mark.slow
def test_a_block_is_free_again_when_its_process_has_ended() -> None:
    claim = "import sys; from jepsen.ports import PortBlock; PortBlock(int(sys.argv[1]))"
    number = HIGHEST + os.getpid()  # nobody else asks for this one
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", claim, str(number)], check=False)
        assert done.returncode == 0
    mine = PortBlock(number)
    with pytest.raises(OSError, match="in use"):
        PortBlock(number)
    mine.close()
