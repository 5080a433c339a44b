"""How soon Java consumers get what is theirs: when they start, when two join together, when one leaves.

    python -m tests.interop.java_consumers --rounds 100 --client java-5.3.3

starts a group of its own and prints a line for each start, join and leave, with the machine's load beside it,
and at the end how many took longer than `LIMIT_MS`. The times are counted from the call that starts the
consumer; what its virtual machine takes before that is not counted, what it takes to load classes is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any

from dledger_mq import Message
from dledger_mq.blocking import Producer
from jepsen.checkers.percentiles import percentile
from jepsen.processes import Group, poll
from tests.interop.conftest import JAVAS, ForeignClient, Listener, RunningGroup

LIMIT_MS = 3000
QUEUES = 4
WAIT_S = 240


class Member(Listener):
    """One consumer in a process of its own that is ready, and starts when it is told to."""

    def __init__(self, client: ForeignClient, topic: str, group: str, log_folder: Path) -> None:
        self.log_folder = log_folder
        self._process = client.start(
            *("consume", "--topic", topic, "--group", group, "--count", "1000000"),
            *("--timeout", "600", "--steered", "--log-dir", str(log_folder)),
        )
        super().__init__(self._process)
        assert poll(lambda: self._has_said("ready"), WAIT_S), "it is not ready"

    def go(self) -> None:
        """Start to consume."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def leave(self) -> None:
        """End as an application does that shuts its consumer down."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None  # or leaving the context would write to it

    def deliveries(self) -> list[dict[str, Any]]:
        """What it was handed so far."""
        return [line for line in list(self.lines) if "action" in line]

    def wait_deliveries(self, count: int) -> list[dict[str, Any]]:
        """Wait until it was handed so much."""
        assert poll(lambda: len(self.deliveries()) >= count, WAIT_S), self.lines[-3:]
        return self.deliveries()

    def count_in_log(self, text: str) -> int:
        """How often its library's log says this."""
        return sum(
            file.read_text(errors="replace").count(text)
            for file in self.log_folder.rglob("rocketmq_client.log")
        )

    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self._process.poll() is not None

    def _has_said(self, event: str) -> bool:
        return any(line.get("event") == event for line in list(self.lines))


class Stream:
    """Sends a message to each queue of a topic, again and again, until it is left."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.topic = topic
        self.sent: list[str] = []
        self._producer = Producer(namesrv, "stream", timeout_s=WAIT_S)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Stream:
        self._producer.open()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Send no more."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
            self._producer.close()

    def _run(self) -> None:
        number = 0
        while not self._end.wait(0.05):
            for queue in self._producer.queues(self.topic):
                body = f"{queue.queue_id}-{number}"
                self._producer.send(Message(self.topic, body.encode()), queue=queue)
                self.sent.append(body)
            number += 1


def owners(members: list[Member]) -> dict[int, int]:
    """Which member was handed the last message of each queue; its place in the list."""
    last: dict[int, tuple[int, int]] = {}
    for place, member in enumerate(members):
        for line in member.deliveries():
            queue_id, offset = line["queue_id"], line["queue_offset"]
            last[queue_id] = max(last.get(queue_id, (-1, -1)), (offset, place))
    return {queue_id: place for queue_id, (_, place) in last.items()}


def first_at(member: Member, queue_ids: set[int]) -> int:
    """When it had got the first message of each of these queues, in milliseconds of the clock on the wall."""
    firsts: dict[int, int] = {}
    for line in member.deliveries():
        firsts.setdefault(line["queue_id"], line["at"])
    return max(firsts[queue_id] for queue_id in queue_ids)


def join_together(members: list[Member]) -> int:
    """Start two members at once; after how many milliseconds each had its half of the queues."""
    began = time.time() * 1000
    for member in members:
        member.go()

    def is_shared() -> bool:
        assert not any(member.has_ended() for member in members), members[1].lines[-3:]
        shares = Counter(owners(members).values())
        return [shares[place] for place in range(len(members))] == [QUEUES // 2, QUEUES // 2]

    assert poll(is_shared, WAIT_S), f"owner of each queue: {owners(members)}"
    owned = owners(members)
    return int(
        max(
            first_at(member, {queue_id for queue_id, owner in owned.items() if owner == place})
            for place, member in enumerate(members)
        )
        - began
    )


def leave_to(staying: Member, leaving: Member) -> int:
    """Let one of two leave; after how many milliseconds the other one had all queues."""
    here = owners([staying, leaving])
    taken_over = {queue_id for queue_id, place in here.items() if place == 1}
    offsets = {line["queue_id"]: line["queue_offset"] for line in leaving.deliveries()}
    began = time.time() * 1000
    leaving.leave()

    def later() -> dict[int, int]:
        found: dict[int, int] = {}
        for line in staying.deliveries():
            if line["at"] >= began and line["queue_offset"] >= offsets.get(line["queue_id"], 0):
                found.setdefault(line["queue_id"], line["at"])
        return found

    assert poll(lambda: later().keys() >= taken_over, WAIT_S), later()
    return int(max(later()[queue_id] for queue_id in taken_over) - began)


def first_message(member: Member, count: int) -> int:
    """Start a member; after how many milliseconds it had got all that was there."""
    member.go()
    return int(member.wait_deliveries(count)[count - 1]["ms"])


def main() -> None:
    """Measure on a group of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", choices=JAVAS, required=True)
    parser.add_argument("--rounds", type=int, default=10, help="of each kind")
    parser.add_argument("--only", choices=["start", "join"], help="one kind; default: both")
    arguments = parser.parse_args()
    took: dict[str, list[int]] = {}

    def note(kind: str, value: int, *members: Member) -> None:
        took.setdefault(kind, []).append(value)
        refused = sum(member.count_in_log("not latest") for member in members)
        load = os.getloadavg()[0]
        sys.stdout.write(
            f"{arguments.client} {kind} {len(took[kind])}: {value} ms, refused {refused}, load {load:.1f}\n"
        )
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as folder, Group(Path(folder) / "group") as processes:
        processes.start()
        processes.wait_listening()
        group = RunningGroup(processes)
        group.wait_leader()
        client = ForeignClient(arguments.client, processes.namesrv)
        topic, stream_topic = group.create_topic("Starts"), group.create_topic("Joins", QUEUES)
        client.run("produce", "--topic", topic, "--count", "20")

        def member(of: str, name: str) -> Member:
            return Member(client, of, name, Path(folder) / uuid.uuid4().hex)

        for _ in range(arguments.rounds):
            name = uuid.uuid4().hex
            if arguments.only != "join":
                with member(topic, name) as one:
                    note("start", first_message(one, 20), one)
            if arguments.only != "start":
                with (
                    member(stream_topic, name) as staying,
                    member(stream_topic, name) as leaving,
                    Stream(processes.namesrv, stream_topic),
                ):
                    note("join", join_together([staying, leaving]), staying, leaving)
                    note("leave", leave_to(staying, leaving), staying)
    for kind, values in took.items():
        late = sum(value > LIMIT_MS for value in values)
        sys.stdout.write(
            f"{arguments.client} {kind}: {len(values)} times, p50 {percentile(values, 50)} ms, "
            f"max {max(values)} ms, over {LIMIT_MS} ms: {late}\n"
        )


if __name__ == "__main__":
    main()
