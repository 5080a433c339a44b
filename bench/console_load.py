"""What does the console in the browser cost the brokers, and itself, with how many browsers open?

    python -m bench.console_load [--browsers 1,10] [--topics 100] [--seconds 30] [--folder DIR] [--json]

Three nodes and a name server on this machine, and `dledger-admin web` on them. Each browser keeps one page open and
fetches it as often as the page's script does: one shows the cluster, the others topics, groups and charts in turn. For
each number of browsers: requests that the brokers carried out in a second, processor time of the three brokers
together and of the console, and pages that were given. Two more rows stand first: no console, and one that nobody
looks at. Exit codes: 0 measured; 1 the group or the console did not come to serve, or a page failed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.cpu import process_cpu_seconds
from bench.options import several, whole
from bench.real_group import made_topic
from bench.remoting import address_of, create_topic
from jepsen.ports import free_ports
from jepsen.processes import Group, Process, program, wait_listening

PAGES: Final = (
    ("/", 2.0),
    ("/topics", 5.0),
    ("/topic?name=t0", 5.0),
    ("/groups", 5.0),
    ("/group?name=g0", 5.0),
    ("/charts", 5.0),
)
"""The pages that browsers show, and how often each is fetched anew, in seconds."""

QUEUE_COUNT: Final = 4
SETTLE_S: Final = 6.0
"""Until a first look at everything is over, and pages are asked for in their rhythm."""

ANSWER_S: Final = 10.0
LISTEN_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class ConsoleCost:
    """The cost of a second; that of the processor is in parts of one core.

    Attributes:
        browsers: None: no console ran.
        requests: that the three brokers carried out together.
        brokers_cpu, console_cpu: seconds of a core.
        pages: that were given.
    """

    browsers: int | None
    requests: float
    brokers_cpu: float
    console_cpu: float
    pages: float


class Browsers:
    """Threads that each show one page."""

    def __init__(self, address: str, count: int) -> None:
        """Start them; `stop` ends them."""
        self.pages = 0
        self.failures: list[str] = []
        self._address = address
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._show, args=PAGES[number % len(PAGES)])
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all of them."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _show(self, path: str, every_s: float) -> None:
        """Fetch a page again and again; one that nobody knows is a page, too."""
        while not self._ended.wait(every_s):
            try:
                with urllib.request.urlopen(
                    f"http://{self._address}{path}", timeout=ANSWER_S
                ) as it:
                    it.read()
            except urllib.error.HTTPError as error:
                error.read()
                if error.code != 404:
                    self.failures.append(f"{path}: {error}")
            except OSError as error:
                self.failures.append(f"{path}: {error}")
            with self._lock:
                self.pages += 1


def requests_at(metrics_ports: Sequence[int]) -> float:
    """Return how many requests brokers have carried out."""
    total = 0.0
    for port in metrics_ports:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ANSWER_S) as it:
            text = it.read().decode()
        for family in text_string_to_metric_families(text):
            total += sum(
                one.value for one in family.samples if one.name == "rocketmq_rpc_latency_count"
            )
    return total


def _cpu(process: Process | None) -> float:
    return process_cpu_seconds(process.pid) if process is not None and process.pid else 0.0


def cost_of(
    group: Group,
    metrics_ports: Sequence[int],
    console: Process | None,
    *,
    browsers: int | None,
    seconds: float,
) -> ConsoleCost:
    """Measure one row.

    Raises:
        RuntimeError: a page failed.
    """
    opened = Browsers(console.address, browsers or 0) if console is not None else None
    time.sleep(SETTLE_S)
    begun_s, before = time.monotonic(), requests_at(metrics_ports)
    used = [_cpu(console), *map(_cpu, group.nodes)]
    pages = opened.pages if opened is not None else 0
    time.sleep(seconds)
    passed_s = time.monotonic() - begun_s
    own, *theirs = (
        after - earlier
        for after, earlier in zip([_cpu(console), *map(_cpu, group.nodes)], used, strict=True)
    )
    requests = requests_at(metrics_ports) - before
    if opened is not None:
        pages = opened.pages - pages
        opened.stop()
        if opened.failures:
            raise RuntimeError(f"{len(opened.failures)} pages failed: {opened.failures[0]}")
    return ConsoleCost(
        browsers, requests / passed_s, sum(theirs) / passed_s, own / passed_s, pages / passed_s
    )


def measure(
    folder: Path, browsers: Sequence[int], *, topics: int, seconds: float
) -> list[ConsoleCost]:
    """Start everything, and measure without a console, with one that nobody looks at, and for each number of browsers.

    Raises:
        TimeoutError, RuntimeError, OSError: what is measured does not serve.
    """
    with Group(folder) as group:
        ports = free_ports(len(group.nodes) + 1)
        for node, port in zip(group.nodes, ports, strict=False):
            node.command += ["--metrics", str(port)]
        group.start()
        group.wait_listening()
        leader = address_of(made_topic(group, "t0").address)
        for number in range(1, topics):
            create_topic(leader, f"t{number}", QUEUE_COUNT)
        found = [cost_of(group, ports[:-1], None, browsers=None, seconds=seconds)]
        listen = f"127.0.0.1:{ports[-1]}"
        command = [program("dledger-admin"), "web", "-n", group.namesrv, "--listen", listen]
        log = folder / "console.log"
        console = Process("console", command, log=log, port=ports[-1])
        console.start()
        try:
            wait_listening([console], LISTEN_S)
            found += [
                cost_of(group, ports[:-1], console, browsers=count, seconds=seconds)
                for count in (0, *browsers)
            ]
        finally:
            console.kill()
        return found


def show(found: Sequence[ConsoleCost], console: Console) -> None:
    """Print one row for each number of browsers."""
    names = ("browsers", "requests/s", "brokers' cores", "console's cores", "pages/s")
    table = Table(*names)
    for each in found:
        table.add_row(
            "no console" if each.browsers is None else str(each.browsers),
            f"{each.requests:.1f}",
            f"{each.brokers_cpu:.3f}",
            f"{each.console_cpu:.3f}",
            f"{each.pages:.1f}",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="bench.console_load", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--browsers", type=several, default=[1, 10], metavar="N,N")
    parser.add_argument("--topics", type=whole, default=100)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each row")
    parser.add_argument("--folder", type=Path, help="make the stores here, and remove them")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dledger-bench-", dir=options.folder) as folder:
        try:
            found = measure(
                Path(folder) / "g",
                options.browsers,
                topics=options.topics,
                seconds=options.seconds,
            )
        except (TimeoutError, RuntimeError, OSError) as error:
            sys.stderr.write(f"bench.console_load: {error}\n")
            return 1
    if options.json:
        sys.stdout.write(json.dumps([asdict(each) for each in found]) + "\n")
    else:
        show(found, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
