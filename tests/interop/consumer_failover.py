"""How soon unmodified consumers go on when a machine fails, or one of them: two of each client share a topic's queues.

    python -m tests.interop.consumer_failover --fault kill        # all processes of a machine; the supervisor is there
    python -m tests.interop.consumer_failover --fault dead        # a whole machine, until its queues are read again
    python -m tests.interop.consumer_failover --fault consumer    # one of two consumers, killed

starts three machines, which share three groups, and prints for each round and client how long it took until every queue
had delivered a message that was sent after the fault: for the queues of groups that the machine led, and for the others
(with `consumer`: for the queues of the one that was killed). Below it, for each client, the figures of all rounds, and
how many messages were lost. Exit status: 0; 1 if something acknowledged was not delivered; 2 if it was not measured.

With `--fault dead` connections to the dead machine are refused, as its addresses are of loopback. As root and with
`--namespaces` packets to it vanish, as with a machine that has lost its power.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import trio

from broker.admin.ask import addresses_of_group, ask_all
from dledger_mq import ClientError, Message, MessageQueue
from dledger_mq.blocking import Admin, Producer
from jepsen.checkers.percentiles import percentile
from jepsen.processes import poll
from tests.interop.conftest import ForeignClient, Listener
from tests.interop.failover.command import CLIENTS, clients_here, require_namespaces, status_of
from tests.interop.failover.machines import LETTERS, Machines, running_machines

FAULTS: Final = ("kill", "dead", "consumer")
TOPIC: Final = "Consumed"
QUEUES: Final = 4
"""Of each group."""

PAUSE_S: Final = 0.1
"""Between two messages to a queue: figures are as exact as this."""

RECENT_S: Final = 2.0
"""What a member was given within this time is its own; every queue has had messages."""

WAIT_S: Final = 120.0
BACK_S: Final = 90.0
"""Longer than any client's own round: what is not back then is not waited for."""

DEAD_S: Final = 45.0
"""A dead machine stays away longer than clients take to ask for routes."""

Place = tuple[str, int]
"""A queue: its group and its queue id."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that a consumer was given, by the monotonic clock."""

    came_s: float
    place: Place
    number: int


class Member(Listener):
    """One of the consumers of a group, in a process of its own."""

    def __init__(self, kind: str, name_servers: str, serial: int) -> None:
        self.deliveries: list[Delivery] = []
        more = ("--instance", f"member{serial}") if kind == "cpp" else ()
        super().__init__(
            ForeignClient(kind, name_servers).start(
                *("consume", "--topic", TOPIC, "--group", group_of(kind), "--count", str(10**8)),
                *("--timeout", "7200", *more),
            )
        )

    def _read(self) -> None:
        assert self._child.stdout is not None
        for text in self._child.stdout:
            came_s = time.monotonic()
            line = json.loads(text) if text.endswith("\n") else {}
            if "body" in line:
                broker, queue_id, number = line["body"].split()
                self.deliveries.append(Delivery(came_s, (broker, int(queue_id)), int(number)))

    def places_since(self, since_s: float) -> set[Place]:
        """The queues that have delivered something since then."""
        return {each.place for each in list(self.deliveries) if each.came_s >= since_s}

    def kill(self) -> None:
        """End it as a machine does that loses its power: nothing is said or stored."""
        self._child.send_signal(signal.SIGKILL)
        self._thread.join()


def group_of(kind: str) -> str:
    return "G" + kind.replace(".", "_").replace("-", "_")


