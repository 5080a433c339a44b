"""What do many topics, queues and consumer offsets cost a broker: each send, and each start?

    python -m bench.many_queues [--topics 10000] [--offsets 50000] [--sends 20000] [--profile 0] [--json]

One broker, alone in its group, with a simulated clock, disk and client, as in `bench.calls`: once with one topic of 4
queues, once with many topics of 8 queues each, and offsets of consumers in them. A send is measured in processor time,
from the bytes of a connection to the bytes of its answer, spread over all queues; what the simulator takes is in it.
Then the state is folded anew from the log, as a start without a snapshot does, and registered as name servers get it.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.calls import Alone, BenchClient, make_group
from bench.loadgen import FrameTemplate, send_template
from broker.service.tables import wire_topic, wire_version
from broker.store.state import BrokerState, StateLimits
from dledger.raft.ids import Index
from dledger_mq.remoting.registration import encode_registration

BODY: Final = b"x" * 1024
IN_FLIGHT: Final = 64
QUEUE_COUNT: Final = 8
FEW_QUEUES: Final = 4
OFFSETS_A_TOPIC: Final = 8

Figures = dict[str, float]


class ShippedState(BrokerState):
    """A state that bounds its memory as a broker's does; the simulator's looks after each few records."""

    def __init__(self, limits: StateLimits) -> None:
        super().__init__()


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def _asked(client: BenchClient, templates: list[FrameTemplate], count: int) -> float:
    """Send so many requests, round after round, and return the processor time of one in seconds."""
    began_s = time.process_time()
    for first in range(0, count, IN_FLIGHT):
        client.ask(
            [
                templates[(first + place) % len(templates)]
                for place in range(min(IN_FLIGHT, count - first))
            ]
        )
    return (time.process_time() - began_s) / count


def _topic(number: int) -> str:
    return f"Orders-of-the-region-{number:05}"


def _create(topic: str) -> FrameTemplate:
    names = {"readQueueNums": str(QUEUE_COUNT), "writeQueueNums": str(QUEUE_COUNT), "perm": "6"}
    return FrameTemplate(17, {"topic": topic, "defaultTopic": "TBW102", **names})


def _commit(number: int) -> FrameTemplate:
    """Commit one consumer's offset of one queue."""
    topic, queue_id = divmod(number, OFFSETS_A_TOPIC)
    ext = {
        "consumerGroup": f"Readers-{topic % 100}",
        "topic": _topic(topic),
        "queueId": str(queue_id),
        "commitOffset": "1",
    }
    return FrameTemplate(15, ext)


def filled_with(
    client: BenchClient, topics: int, offsets: int
) -> tuple[Figures, list[FrameTemplate]]:
    """Make topics, send to each of their queues once, and commit offsets."""
    figures: Figures = {}
    creates = [_create(_topic(number)) for number in range(topics)]
    figures["create_us"] = _asked(client, creates, topics) * 1e6
    sends = [
        send_template(_topic(number), queue, BODY)
        for queue in range(QUEUE_COUNT)
        for number in range(topics)
    ]
    figures["first_send_us"] = _asked(client, sends, len(sends)) * 1e6
    if offsets:
        commits = [_commit(number) for number in range(offsets)]
        figures["commit_us"] = _asked(client, commits, offsets) * 1e6
    return figures, sends


def _folded_anew(cluster: Alone, state: BrokerState) -> Figures:
    """Fold the log into an empty state."""
    node = cluster.nodes[cluster.voters[0]]
    assert node.engine is not None, "it is up"
    log = node.engine.log
    entries = log.entries(Index(1), Index(state.applied_index + 1))
    gc.collect()
    before_mib = _rss_mib()
    again = BrokerState()
    began_s = time.process_time()
    for first in range(0, len(entries), 64):
        again.apply(entries[first : first + 64])
    took_s = time.process_time() - began_s
    assert again.digest() == state.digest(), "another state"
    return {
        "fold_messages_per_s": state.put_count / took_s,
        "state_mib": _rss_mib() - before_mib,
        "gc_ms": _ms(gc.collect),
    }


def _ms(act: Callable[[], object]) -> float:
    began_s = time.process_time()
    act()
    return (time.process_time() - began_s) * 1000


def _state_of(cluster: Alone) -> BrokerState:
    return cluster.brokers[cluster.voters[0]].state


def _measure(topics: int, offsets: int, sends: int, *, profiled: int, before: int = 0) -> Figures:
    """Return what a broker with so many topics costs; with none, one of a single topic with few queues.

    Args:
        topics: how many, of 8 queues each.
        offsets: of consumers, to be committed.
        sends: how many are measured.
        profiled: how many functions are shown.
        before: messages that the one topic gets first.
    """
    cluster, client = make_group(ShippedState)
    figures: Figures = {}
    if topics:
        figures, templates = filled_with(client, topics, offsets)
    else:
        templates = [send_template("bench", queue, BODY) for queue in range(FEW_QUEUES)]
        _asked(client, templates, before)  # with as many messages in the log
    _asked(client, templates, 2 * IN_FLIGHT)
    figures["send_us"] = _asked(client, templates, sends) * 1e6
    if profiled:
        profile = cProfile.Profile()
        profile.runcall(_asked, client, templates, sends)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(profiled)
    state = _state_of(cluster)
    figures["handles"] = len(list(Path("/proc/self/fd").iterdir()))
    figures["digests_ms"] = _ms(state.digests)
    version, listed = wire_version(state.topics.version), state.topics
    figures["registration_ms"] = _ms(
        lambda: encode_registration(version, [wire_topic(config) for config in listed])
    )
    return figures | _folded_anew(cluster, state)


def main() -> int:
    """Measure both, print them side by side."""
    parser = argparse.ArgumentParser(
        prog="bench.many_queues", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--offsets", type=int, default=50_000)
    parser.add_argument("--sends", type=int, default=20_000)
    parser.add_argument("--profile", type=int, default=0, help="show so many functions of each")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args()
    topics, sends, shown = options.topics, options.sends, options.profile
    few = _measure(0, 0, sends, profiled=shown, before=topics * QUEUE_COUNT)
    many = _measure(topics, options.offsets, sends, profiled=shown)
    rate = few["send_us"] / many["send_us"]
    if options.json:
        sys.stdout.write(json.dumps({"few": few, "many": many, "send_rate": rate}) + "\n")
        return 0
    table = Table("figure", f"{FEW_QUEUES} queues", f"{options.topics * QUEUE_COUNT:,} queues")
    for name in many:
        table.add_row(name, f"{few[name]:,.1f}" if name in few else "", f"{many[name]:,.1f}")
    table.add_row("send rate", "1", f"{rate:.2f}")
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
