"""Runs a generator's process, and holds the processor time of the servers against what it says.

A generator is a program that keeps requests in flight without a pause: first to warm everything up, then for some
rounds. It prints a line of JSON at the end of the warm-up and of each round, and a last one. `generator.c` and
`JavaLoad.java` are such programs. What a request is, only the generator knows.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from bench.cpu import process_cpu_seconds
from bench.load.results import AckSample, Round

PATIENCE_S: Final = 120.0
"""Beyond the time that the rounds take."""


class LoadError(Exception):
    """A load that did not come to its end; the text says why."""


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The times of a load: first it is not measured, then in rounds."""

    warm_up_s: float
    seconds: float
    rounds: int

    @property
    def total_s(self) -> float:
        """Its whole time."""
        return self.warm_up_s + self.seconds * self.rounds


class RoundLine(msgspec.Struct, frozen=True):
    """A generator's line at the end of a round. Its header is that of a reply, as JSON."""

    class SampleLine(msgspec.Struct, frozen=True):
        """A message that was acknowledged: its key, and the reply to its request."""

        key: str
        header_hex: str

    seconds: float
    requests: int
    refused: int
    records: int
    p50_us: float
    p99_us: float
    max_us: float
    generator_cpu_s: float
    error_hex: str = ""
    samples: list[SampleLine] = []


class ProcessMeter:
    """Processor time of a leader and its followers, from one look to the next."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Look for the first time; the leader's process id comes first."""
        self._pids = pids
        self._before = self._seen()

    def _seen(self) -> list[float]:
        return [process_cpu_seconds(pid) for pid in self._pids]

    def lap(self) -> list[float]:
        """Return the seconds of each since the last look."""
        seen = self._seen()
        spent = [now - before for now, before in zip(seen, self._before, strict=True)]
        self._before = seen
        return spent


def run_generator(
    command: Sequence[str], pace: RoundPlan, meter: ProcessMeter, *, per_request: int | None
) -> list[Round]:
    """Run a generator to its end.

    Args:
        command: that starts it.
        pace: that it was given.
        meter: of the servers.
        per_request: messages in each request; None: they are the records of the replies.

    Raises:
        LoadError: it failed, or hung.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        limit = threading.Timer(pace.total_s + PATIENCE_S, child.kill)
        limit.start()
        try:
            rounds = _rounds_of(child, meter, per_request)
        finally:
            limit.cancel()
            child.kill()
            problem = child.stderr.read().decode(errors="replace") if child.stderr else ""
    if len(rounds) != pace.rounds:
        raise LoadError(f"the generator ended early: {problem.strip()[-400:] or 'it was silent'}")
    return rounds


def _rounds_of(
    child: subprocess.Popen[bytes], meter: ProcessMeter, per_request: int | None
) -> list[Round]:
    """Take a round for each line; between two lines, the meter takes a lap."""
    assert child.stdout is not None, f"{child.args!r} has no pipe for stdout"
    rounds: list[Round] = []
    for line in child.stdout:
        if b'"requests"' in line:
            rounds.append(_round_of(line, meter.lap(), per_request))
        elif b'"warm"' in line:
            meter.lap()
    return rounds


def _round_of(line: bytes, spent_s: Sequence[float], per_request: int | None) -> Round:
    """Return the round that a line tells of, in which the servers spent so much."""
    said = msgspec.json.decode(line, type=RoundLine)
    done = said.requests - said.refused
    messages = said.records if per_request is None else done * per_request
    leader_us, follower_us = per_message_us(spent_s, messages)
    return Round(
        seconds=said.seconds,
        requests=said.requests,
        messages=messages,
        refused=said.refused,
        p50_us=said.p50_us,
        p99_us=said.p99_us,
        max_us=said.max_us,
        generator_us=1e6 * said.generator_cpu_s / max(1, messages),
        leader_us=leader_us,
        follower_us=follower_us,
        error=bytes.fromhex(said.error_hex).decode(errors="replace"),
        samples=[found for each in said.samples if (found := _sample_of(each)) is not None],
    )


def per_message_us(spent_s: Sequence[float], messages: int) -> tuple[float, float | None]:
    """Return what a message cost the leader, and its mean follower; None where it has none."""
    leader_us, *followers_us = [1e6 * spent / max(1, messages) for spent in spent_s]
    return leader_us, sum(followers_us) / len(followers_us) if followers_us else None


def _sample_of(line: RoundLine.SampleLine) -> AckSample | None:
    """Return the place that a reply names; None where it names none, as that to a pull."""
    header: dict[str, Any] = json.loads(bytes.fromhex(line.header_hex))
    ext = header.get("extFields") or {}
    if "queueId" not in ext or "queueOffset" not in ext:
        return None
    return AckSample(line.key, int(ext["queueId"]), int(ext["queueOffset"]))
