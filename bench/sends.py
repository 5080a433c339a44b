"""What does a send cost the processor of a leader? In one process, without network, disk and followers.

    python -m bench.sends [--messages 4096] [--rounds 5] [--only "1 x 64"] [--ordinary] [--pure] [--signed]
                          [--profile 0] [--json]

One broker, alone in its group, with a simulated clock, disk and client, as in `bench.calls`; the code is the shipped
one, from the bytes of a connection to the bytes of its answers. Each load is so many connections times so many sends
in one piece, and batches of 100. A figure is processor time of this process per message, the median of some rounds
and the least of them. What the simulator takes is in it, what the client takes to make its frames is not: so the ratio
of two figures says less than what was saved. `--ordinary` keeps bursts out of their lane, `--pure` does without
compiled code, `--signed` has access control on (singles only).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.calls import BODY_BYTES, QUEUE_COUNT, TOPIC, Alone, make_group, on_bytes
from bench.loadgen import FrameTemplate, batch_template, send_template
from broker.access.addresses import parse_pattern
from broker.access.guard import AccessGuard
from broker.access.rules import AccessRules, Account, Permission
from broker.testing.wires import SimConnection
from dledger_mq import Credentials, MessageQueue
from dledger_mq.client.send_frames import SendTemplates
from dledger_mq.message import compiled

BATCH_COUNT: Final = 100
WAIT_MS: Final = 60_000
CREDENTIALS: Final = Credentials("bench-client", "a secret key")
QUEUES: Final = tuple(MessageQueue(TOPIC, "broker-a", number) for number in range(QUEUE_COUNT))
_DONE: Final = b'"code":0,'


@dataclass(frozen=True, slots=True)
class SendLoad:
    """A load: in each step every connection sends so many requests in one piece, then all answers are awaited.

    Attributes:
        per_request: messages of a request; more than one are a batch.
    """

    connections: int
    in_flight: int
    per_request: int = 1

    @property
    def name(self) -> str:
        """The name by which a load is chosen and shown."""
        batch = f" x batch of {self.per_request}" if self.per_request > 1 else ""
        return f"{self.connections} x {self.in_flight}{batch}"

    @property
    def messages(self) -> int:
        """The count of messages in one step."""
        return self.connections * self.in_flight * self.per_request


LOADS: Final = (
    SendLoad(1, 1),
    SendLoad(64, 1),
    SendLoad(1, 64),
    SendLoad(1, 1024),
    SendLoad(1, 16, BATCH_COUNT),
)


class Sender:
    """Puts loads on one broker, step by step; answers are counted and not cut."""

    def __init__(self, cluster: Alone, *, is_signed: bool = False) -> None:
        self._cluster = cluster
        self._signed = SendTemplates("bench", credentials=CREDENTIALS) if is_signed else None
        self._answers = 0
        self._clients = [self._connect(number) for number in range(64)]
        body = b"x" * BODY_BYTES
        self._singles = [send_template(TOPIC, queue, body) for queue in range(QUEUE_COUNT)]
        self._batches = [
            batch_template(TOPIC, queue, body, BATCH_COUNT) for queue in range(QUEUE_COUNT)
        ]
        self._number = 0

    def _connect(self, number: int) -> SimConnection:
        end = self._cluster.connect(f"10.0.0.1:{41_000 + number}", self._cluster.voters[0])
        assert end is not None, "it is up"
        on_bytes(end, self._arrive)
        return end

    def _arrive(self, data: bytes | None) -> None:
        self._answers += (data or b"").count(_DONE)

    def step_cpu_s(self, load: SendLoad) -> float:
        """Send once and await all answers; return the processor time in seconds.

        Raises:
            TimeoutError: an answer is missing, or a send was refused.
        """
        clients = self._clients[: load.connections]
        pieces = [self._piece(load) for _ in clients]
        awaited = self._answers + load.connections * load.in_flight
        began_s = time.process_time()
        for client, piece in zip(clients, pieces, strict=True):
            client.send_nowait(piece)
        end_ms = self._cluster.now_ms + WAIT_MS
        if not self._cluster.run_until(end_ms, lambda: self._answers >= awaited):
            raise TimeoutError(f"{load.name}: answers are missing, or sends were refused")
        return time.process_time() - began_s

    def _piece(self, load: SendLoad) -> bytes:
        if self._signed is not None:
            return b"".join(self._signed_frame(self._signed) for _ in range(load.in_flight))
        templates: list[FrameTemplate] = self._singles if load.per_request == 1 else self._batches
        numbers = range(self._number, self._number + load.in_flight)
        self._number += load.in_flight
        return b"".join(templates[number % QUEUE_COUNT].frame(number) for number in numbers)

    def _signed_frame(self, templates: SendTemplates) -> bytes:
        self._number += 1
        return templates.plain(
            QUEUES[self._number % QUEUE_COUNT],
            b"x" * BODY_BYTES,
            f"{self._number:032X}",
            opaque=self._number,
            born_timestamp_ms=1_700_000_000_000,
        )


def switch_access_on(cluster: Alone) -> None:
    """Let the broker take requests of one account only, which may send."""
    rights = {TOPIC: Permission.PUB}
    account = Account(
        access_key=CREDENTIALS.access_key,
        secret_key=CREDENTIALS.secret_key,
        white_addresses=parse_pattern(""),
        rights=rights,
    )
    rules = AccessRules(accounts={account.access_key: account})
    dispatch = cluster.brokers[cluster.voters[0]].controller.services.dispatch
    dispatch.guard = AccessGuard(rules)


def measure(sender: Sender, load: SendLoad, messages: int) -> float:
    """Return the processor time of one message, in microseconds, over that many or a few more."""
    steps = -(-messages // load.messages)
    return 1e6 * sum(sender.step_cpu_s(load) for _ in range(steps)) / (steps * load.messages)


def main() -> int:
    """Measure the chosen loads and print them."""
    parser = argparse.ArgumentParser(
        prog="bench.sends", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--messages", type=int, default=4_096, help="of a round (default 4096)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", help="a load by its name; may come again")
    parser.add_argument("--ordinary", action="store_true", help="keep bursts out of their lane")
    parser.add_argument("--pure", action="store_true", help="without compiled code")
    parser.add_argument("--signed", action="store_true", help="with access control on")
    parser.add_argument("--profile", type=int, default=0, help="show so many functions of each")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args()
    compiled.choose(is_wanted=not options.pure)
    figures: dict[str, list[float]] = {}
    for load in LOADS:
        if (options.only and load.name not in options.only) or (
            options.signed and load.per_request > 1
        ):
            continue
        cluster, _ = make_group()
        if options.ordinary:
            cluster.brokers[cluster.voters[0]].controller.services.dispatch.lane = None
        if options.signed:
            switch_access_on(cluster)
        sender = Sender(cluster, is_signed=options.signed)
        few = options.messages // 10 if load.messages == 1 else options.messages
        measure(sender, load, few // 10)
        figures[load.name] = [measure(sender, load, few) for _ in range(options.rounds)]
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(measure, sender, load, few)
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(
                options.profile
            )
    if options.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return 0
    table = Table("connections x in flight", "us a message", "least")
    for name, values in figures.items():
        table.add_row(name, f"{statistics.median(values):.2f}", f"{min(values):.2f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
