"""What does a message cost through our proxy for gRPC clients, and through Apache's, in front of the same brokers?

    python -m bench.proxies [--rounds 3] [--seconds 4] [--heat 8] [--backlog-mib 160] [--heap-mb 512] [--json]

A group of three, both proxies and one client after the other (`bench/grpc_load.py`), all on this machine; and as the
floor of ours what answers sends without brokers (`bench/empty_proxy.py`). Proxies take turns within each round; medians
of the rounds are printed. `send`: calls with one message of 1 KiB, one or 64 at
a time. `receive`: up to 32 messages and their acknowledgement, 8 at a time, of a backlog. Processor time is that of the
proxy, and of the three brokers together; memory is what each proxy has of its own in the end. Apache's listens on all
addresses, so everything is in a network of its own, which needs root; without that, or its jars (make interop), ours is
measured alone.
Exit codes: 0 measured; 1 the group or a proxy did not come to serve, or a call failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.cpu import process_cpu_seconds
from bench.memory import memory_of
from bench.options import default_interop, positive, whole
from bench.real_group import BODY_BYTES, made_topic
from bench.systems.apache_proxy import HEAP_MB, apache_proxy, lacking_apache_proxy
from dledger_mq import Message
from dledger_mq.blocking import Producer
from jepsen.ports import free_ports
from jepsen.private_network import private_network
from jepsen.processes import Group, Process, program, wait_listening

TOPIC: Final = "Proxies"
CLUSTER: Final = "DefaultCluster"
PATIENCE_S: Final = 300.0
WARM_UP_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ProxyWork:
    """The work of a client: what it does, and how often at a time."""

    what: str
    in_flight: int

    @property
    def label(self) -> str:
        """Its name in the table."""
        return f"{self.what} x {self.in_flight}"


EMPTY: Final = "empty"
WORKS: Final = (ProxyWork("send", 1), ProxyWork("send", 64), ProxyWork("receive", 8))


@dataclass(frozen=True, slots=True)
class ProxyCost:
    """The figures of one client through one proxy: medians of the rounds.

    Attributes:
        p50_ms: of a send, or of a receipt with its acknowledgement.
        proxy_us, brokers_us: processor time for each message.
    """

    proxy: str
    work: str
    per_second: float
    p50_ms: float
    proxy_us: float
    brokers_us: float


@dataclass(frozen=True, slots=True)
class ProxyFigures:
    """All that was found.

    Attributes:
        own_mib: memory of each proxy in the end.
        lacking: why Apache's was not measured; None: it was.
    """

    costs: list[ProxyCost]
    own_mib: dict[str, float]
    lacking: str | None


def fill(namesrv: str, mib: int) -> None:
    """Send what is to be received, by a client that tries again: a busy machine may change its leader.

    Raises:
        RuntimeError: a message was refused all the same.
    """
    message = Message(TOPIC, b"x" * BODY_BYTES)
    with Producer(namesrv, "bench-fill", timeout_s=PATIENCE_S) as producer:
        for _ in range(mib):
            ends = producer.send_many([message] * ((1 << 20) // BODY_BYTES))
            failed = [end for end in ends if isinstance(end, Exception)]
            if failed:
                raise RuntimeError(f"a message was not stored: {failed[0]}")


def our_proxy(folder: Path, namesrv: str) -> Process:
    """Make our proxy; it is not started."""
    (port,) = free_ports(1)
    command = [program("dledger-proxy"), "-n", namesrv, "--listen", f"127.0.0.1:{port}"]
    return Process("ours", command, log=folder / "ours.log", port=port)


def empty_proxy(folder: Path) -> Process:
    """Make what answers sends without brokers; it is not started."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "bench.empty_proxy", f"127.0.0.1:{port}"]
    return Process(EMPTY, command, log=folder / "empty.log", port=port)


