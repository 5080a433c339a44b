"""Draws docs/grafana-board.json with the figures of a run.

    python -m bench.board [--seconds 150] [--out docs/grafana-board.png] [--prometheus PROGRAM] [--folder DIR]

A name server and a group of three members run on this machine with clients that do some of everything; after a third
of the time the leader is killed, and after two thirds it is started again. Prometheus (Debian: prometheus) looks at all
of them every 2 s, and answers the board's own expressions, which are drawn with matplotlib (extra `spark`). Exit codes:
0 drawn; 1 the group did not come to serve; 2 something that is needed is not installed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import trio

from bench.board.drawing import draw
from bench.board.panels import panels_of
from bench.board.prometheus import Prometheus, find_prometheus
from bench.board.traffic import ORDERS, PAYMENTS, BoardTraffic
from bench.real_group import find_leader, made_topic
from bench.remoting import address_of, create_topic
from dledger.version import __version__
from jepsen.ports import free_ports
from jepsen.processes import Group

BOARD: Final = Path(__file__).resolve().parents[2] / "docs" / "grafana-board.json"
STEP_S: Final = 2
RATE_WINDOW_S: Final = 5 * STEP_S
QUEUE_COUNT: Final = 4


async def take_figures(group: Group, seconds: float) -> tuple[float, int]:
    """Let clients work, and the leader die and come back; return after how long it died, and how many calls failed."""
    traffic = BoardTraffic(group.namesrv, seconds)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(traffic.run)
        await trio.sleep(seconds / 3)
        leader = find_leader(group, ORDERS)
        await trio.to_thread.run_sync(leader.kill)
        await trio.sleep(seconds / 3)
        leader.start()
    return seconds / 3, traffic.failed


def run(folder: Path, program: str, out: Path, seconds: float) -> None:
    """Run everything, and draw."""
    with Group(folder) as group:
        servers = group.processes()
        ports = free_ports(len(servers))
        for server, port in zip(servers, ports, strict=True):
            server.command += ["--metrics", str(port)]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        names = len(group.name_servers)
        jobs = {"dledger-namesrv": addresses[:names], "dledger": addresses[names:]}
        group.start()
        group.wait_listening()
        leader = made_topic(group, ORDERS)
        create_topic(address_of(leader.address), PAYMENTS, QUEUE_COUNT)
        with Prometheus(program, folder / "prometheus", jobs, step_s=STEP_S) as prometheus:
            begin_s = time.time()
            killed_s, failed = trio.run(take_figures, group, seconds)
            end_s = time.time()
            panels = panels_of(json.loads(BOARD.read_text()), rate_window_s=RATE_WINDOW_S)
            answered = [
                (
                    panel,
                    [prometheus.ask(each.expression, begin_s, end_s) for each in panel.targets],
                )
                for panel in panels
            ]
        caption = (
            f"docs/grafana-board.json, drawn by `python -m bench.board` (not by Grafana) from what Prometheus answered "
            f"to its expressions. Release {__version__}, three members and a\nname server on one machine, "
            f"looked at every {STEP_S} s for {end_s - begin_s:.0f} s; rates over {RATE_WINDOW_S} s. "
            f"The leader was killed after {killed_s:.0f} s and started again after {2 * killed_s:.0f} s; "
            f"{failed} calls of clients failed."
        )
        draw(out, answered, begin_s=begin_s, step_s=STEP_S, caption=caption)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="bench.board", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--seconds", type=float, default=150.0, help="of the run (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=BOARD.with_suffix(".png"))
    parser.add_argument("--prometheus", help="the program, if it is not on the path")
    parser.add_argument("--folder", type=Path, help="make the stores here, and remove them")
    options = parser.parse_args(arguments)
    try:
        program = find_prometheus(options.prometheus)
    except FileNotFoundError as error:
        sys.stderr.write(f"bench.board: {error}\n")
        return 2
    if find_spec("matplotlib") is None:
        sys.stderr.write("bench.board: matplotlib is not installed (extra `spark`)\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="dledger-board-", dir=options.folder) as folder:
        try:
            run(Path(folder) / "g", program, options.out, options.seconds)
        except TimeoutError as error:
            sys.stderr.write(f"bench.board: {error}\n")
            return 1
    sys.stdout.write(f"{options.out} has {options.out.stat().st_size / 1000:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
