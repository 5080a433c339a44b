"""How long does a node need to serve again after kill -9, with a log of 1 GiB?

    python -m bench.restart [--mib 1024] [--without-snapshots] [--json]

Fills a three-node group with batches of 1 KiB messages, kills all three nodes with kill -9 at once and
starts them again: the time from the start to the first acknowledged send, and how it divides.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from rich.console import Console

from bench.filling import fill, mib_of
from bench.loadgen import send_template
from bench.real_group import BODY_BYTES, broker_group, find_leader
from bench.remoting import call
from jepsen.processes import Group, poll


def _is_served(group: Group) -> bool:
    """Return whether the leader that the route names acknowledges a send."""
    send = send_template("Restart", 0, b"after")
    with contextlib.suppress(LookupError, OSError):
        address = ("127.0.0.1", find_leader(group, "Restart").port)
        return bool(call(address, send)[0]["code"] == 0)
    return False


def main() -> int:
    """Fill, kill, start, time."""
    parser = argparse.ArgumentParser(
        prog="bench.restart", description="restart after kill -9 with a large log"
    )
    parser.add_argument(
        "--mib", type=int, default=1024, help="size of the log in MiB (default 1024)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument(
        "--without-snapshots", action="store_true", help="remove them before the restart"
    )
    options = parser.parse_args()
    console = Console(stderr=True)
    folder = Path(tempfile.mkdtemp(prefix="dledger-restart-"))
    try:
        with broker_group(folder, "Restart") as (group, leader, _):
            console.print(f"writing {options.mib:,} MiB of messages of {BODY_BYTES} bytes ...")
            written = fill(leader, "Restart", options.mib)
            for node in group.nodes:
                node.kill()
            if options.without_snapshots:
                for snapshots in folder.glob("*/snapshots"):
                    shutil.rmtree(snapshots)
            began = time.monotonic()
            for node in group.nodes:
                node.start()
            group.wait_listening(120)
            listening_s = time.monotonic() - began
            if not poll(partial(_is_served, group), 300):
                raise TimeoutError(f"not served after 300 s; logs are in {folder}")
            served_s = time.monotonic() - began
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    answer = {
        "log_mib": round(mib_of(written)),
        "messages": written,
        "listening_s": round(listening_s, 2),
        "served_s": round(served_s, 2),
    }
    console.print(
        f"log {answer['log_mib']} MiB, {answer['messages']:,} messages: all three nodes listening after "
        f"{answer['listening_s']} s, first acknowledged send after {answer['served_s']} s"
    )
    if options.json:
        sys.stdout.write(json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
