"""Loads that are timed from one client to another: from a send to its reader, or to the end of a transaction.

They run in this process, a thread for each client, at rates at which that costs little beside what is measured.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from bench.load.results import Measured, Round, round_of
from bench.load.running import LoadError, ProcessMeter, RoundPlan, per_message_us
from bench.loadgen import FrameTemplate, pull_template, send_template
from bench.remoting import Address, RemotingCaller, max_offset

WAIT_MS: Final = 500
PULL_COUNT: Final = 32
PREPARED: Final = 4
"""Bit of a send's sysFlag: a half message."""

COMMIT: Final = 8
STAMP: Final = re.compile(rb"@(\d{20})@")
"""In a body: when the message is due, by this process's clock, in nanoseconds."""

LEVEL_1_S: Final = 1.0
"""The first delay level of a broker that is not configured otherwise."""


@dataclass(frozen=True, slots=True)
class TimedTopic:
    """The leader's address, a topic whose queue 0 is used, and the size of a body."""

    address: Address
    topic: str
    body_bytes: int


@dataclass(slots=True)
class TakenTimes:
    """Seconds that something took, gathered from several threads.

    Attributes:
        is_over: the threads end.
        errors: why one has ended by itself.
    """

    taken_s: list[float] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)
    errors: list[str] = field(default_factory=list)

    def take(self) -> list[float]:
        """Return what has come since the last call."""
        taken, self.taken_s = self.taken_s, []
        return taken


def measure_deliveries(
    where: TimedTopic, pids: list[int], pace: RoundPlan, *, per_s: float, is_delayed: bool
) -> Measured:
    """Measure from each send until a waiting reader has the message; of delayed ones, from when they are due.

    Raises:
        LoadError: a request was refused.
        OSError: the leader does not answer.
    """
    begin = max_offset(where.address, where.topic, 0)
    return _measure(
        [
            lambda times: _read(where, begin, times),
            lambda times: _send_steadily(where, per_s, is_delayed, times),
        ],
        pids,
        replace(pace, warm_up_s=pace.warm_up_s + (LEVEL_1_S if is_delayed else 0)),
    )


def measure_transactions(
    where: TimedTopic, pids: list[int], pace: RoundPlan, *, clients: int
) -> Measured:
    """Measure from each half message until its commit is answered, for so many clients that wait.

    Raises:
        LoadError: a request was refused.
    """
    return _measure([lambda times: _transact(where, times)] * clients, pids, pace)


def _measure(
    work: list[Callable[[TakenTimes], None]], pids: list[int], pace: RoundPlan
) -> Measured:
    """Let threads fill the times for all rounds."""
    times = TakenTimes()

    def run(one: Callable[[TakenTimes], None]) -> None:
        try:
            one(times)
        except (OSError, LoadError) as error:
            times.errors.append(str(error))

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    with ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(times.is_over.set)
        times.is_over.wait(pace.warm_up_s)
        times.take()
        meter = ProcessMeter(pids)
        rounds = [_round(times, meter, pace.seconds) for _ in range(pace.rounds)]
    if times.errors:
        raise LoadError(times.errors[0])
    return Measured(rounds=rounds)


def _round(times: TakenTimes, meter: ProcessMeter, seconds: float) -> Round:
    own_s = time.process_time()
    times.is_over.wait(seconds)
    taken_s = times.take()
    leader_us, follower_us = per_message_us(meter.lap(), len(taken_s))
    return msgspec.structs.replace(
        round_of(taken_s, seconds),
        generator_us=1e6 * (time.process_time() - own_s) / max(1, len(taken_s)),
        leader_us=leader_us,
        follower_us=follower_us,
    )


def _send_steadily(where: TimedTopic, per_s: float, is_delayed: bool, times: TakenTimes) -> None:
    """Send messages that carry when they are due, each at its time, or late where the last one took long."""
    due_in_ns = int(1e9 * LEVEL_1_S) if is_delayed else 0
    more = {"DELAY": "1"} if is_delayed else {}
    with RemotingCaller(where.address) as caller:
        next_s = time.monotonic()
        while not times.is_over.wait(max(0.0, next_s - time.monotonic())):
            next_s += 1 / per_s
            stamp = b"@%020d@" % (time.monotonic_ns() + due_in_ns)
            send = send_template(where.topic, 0, stamp.ljust(where.body_bytes, b"x"), more=more)
            _refuse_errors("a send", caller.call(send)[0])


def _read(where: TimedTopic, offset: int, times: TakenTimes) -> None:
    """Pull from the queue, wait for what comes, and note how late each message is."""
    with RemotingCaller(where.address) as caller:
        while not times.is_over.is_set():
            pull = pull_template(where.topic, 0, offset, PULL_COUNT, wait_ms=WAIT_MS)
            header, body = caller.call(pull)
            now_ns = time.monotonic_ns()
            times.taken_s += [(now_ns - int(due_ns)) / 1e9 for due_ns in STAMP.findall(body)]
            offset = int(header["extFields"]["nextBeginOffset"])


def _transact(where: TimedTopic, times: TakenTimes) -> None:
    """Commit one transaction after the other."""
    half = send_template(
        where.topic,
        0,
        b"x" * where.body_bytes,
        more={"TRAN_MSG": "true", "PGROUP": "bench"},
        sys_flag=PREPARED,
    )
    with RemotingCaller(where.address) as caller:
        while not times.is_over.is_set():
            began = time.perf_counter()
            header, _ = caller.call(half)
            _refuse_errors("a half message", header)
            ended, _ = caller.call(_end_of(header["extFields"]))
            _refuse_errors("a commit", ended)
            times.taken_s.append(time.perf_counter() - began)


def _end_of(ext: dict[str, str]) -> FrameTemplate:
    """Return the commit of a half message that was answered with this."""
    fields = {
        "producerGroup": "bench",
        "tranStateTableOffset": ext["queueOffset"],
        "commitLogOffset": str(int(ext["msgId"][-16:], 16)),
        "commitOrRollback": str(COMMIT),
        "fromTransactionCheck": "false",
        "msgId": ext["msgId"],
        "transactionId": ext.get("transactionId") or ext["msgId"],
    }
    return FrameTemplate(37, fields)


def _refuse_errors(what: str, header: dict[str, object]) -> None:
    if header["code"] != 0:
        raise LoadError(f"{what} was refused: {header}")
