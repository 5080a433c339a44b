"""What does a three-node group do, and what does PySyncObj do beside it in the same run?

    python -m bench.broker [--seconds 4] [--json] [--keep DIR] [--only sends,batch,pulls,peer]

Rows: acknowledged sends a second with 1, 64 and 1024 in flight, batch sends, pulls; CPU of the leader
and of a follower per message; and PySyncObj 0.3.17 with three processes under the same append load.
Machines drift: trust the ratios of one run and the CPU per message more than the rates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cpu import cpu_seconds
from bench.loadgen import (
    FrameTemplate,
    LoadResult,
    batch_template,
    pull_template,
    run_load,
    send_template,
)
from jepsen.ports import free_ports
from jepsen.processes import Group, Process, poll

BODY_BYTES = 1024
QUEUE_COUNT = 8
BATCH_COUNT = 100
PULL_COUNT = 32
WINDOWS = (1, 64, 1024)
OUR_DURABILITY = "fsync"
PEER_DURABILITY = "no fsync"


@dataclass(frozen=True, slots=True)
class BrokerResult:
    """One measured case. CPU in microseconds per message; None where it does not apply."""

    case: str
    in_flight: int
    durability: str
    messages_per_second: float
    p50_us: float
    p99_us: float
    leader_cpu_us: float | None
    follower_cpu_us: float | None


def call(address: tuple[str, int], template: FrameTemplate) -> tuple[dict[str, Any], bytes]:
    """Send one request, and return its response header and body."""
    with socket.create_connection(address, timeout=10) as sock:
        sock.sendall(template.frame(0))
        stream = sock.makefile("rb")
        size, header_size = struct.unpack(">ii", stream.read(8))
        header = json.loads(stream.read(header_size))
        return header, stream.read(size - 4 - header_size)


def find_leader(group: Group, topic: str) -> Process:
    """Return the node that the route names as brokerId 0."""
    host, port = group.name_servers[0].address.rsplit(":", 1)
    route = FrameTemplate(105, {"topic": topic, "acceptStandardJsonOnly": "true"})
    header, body = call((host, int(port)), route)
    if header["code"] != 0:
        raise LookupError(header.get("remark"))
    return group.by_address[json.loads(body)["brokerDatas"][0]["brokerAddrs"]["0"]]


def made_topic(group: Group, topic: str) -> Process:
    """Create a topic in a group that was just started; return the node that leads.

    Raises:
        TimeoutError: nobody leads.
        RuntimeError: the topic was refused.
    """
    found: list[Process] = []

    def has_leader() -> bool:
        with contextlib.suppress(LookupError, OSError):
            found[:] = [find_leader(group, "TBW102")]
        return bool(found)

    if not poll(has_leader, 20):
        raise TimeoutError(f"no leader after 20 s; logs are in {group.folder}")
    create = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUE_COUNT),
        "writeQueueNums": str(QUEUE_COUNT),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    header, _ = call(("127.0.0.1", found[0].port), FrameTemplate(17, create))
    if header["code"] != 0:
        raise RuntimeError(f"the topic was not created: {header}")
    return found[0]


@contextlib.contextmanager
def broker_group(folder: Path, topic: str) -> Iterator[tuple[Group, Process, list[Process]]]:
    """Start a fresh group with one topic; yields the group, its leader, its followers."""
    with Group(folder, settings="") as group:
        group.start()
        group.wait_listening()
        leader = made_topic(group, topic)
        yield group, leader, [node for node in group.nodes if node is not leader]


class CpuMeter:
    """CPU per message of the leader and the mean follower over a span."""

    def __init__(self, leader: Process, followers: list[Process]) -> None:
        self._pids = [process.pid or 0 for process in (leader, *followers)]
        self._before = [cpu_seconds(pid) for pid in self._pids]

    def per_message_us(self, messages: int) -> tuple[float, float]:
        """Return the leader's, and the mean of the followers'."""
        spent = [
            1e6 * (cpu_seconds(pid) - before) / messages
            for pid, before in zip(self._pids, self._before, strict=True)
        ]
        return spent[0], sum(spent[1:]) / len(spent[1:])


def measure_sends(
    leader: Process, followers: list[Process], topic: str, seconds: float
) -> list[BrokerResult]:
    """Measure single sends, each window after a short warm-up."""
    address = ("127.0.0.1", leader.port)
    templates = [send_template(topic, queue, b"x" * BODY_BYTES) for queue in range(QUEUE_COUNT)]
    rows = []
    for window in WINDOWS:
        run_load(
            address,
            lambda number: templates[number % QUEUE_COUNT].frame(number),
            in_flight=window,
            seconds=0.5,
        )
        meter = CpuMeter(leader, followers)
        result = run_load(
            address,
            lambda number: templates[number % QUEUE_COUNT].frame(number),
            in_flight=window,
            seconds=seconds,
        )
        rows.append(
            row("send 1 KiB", window, result, meter.per_message_us(result.requests), per_request=1)
        )
    return rows


def measure_batches(
    leader: Process, followers: list[Process], topic: str, seconds: float
) -> list[BrokerResult]:
    """Measure SEND_BATCH_MESSAGE with 100 messages of 1 KiB."""
    template = batch_template(topic, 0, b"x" * BODY_BYTES, BATCH_COUNT)
    meter = CpuMeter(leader, followers)
    result = run_load(("127.0.0.1", leader.port), template.frame, in_flight=16, seconds=seconds)
    cpu = meter.per_message_us(result.requests * BATCH_COUNT)
    return [row(f"batch of {BATCH_COUNT} x 1 KiB", 16, result, cpu, per_request=BATCH_COUNT)]


def measure_pulls(
    leader: Process, followers: list[Process], topic: str, seconds: float
) -> list[BrokerResult]:
    """Measure pulls of 32 messages, each from another place of queue 0."""
    header, _ = call(
        ("127.0.0.1", leader.port), FrameTemplate(30, {"topic": topic, "queueId": "0"})
    )
    stored = int(header["extFields"]["offset"])
    starts = range(0, max(1, stored - PULL_COUNT), PULL_COUNT)
    templates = [pull_template(topic, 0, start, PULL_COUNT) for start in starts[:4096]]
    rows = []
    for window in (1, 8):
        meter = CpuMeter(leader, followers)
        result = run_load(
            ("127.0.0.1", leader.port),
            lambda number: templates[number % len(templates)].frame(number),
            in_flight=window,
            seconds=seconds,
        )
        cpu = meter.per_message_us(result.requests * PULL_COUNT)
        rows.append(row(f"pull of {PULL_COUNT}", window, result, cpu, per_request=PULL_COUNT))
    return rows


def row(
    case: str, window: int, result: LoadResult, cpu_us: tuple[float, float], *, per_request: int
) -> BrokerResult:
    """Build a row from a run; a refused request makes the run worthless."""
    if result.refused:
        raise RuntimeError(
            f"{case}, {window} in flight: {result.refused} of {result.requests} refused"
        )
    return BrokerResult(
        case,
        window,
        OUR_DURABILITY if "pull" not in case else "-",
        result.per_second * per_request,
        result.p50_us,
        result.p99_us,
        cpu_us[0],
        cpu_us[1] if "pull" not in case else None,
    )


def measure_peer(folder: Path, seconds: float, *, batch: bool) -> list[BrokerResult]:
    """Measure PySyncObj: three processes, commands of 1 KiB, the client inside the leader."""
    nodes = [f"127.0.0.1:{port}" for port in free_ports(3)]
    children: list[subprocess.Popen[str]] = []
    mode = "batch" if batch else "single"
    folder.mkdir(parents=True, exist_ok=True)
    complaints = (folder / f"{mode}.log").open("w")
    try:
        for node in nodes:
            others = [other for other in nodes if other != node]
            home = folder / f"{mode}-{node.rsplit(':', 1)[1]}"
            children.append(
                subprocess.Popen(
                    [sys.executable, "-m", "bench.pysyncobj_peer", node, *others, str(home), mode],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    text=True,
                )
            )
        leader = wait_for_peer_leader(children)
        order = [leader, *(child for child in children if child is not leader)]
        rows = []
        for window in WINDOWS:
            before = [cpu_seconds(child.pid) for child in order]
            answer = ask(leader, f"run {window} {seconds}")
            spent = [
                1e6 * (cpu_seconds(child.pid) - start) / max(1, answer["commands"])
                for child, start in zip(order, before, strict=True)
            ]
            rows.append(
                BrokerResult(
                    f"PySyncObj ({mode})",
                    window,
                    PEER_DURABILITY,
                    answer["commands"] / answer["seconds"],
                    answer["p50_us"],
                    answer["p99_us"],
                    spent[0],
                    (spent[1] + spent[2]) / 2,
                )
            )
        return rows
    finally:
        for child in children:
            child.kill()
            child.wait()
        complaints.close()


def ask(child: subprocess.Popen[str], line: str) -> dict[str, Any]:
    """Send one command to a peer process, and return its JSON answer."""
    assert child.stdin is not None, f"{child.args!r} has no pipe for stdin"
    assert child.stdout is not None, f"{child.args!r} has no pipe for stdout"
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return dict(json.loads(child.stdout.readline()))


def wait_for_peer_leader(children: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """Return the process that leads, once all are ready."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        answers = [ask(child, "leader") for child in children]
        leaders = [
            child for child, answer in zip(children, answers, strict=True) if answer["leads"]
        ]
        if leaders and all(answer["ready"] for answer in answers):
            return leaders[0]
        time.sleep(0.1)
    raise TimeoutError("PySyncObj elected no leader within 20 s")