class Feed:
    """Sends to every queue, again and again; a group that cannot take messages holds up no other."""

    def __init__(self, name_servers: str, groups: Iterable[str]) -> None:
        self.begun_s: dict[tuple[Place, int], float] = {}
        """The acknowledged messages, and when each was first sent."""
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(name_servers, group)) for group in groups
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Send no more."""
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name_servers: str, group: str) -> None:
        with Producer(name_servers, f"feed-{group}", timeout_s=WAIT_S) as producer:
            number = 0
            while not self._end.wait(PAUSE_S):
                for queue_id in range(QUEUES):
                    self._send(producer, (group, queue_id), number)
                number += 1

    def _send(self, producer: Producer, place: Place, number: int) -> None:
        broker, queue_id = place
        begun_s = time.monotonic()
        queue = MessageQueue(TOPIC, broker, queue_id)
        try:
            producer.send(Message(TOPIC, f"{broker} {queue_id} {number}".encode()), queue=queue)
        except ClientError:
            return  # perhaps stored; it is not counted
        self.begun_s[place, number] = begun_s


@dataclass(slots=True)
class Consumers:
    """The two members of one client's group, and those that were killed."""

    kind: str
    name_servers: str
    members: list[Member] = field(default_factory=list)
    gone: list[Member] = field(default_factory=list)

    def add(self, stack: ExitStack) -> None:
        """Start one more member."""
        serial = len(self.members) + len(self.gone)
        self.members.append(stack.enter_context(Member(self.kind, self.name_servers, serial)))

    def deliveries(self) -> list[Delivery]:
        """All that its members were given."""
        return [each for one in (*self.gone, *self.members) for each in list(one.deliveries)]

    def is_shared(self, places: int) -> bool:
        """Whether both have had their halves of the queues lately."""
        since_s = time.monotonic() - RECENT_S
        shares = [one.places_since(since_s) for one in self.members]
        return [len(share) for share in shares] == [places // 2] * 2 and not set.intersection(
            *shares
        )

    def back_s(self, feed: Feed, fault_s: float) -> dict[Place, float]:
        """When each queue delivered a message that was sent after the fault, in seconds after that."""
        found: dict[Place, float] = {}
        begun_s = dict(feed.begun_s)
        for each in self.deliveries():
            if begun_s.get((each.place, each.number), 0.0) > fault_s:
                back_s = each.came_s - fault_s
                found[each.place] = min(back_s, found.get(each.place, back_s))
        return found


def leaders(machines: Machines) -> dict[str, str]:
    """The address of each group's leader, where it serves clients."""
    found: dict[str, str] = {}
    for group in machines.groups:
        addresses = trio.run(addresses_of_group, machines.cluster.name_servers.split(";"), group)
        for answer in trio.run(ask_all, addresses):
            if answer.table.get("raftRole") == "leader":
                found[group] = answer.address
    return found


def is_listening(address: str) -> bool:
    """Whether somebody takes connections there."""
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


