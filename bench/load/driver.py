"""Loads on the leader of a group, and what came of them: the generator's part, without knowing whose brokers they are.

Whatever is acknowledged is held to its word: some acknowledgements of each round are looked up afterwards.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from bench.load import java, native
from bench.load.fallback import run_in_python
from bench.load.native import RequestLoad
from bench.load.results import AckSample, Measured, Round
from bench.load.running import LoadError, ProcessMeter, RoundPlan, run_generator
from bench.loadgen import batch_template, pull_template, send_template
from bench.remoting import Address, call, max_offset
from bench.systems.brokers import START_PATIENCE_S, MeasuredGroup, Setup
from jepsen.processes import Process, poll

PULL_COUNT: Final = 32
SPAN: Final = 256
"""Pulls of each queue, the newest: a reader that is nearly level."""

FILL_BATCH: Final = 100
CHECK_PATIENCE_S: Final = 60.0
TAGS: Final = ("t0", "t1", "t2", "t3")
SETTLED_S: Final = 0.2
"""Nothing more comes when nothing was stored for so long."""


class LackingError(Exception):
    """This machine lacks something for a measurement; the text says what."""


class LoadDriver:
    """Runs loads on one topic of a running group.

    Attributes:
        group: whose leader is asked.
        topic: of all messages.
    """

    def __init__(self, group: MeasuredGroup, topic: str, *, queues: int, body_bytes: int) -> None:
        """Create the topic, and wait until a send is acknowledged: a leader may wait for its followers to come.

        Raises:
            TimeoutError: nobody takes it.
        """
        self.group = group
        self.topic = topic
        self._queues = range(queues)
        self._body = b"x" * body_bytes
        group.make_topic(topic, queues)
        if not poll(self._is_acknowledged, START_PATIENCE_S, 0.1):
            raise TimeoutError(f"{topic}: no send is acknowledged")

    def _is_acknowledged(self) -> bool:
        header, _ = call(_address(self.leader()), send_template(self.topic, 0, self._body))
        return bool(header["code"] == 0)

    def leader(self) -> Process:
        """Return the broker that leads now."""
        return self.group.wait_leader(self.topic)

    def sends(self, connections: int, in_flight: int) -> RequestLoad:
        """Return a load of single sends over all queues."""
        templates = [send_template(self.topic, queue, self._body) for queue in self._queues]
        return RequestLoad(templates=templates, connections=connections, in_flight=in_flight)

    def batches(self, count: int, connections: int, in_flight: int) -> RequestLoad:
        """Return a load of batches over all queues."""
        return RequestLoad(
            templates=[
                batch_template(self.topic, queue, self._body, count) for queue in self._queues
            ],
            connections=connections,
            in_flight=in_flight,
            per_request=count,
        )

    def pulls(
        self, connections: int, in_flight: int, *, is_oldest: bool = False, tags: str = "*"
    ) -> RequestLoad:
        """Return a load of pulls over all queues, of the newest messages or the oldest."""
        address = _address(self.leader())
        end = min(max_offset(address, self.topic, queue) for queue in self._queues)
        steps = range(min(SPAN, end // PULL_COUNT))
        if not steps:
            raise LoadError(f"a queue has {end} messages: too few for a pull of {PULL_COUNT}")
        starts = [
            step * PULL_COUNT if is_oldest else end - (step + 1) * PULL_COUNT for step in steps
        ]
        return RequestLoad(
            templates=[
                pull_template(self.topic, queue, start, PULL_COUNT, tags=tags)
                for start in starts
                for queue in self._queues
            ],
            connections=connections,
            in_flight=in_flight,
            per_request=None,
            per_reply=PULL_COUNT,
        )

    def fill(self, per_queue: int) -> None:
        """Send batches until each queue has so many messages.

        Raises:
            LoadError: they are refused.
        """
        self._send_until(per_queue, self.batches(FILL_BATCH, 1, 4))

    def fill_tagged(self, per_queue: int) -> None:
        """Send messages of four tags in turn until each queue has so many; see `fill`."""
        templates = [
            send_template(self.topic, queue, self._body, tag=tag)
            for tag in TAGS
            for queue in self._queues
        ]
        self._send_until(per_queue, RequestLoad(templates=templates, in_flight=256))

    def _send_until(self, per_queue: int, load: RequestLoad) -> None:
        address = _address(self.leader())
        while min(max_offset(address, self.topic, queue) for queue in self._queues) < per_queue:
            (found,) = self.run(load, RoundPlan(0, 0.5, 1))
            if found.refused:
                raise LoadError(f"{found.refused} requests were refused: {found.error}")

    def measure_oneway(self, *, connections: int, pace: RoundPlan) -> Measured:
        """Send without answers, as fast as the sockets take it; counted is what the leader has stored.

        Raises:
            LackingError: the machine has no generator that can do it.
        """
        templates = [
            send_template(self.topic, queue, self._body, is_oneway=True) for queue in self._queues
        ]
        load = RequestLoad(templates=templates, connections=connections, is_oneway=True)
        rounds: list[Round] = []
        for number in range(pace.rounds):
            warm_up_s = pace.warm_up_s if number == 0 else 0.0
            before, began = self._stored(), time.monotonic()
            (found,) = self.run(load, RoundPlan(warm_up_s, pace.seconds, 1))
            stored = self._settled()
            seconds = time.monotonic() - began - SETTLED_S
            rounds.append(
                msgspec.structs.replace(
                    found,
                    messages=stored - before,
                    seconds=seconds,
                    leader_us=None,
                    follower_us=None,
                )
            )
        return Measured(rounds=rounds)

    def _stored(self) -> int:
        address = _address(self.leader())
        return sum(max_offset(address, self.topic, queue) for queue in self._queues)

    def _settled(self) -> int:
        """Return how many messages there are once no more come."""
        stored = [self._stored()]

        def is_settled() -> bool:
            stored.append(self._stored())
            return stored[-1] == stored[-2]

        poll(is_settled, CHECK_PATIENCE_S, SETTLED_S)
        return stored[-1]

    def measure(self, load: RequestLoad, pace: RoundPlan) -> Measured:
        """Run a load, and look up some of what was acknowledged.

        Raises:
            LoadError: it did not come to its end.
            LackingError: the machine has no generator that can do it.
        """
        return self._checked(self.run(load, pace))

    def run(self, load: RequestLoad, pace: RoundPlan) -> list[Round]:
        """Run a load; see `measure`, which looks at more."""
        leader = self.leader()
        if lack := native.lacking_generator():
            if load.connections > 1 or load.is_oneway:
                raise LackingError(f"{lack}: one in Python would measure itself")
            return run_in_python(_address(leader), load, pace, self._meter(leader))
        with tempfile.TemporaryDirectory(prefix="dledger-bench-plan-") as folder:
            plan = Path(folder) / "plan"
            native.write_plan(plan, load.templates)
            command = native.generator_command(plan, _address(leader), load, pace)
            return run_generator(command, pace, self._meter(leader), per_request=load.per_request)

    def measure_java(self, mode: str, in_flight: int, pace: RoundPlan, setup: Setup) -> Measured:
        """Run Apache's Java client; see `measure`."""
        if lack := java.lacking_client(setup.interop):
            raise LackingError(lack)
        command = java.client_command(
            java.ClientLoad(mode, self.group.namesrv, self.topic, in_flight, len(self._body)),
            pace,
            interop=setup.interop,
            home=self.group.folder,
        )
        rounds = run_generator(command, pace, self._meter(self.leader()), per_request=1)
        return self._checked(rounds)

    def _meter(self, leader: Process) -> ProcessMeter:
        return ProcessMeter([broker.pid or 0 for broker in self.group.in_order(leader)])

    def _checked(self, rounds: list[Round]) -> Measured:
        """Look the sampled acknowledgements up; each names a message that must stand at its place."""
        samples = [sample for each in rounds for sample in each.samples]
        missing = [
            f"{sample.key} at {self.topic}-{sample.queue_id}@{sample.queue_offset}"
            for sample in samples
            if not poll(partial(self._stands, sample), CHECK_PATIENCE_S, 0.1)
        ]
        bare = [msgspec.structs.replace(each, samples=[]) for each in rounds]
        return Measured(rounds=bare, checked=len(samples), missing=missing)

    def _stands(self, sample: AckSample) -> bool:
        """Return whether a pull of one message brings what was acknowledged; its queue may not be written yet."""
        pull = pull_template(self.topic, sample.queue_id, sample.queue_offset, 1)
        header, body = call(_address(self.leader()), pull)
        return header["code"] == 0 and sample.key.encode() in body and self._body in body


def _address(process: Process) -> Address:
    return process.host, process.port