def show(rows: list[BrokerResult], console: Console) -> None:
    """Print a table, and the ratios against the peer at equal windows."""
    table = Table(title="Three nodes, 1 KiB messages, one machine", title_justify="left")
    for name in (
        "case",
        "in flight",
        "durability",
        "messages/s",
        "p50 us",
        "p99 us",
        "leader us/msg",
        "follower us/msg",
    ):
        table.add_column(name, justify="left" if name in ("case", "durability") else "right")
    for item in rows:
        table.add_row(
            item.case,
            str(item.in_flight),
            item.durability,
            f"{item.messages_per_second:,.0f}",
            f"{item.p50_us:,.0f}",
            f"{item.p99_us:,.0f}",
            f"{item.leader_cpu_us:.2f}" if item.leader_cpu_us is not None else "-",
            f"{item.follower_cpu_us:.2f}" if item.follower_cpu_us is not None else "-",
        )
    console.print(table)
    for name, window, ratio, cpu in ratios(rows):
        console.print(
            f"ours / {name}, {window} in flight: {ratio:.1f}x the rate, {cpu:.2f}x the leader's CPU per message"
        )


def ratios(rows: list[BrokerResult]) -> list[tuple[str, int, float, float]]:
    """Return peer case, window, our rate over theirs, our leader CPU over theirs."""
    ours = {item.in_flight: item for item in rows if item.case.startswith("send")}
    return [
        (
            item.case,
            item.in_flight,
            ours[item.in_flight].messages_per_second / item.messages_per_second,
            (ours[item.in_flight].leader_cpu_us or 0) / (item.leader_cpu_us or 1),
        )
        for item in rows
        if item.case.startswith("PySyncObj") and item.in_flight in ours and item.messages_per_second
    ]