class Measurement:
    """Rounds of one fault, and what each client made of them."""

    def __init__(self, machines: Machines, feed: Feed, consumers: list[Consumers]) -> None:
        self.machines = machines
        self.feed = feed
        self.consumers = consumers
        self.places = {(group, queue) for group in machines.groups for queue in range(QUEUES)}
        self.figures: dict[tuple[str, str], list[float]] = {}

    def wait_shared(self) -> None:
        """Wait until the members of each client have their halves of the queues."""
        for one in self.consumers:
            assert poll(lambda one=one: one.is_shared(len(self.places)), WAIT_S), self._describe(  # type: ignore[misc]
                one
            )

    def _describe(self, one: Consumers) -> str:
        since_s = time.monotonic() - RECENT_S
        sent = {
            place for (place, _), begun_s in dict(self.feed.begun_s).items() if begun_s > since_s
        }
        shares = [sorted(each.places_since(since_s)) for each in one.members]
        return f"the queues of {one.kind} are not shared: {shares}; messages were sent to {sorted(sent)}"

    def fail_machine(self, *, is_dead: bool) -> None:
        """Let a machine fail, and wait until all queues deliver again."""
        self.machines.wait_whole()
        self.wait_shared()
        victim = self.machines.next_victim()
        host = self.machines.cluster.machines[victim]
        led = {
            group: address
            for group, address in leaders(self.machines).items()
            if address.rsplit(":", 1)[0] == host
        }
        fault_s = time.monotonic()
        with ThreadPoolExecutor(1) as beside:
            if is_dead:
                fault = beside.submit(self.machines.die, victim, DEAD_S)
            else:
                fault = beside.submit(self.machines.kill, victim)
                self._note_restart(list(led.values()), fault_s)
            for one in self.consumers:
                found = self._wait_back(one, self.places, fault_s)
                for which, is_its in (("its queues", True), ("others", False)):
                    values_s = [found[place] for place in found if (place[0] in led) == is_its]
                    self._note(one.kind, which, values_s)
            fault.result()

    def fail_consumer(self, one: Consumers, stack: ExitStack) -> None:
        """Kill a member, wait until the other has its queues, and start another one."""
        self.wait_shared()
        victim = one.members.pop(0)
        one.gone.append(victim)
        taken = victim.places_since(time.monotonic() - RECENT_S)
        fault_s = time.monotonic()
        victim.kill()
        found = self._wait_back(one, taken, fault_s)
        self._note(one.kind, "its queues", list(found.values()))
        one.add(stack)

    def _note_restart(self, addresses: list[str], fault_s: float) -> None:
        """Note when the processes that led take connections again: a client with an old route needs that."""
        assert poll(lambda: not any(map(is_listening, addresses)), WAIT_S, 0.005)
        assert poll(lambda: all(map(is_listening, addresses)), WAIT_S)
        self._note("processes", "listen again", [time.monotonic() - fault_s])

    def _wait_back(
        self, one: Consumers, places: Iterable[Place], fault_s: float
    ) -> dict[Place, float]:
        """Wait until these queues have delivered something new; when each did."""
        wanted = set(places)
        poll(
            lambda: one.back_s(self.feed, fault_s).keys() >= wanted,
            max(0.0, fault_s + BACK_S - time.monotonic()),
        )
        found = one.back_s(self.feed, fault_s)
        return {place: found.get(place, math.inf) for place in wanted}

    def _note(self, kind: str, which: str, values_s: list[float]) -> None:
        if not values_s:
            return
        self.figures.setdefault((kind, which), []).append(max(values_s))
        sys.stdout.write(f"{kind}, {which}, s: {shown(max(values_s))}\n")
        sys.stdout.flush()

    def missing(self, one: Consumers, since_s: float) -> int:
        """How many messages were acknowledged since then and never delivered; waits for those under way."""
        sent = {key for key, begun_s in self.feed.begun_s.items() if begun_s > since_s}

        def rest() -> set[tuple[Place, int]]:
            return sent - {(each.place, each.number) for each in one.deliveries()}

        poll(lambda: not rest(), BACK_S)
        return len(rest())

    def summary(self, since_s: float) -> tuple[list[dict[str, object]], int]:
        """A row for each client, and how many messages were lost."""
        rows: list[dict[str, object]] = []
        all_lost = 0
        for one in self.consumers:
            row: dict[str, object] = {"client": one.kind}
            for (kind, which), values_s in self.figures.items():
                if kind == one.kind:
                    row[which] = figures_of(values_s)
            row["lost"] = lost = self.missing(one, since_s)
            all_lost += lost
            times = Counter((each.place, each.number) for each in one.deliveries())
            row["delivered_again"] = sum(count - 1 for count in times.values())
            rows.append(row)
        return rows, all_lost


def shown(value_s: float) -> float | str:
    """What is said of a time; what did not come back has none."""
    return round(value_s, 2) if math.isfinite(value_s) else f"not within {BACK_S:.0f} s"


def figures_of(values_s: Sequence[float]) -> dict[str, object]:
    """The figures of all rounds."""
    return {
        "rounds": len(values_s),
        "p50_s": shown(percentile(values_s, 50)),
        "max_s": shown(max(values_s)),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", choices=FAULTS, default="kill")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=CLIENTS)
    parser.add_argument("--namespaces", action="store_true", help="packets to dead machines vanish")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> int:
    """Measure and print; return how many messages were lost."""
    kinds = clients_here(arguments.clients)
    if arguments.namespaces:
        require_namespaces()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_machines(Path(folder), len(LETTERS), is_silent=arguments.namespaces) as machines,
        ExitStack() as stack,
    ):
        machines.wait_whole()
        name_servers = machines.cluster.name_servers
        with Admin(name_servers, timeout_s=WAIT_S) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)
        consumers = [Consumers(kind, name_servers) for kind in kinds]
        for one in (*consumers, *consumers):
            one.add(stack)
        feed = stack.enter_context(Feed(name_servers, machines.groups))
        measurement = Measurement(machines, feed, consumers)
        measurement.wait_shared()
        since_s = time.monotonic()
        for _ in range(arguments.rounds):
            if arguments.fault == "consumer":
                for one in consumers:
                    measurement.fail_consumer(one, stack)
            else:
                measurement.fail_machine(is_dead=arguments.fault == "dead")
        feed.end()
        rows, lost = measurement.summary(since_s)
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
    return lost


if __name__ == "__main__":
    options = parsed()
    sys.exit(status_of(lambda: measure(options)))
