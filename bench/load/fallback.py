"""The generator in Python, where there is no C compiler: one connection, which costs more than what it measures."""

from __future__ import annotations

import time

from bench.load.native import RequestLoad
from bench.load.results import Round
from bench.load.running import ProcessMeter, RoundPlan, per_message_us
from bench.loadgen import run_load
from bench.remoting import Address


def run_in_python(
    address: Address, load: RequestLoad, pace: RoundPlan, meter: ProcessMeter
) -> list[Round]:
    """Run a load of one connection, a round after the other.

    Raises:
        OSError: the server has closed the connection, or was silent.
    """

    def next_frame(number: int) -> bytes:
        return load.templates[number % len(load.templates)].frame(number)

    run_load(address, next_frame, in_flight=load.in_flight, seconds=pace.warm_up_s)
    rounds: list[Round] = []
    for _ in range(pace.rounds):
        meter.lap()
        own_s = time.process_time()
        result = run_load(address, next_frame, in_flight=load.in_flight, seconds=pace.seconds)
        messages = (result.requests - result.refused) * (load.per_request or load.per_reply)
        leader_us, follower_us = per_message_us(meter.lap(), messages)
        rounds.append(
            Round(
                seconds=result.seconds,
                requests=result.requests,
                messages=messages,
                refused=result.refused,
                p50_us=result.p50_us,
                p99_us=result.p99_us,
                max_us=result.max_us,
                generator_us=1e6 * (time.process_time() - own_s) / max(1, messages),
                leader_us=leader_us,
                follower_us=follower_us,
            )
        )
    return rounds