def main() -> int:
    """Run the chosen measurements."""
    parser = argparse.ArgumentParser(
        prog="bench.broker", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="length of each measured run (default 4)"
    )
    parser.add_argument(
        "--only", default="sends,batch,pulls,peer", help="parts to run (default all)"
    )
    parser.add_argument(
        "--json", action="store_true", help="rows and ratios as JSON on standard output"
    )
    parser.add_argument("--keep", type=Path, help="keep stores and logs in this folder")
    options = parser.parse_args()
    parts = set(options.only.split(","))
    folder = options.keep or Path(tempfile.mkdtemp(prefix="dledger-bench-"))
    console = Console(stderr=options.json)
    rows: list[BrokerResult] = []
    try:
        if parts & {"sends", "batch", "pulls"}:
            with broker_group(folder / "group", "Bench") as (_, leader, followers):
                for part, measure in (
                    ("sends", measure_sends),
                    ("batch", measure_batches),
                    ("pulls", measure_pulls),
                ):
                    if part in parts:
                        console.print(f"measuring {part} ...")
                        rows += measure(leader, followers, "Bench", options.seconds)
        if "peer" in parts:
            for batch in (True, False):
                console.print(f"measuring PySyncObj ({'batch' if batch else 'single'}) ...")
                rows += measure_peer(folder / "peer", options.seconds, batch=batch)
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    show(rows, console)
    if options.json:
        result = {
            "rows": [asdict(item) for item in rows],
            "ratios": [
                {"peer": name, "in_flight": window, "rate": rate, "leader_cpu": cpu}
                for name, window, rate, cpu in ratios(rows)
            ],
        }
        sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