def worked(
    proxy: Process, brokers: Sequence[Process], work: ProxyWork, *, warm_up_s: float, seconds: float
) -> ProxyCost:
    """Let a client work through a proxy.

    Raises:
        RuntimeError: it failed.
    """
    command = [
        *(sys.executable, "-m", "bench.grpc_load", work.what),
        *("--endpoint", proxy.address, "--topic", TOPIC, "--group", f"bench-{proxy.name}"),
        *("--in-flight", str(work.in_flight)),
        *("--warm-up", str(warm_up_s), "--seconds", str(seconds)),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None, "it is a pipe"
        try:
            client.stdout.readline()
            before = _cpu_seconds([proxy]), _cpu_seconds(brokers)
            line = client.stdout.readline()
            after = _cpu_seconds([proxy]), _cpu_seconds(brokers)
            _, said = client.communicate(timeout=PATIENCE_S)
        finally:
            client.kill()
    if client.returncode or not line:
        raise RuntimeError(f"{work.label} through {proxy.name}: {said.strip()[-500:]}")
    figures = json.loads(line)
    proxy_us, brokers_us = (
        1e6 * (late - early) / max(1, figures["messages"])
        for early, late in zip(before, after, strict=True)
    )
    per_second = figures["messages"] / figures["seconds"]
    return ProxyCost(proxy.name, work.label, per_second, figures["p50_ms"], proxy_us, brokers_us)


def _cpu_seconds(processes: Sequence[Process]) -> float:
    return sum(process_cpu_seconds(each.pid) for each in processes if each.pid)


def median_of(rounds: Sequence[ProxyCost]) -> ProxyCost:
    """Return the medians of the same work through the same proxy."""
    first = rounds[0]
    return ProxyCost(
        first.proxy,
        first.work,
        *(
            statistics.median(getattr(each, name) for each in rounds)
            for name in ("per_second", "p50_ms", "proxy_us", "brokers_us")
        ),
    )


def measure(folder: Path, options: argparse.Namespace) -> ProxyFigures:
    """Start everything and measure.

    Raises:
        TimeoutError, RuntimeError, OSError, subprocess.SubprocessError: what is measured does not serve.
    """
    lacking = lacking_apache_proxy(options.interop)
    with ExitStack() as stack:
        if lacking is None:
            stack.enter_context(private_network())
        group = stack.enter_context(Group(folder / "g", settings=""))
        group.start()
        group.wait_listening(PATIENCE_S)
        made_topic(group, TOPIC)
        fill(group.namesrv, options.backlog_mib)
        proxies = [our_proxy(folder, group.namesrv), empty_proxy(folder)]
        if lacking is None:
            apache = apache_proxy(
                folder / "apache",
                group.namesrv,
                cluster=CLUSTER,
                interop=options.interop,
                heap_mb=options.heap_mb,
            )
            proxies.append(apache)
        for proxy in proxies:
            stack.callback(proxy.kill)
            proxy.start()
        wait_listening(proxies, PATIENCE_S)
        turns = [
            (work, proxy)
            for work in WORKS
            for proxy in proxies
            if work.what == "send" or proxy.name != EMPTY
        ]
        for work, proxy in turns:
            worked(proxy, group.nodes, work, warm_up_s=WARM_UP_S, seconds=options.heat)
        rounds = [
            worked(proxy, group.nodes, work, warm_up_s=WARM_UP_S, seconds=options.seconds)
            for _ in range(options.rounds)
            for work, proxy in turns
        ]
        memory = {proxy.name: memory_of(proxy.pid).own_mib for proxy in proxies if proxy.pid}
    costs = [
        median_of([each for each in rounds if (each.proxy, each.work) == (proxy.name, work.label)])
        for work, proxy in turns
    ]
    return ProxyFigures(costs, memory, lacking)


def show(found: ProxyFigures, console: Console) -> None:
    """Print a row for each work and proxy, and the memory."""
    table = Table("work", "proxy", "messages/s", "p50 ms", "proxy us/message", "brokers us/message")
    for each in found.costs:
        table.add_row(
            each.work,
            each.proxy,
            f"{each.per_second:,.0f}",
            f"{each.p50_ms:.2f}",
            f"{each.proxy_us:.0f}",
            f"{each.brokers_us:.0f}",
        )
    console.print(table)
    for proxy, own_mib in found.own_mib.items():
        console.print(f"{proxy}: {own_mib:.0f} MiB of its own", highlight=False)
    if found.lacking:
        console.print(f"Apache's proxy was not measured: {found.lacking}", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="bench.proxies", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=whole, default=3)
    parser.add_argument("--seconds", type=positive, default=4.0, help="of each work in a round")
    parser.add_argument("--heat", type=positive, default=8.0, help="of each work before that")
    parser.add_argument("--backlog-mib", type=whole, default=160, help="to be received")
    parser.add_argument("--heap-mb", type=whole, default=HEAP_MB, help="of Apache's proxy, at most")
    parser.add_argument("--interop", type=Path, default=default_interop(), metavar="DIR")
    parser.add_argument("--folder", type=Path, help="make the stores here, and remove them")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dledger-bench-", dir=options.folder) as folder:
        try:
            found = measure(Path(folder), options)
        except (TimeoutError, RuntimeError, OSError, subprocess.SubprocessError) as error:
            sys.stderr.write(f"bench.proxies: {error}\n")
            return 1
    if options.json:
        sys.stdout.write(json.dumps(asdict(found)) + "\n")
    else:
        show(found, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
