"""What does the fold cost each replica for a message? In one process, without a log, a network or a disk.

    python -m bench.folds [--messages 20000] [--rounds 7] [--only "512 of an entry"] [--pure] [--profile 0] [--json]

Entries of messages of 1 KiB are built by a leader's staging and folded by an empty state: as a follower or a start does
it, which reads them from their bytes (*follower*), and as the leader itself does, which knows them already (*leader*).
What a leader's staging costs is shown beside it (*staging*: from staged messages to an entry's body). Figures are
microseconds of processor time of a message, the median of some rounds and the least of them. `--pure` does without
compiled code.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from broker.store.staging import StagedEntry, Staging
from broker.store.state import BrokerState
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import EntryId, Index, Position, Term
from dledger_mq.message import compiled
from dledger_mq.message.numbers import QueueId

BODY: Final = b"x" * 1024
HOST: Final = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
START_MS: Final = 1_700_000_000_000
_STAMP: Final = b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
_TERM: Final = Term(1)


@dataclass(frozen=True, slots=True)
class FoldLoad:
    """The contents of the entries.

    Attributes:
        of_entry: messages.
        queues: over which they are spread, in turn.
        run: messages for one queue before the next one's turn.
        tags: different ones.
        has_keys: whether each has a key of its own beside UNIQ_KEY.
    """

    of_entry: int
    queues: int = 8
    run: int = 1
    tags: int = 1
    has_keys: bool = False

    @property
    def name(self) -> str:
        """The name by which it is chosen and shown."""
        more = f", {self.queues} queues" if self.queues != 8 else ""
        more += f" in runs of {self.run}" if self.run > 1 else ""
        more += f", {self.tags} tags" if self.tags > 1 else ""
        return f"{self.of_entry} of an entry{more}{', KEYS' * self.has_keys}"

    def properties(self, number: int) -> bytes:
        """Return those of a message, as they stand in its record."""
        keys = b"KEYS\x01order-%d\x02" % number if self.has_keys else b""
        tag = b"TAGS\x01tag-%d\x02" % (number % self.tags) if self.tags else b""
        return b"UNIQ_KEY\x01%032d\x02%b%bWAIT\x01true\x02%b" % (number, keys, tag, _STAMP)

    def queue(self, number: int) -> QueueId:
        """Return the queue of a message."""
        return QueueId(number // self.run % self.queues)


LOADS: Final = (
    FoldLoad(1),
    FoldLoad(16),
    FoldLoad(64),
    FoldLoad(512),
    FoldLoad(512, tags=5),
    FoldLoad(512, has_keys=True),
    FoldLoad(500, queues=1, run=100, tags=0),
    FoldLoad(512, queues=4096),
)


def staged_log(load: FoldLoad, messages: int) -> tuple[list[Entry], list[StagedEntry], float]:
    """Build entries; return them, what the leader's fold is told of each, and the seconds of building."""
    state = BrokerState()
    staging = Staging(state, HOST)
    entries: list[Entry] = []
    known: list[StagedEntry] = []
    position, took_s = Position(0), 0.0
    for first in range(0, messages, load.of_entry):
        for number in range(first, first + load.of_entry):
            staging.stage(
                b"a-topic-of-some-length",
                load.queue(number),
                BODY,
                load.properties(number),
                born_timestamp_ms=START_MS,
                born_host=HOST,
            )
        began_s = time.process_time()
        staged = staging.build_entry(position, START_MS + first // 100)
        took_s += time.process_time() - began_s
        entry = Entry(Index(len(entries) + 1), _TERM, position, EntryKind.NORMAL, staged.body)
        entries.append(entry)
        known.append(staged)
        position = entry.end_position
    return entries, known, took_s


def fold(entries: list[Entry], known: list[StagedEntry] | None) -> float:
    """Fold entries into an empty state; return the seconds that it took."""
    state = BrokerState()
    staging = Staging(state, HOST)
    gc.collect()
    began_s = time.process_time()
    for place, entry in enumerate(entries):
        if known is not None:
            staging.proposed(known[place], EntryId(entry.term, entry.index))
        state.apply([entry])
    took_s = time.process_time() - began_s
    assert not state.refusals.count, f"refused: {state.refusals.newest}"
    return took_s


def main() -> int:
    """Measure the chosen loads and print them."""
    parser = argparse.ArgumentParser(prog="bench.folds", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--messages", type=int, default=4_096, help="of a round (default 4096)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", action="append", help="a load by its name; may come again")
    parser.add_argument("--pure", action="store_true", help="without compiled code")
    parser.add_argument("--profile", type=int, default=0, help="show so many functions of each")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args()
    compiled.choose(is_wanted=not options.pure)
    figures: dict[str, dict[str, list[float]]] = {}
    for load in LOADS:
        if options.only and load.name not in options.only:
            continue
        row = figures[load.name] = {"follower": [], "leader": [], "staging": []}
        count = options.messages // load.of_entry * load.of_entry
        for _ in range(options.rounds):
            entries, known, took_s = staged_log(load, count)
            row["staging"].append(1e6 * took_s / count)
            row["follower"].append(1e6 * fold(entries, None) / count)
            row["leader"].append(1e6 * fold(entries, known) / count)
        if options.profile:
            profile = cProfile.Profile()
            profile.runcall(fold, staged_log(load, count)[0], None)
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(
                options.profile
            )
    if options.json:
        sys.stdout.write(json.dumps(figures) + "\n")
        return 0
    table = Table("us a message", "follower", "least", "leader", "least", "staging", "least")
    for name, row in figures.items():
        cells = [f"{f(values):.2f}" for values in row.values() for f in (statistics.median, min)]
        table.add_row(name, *cells)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
