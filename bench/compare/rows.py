"""The rows of the table: each is one load, the same for every system."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

BATCH_COUNT: Final = 100


class RowKind(Enum):
    """The work of a row."""

    SEND = "single sends"
    BATCH = "batches"
    PULL = "pulls"
    JAVA_SYNC = "Java client, sync"
    JAVA_ASYNC = "Java client, async"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One row: its name in options, its name in the table, and its load."""

    name: str
    label: str
    kind: RowKind
    connections: int = 1
    in_flight: int = 1

    @property
    def is_java(self) -> bool:
        """The load comes from Apache's Java client."""
        return self.kind in (RowKind.JAVA_SYNC, RowKind.JAVA_ASYNC)


ROWS: Final = (
    BenchRow("sync-1", "1 sync sender", RowKind.SEND),
    BenchRow("sync-64", "64 sync connections", RowKind.SEND, connections=64),
    BenchRow("async-64", "1 connection, 64 in flight", RowKind.SEND, in_flight=64),
    BenchRow("async-1024", "1 connection, 1024 in flight", RowKind.SEND, in_flight=1024),
    BenchRow("batch", f"batches of {BATCH_COUNT}, 16 in flight", RowKind.BATCH, in_flight=16),
    BenchRow("pull-1", "pulls of 32, 1 reader", RowKind.PULL),
    # Readers of one client share its connection, as in RocketMQ's own clients.
    BenchRow("pull-8", "pulls of 32, 8 readers", RowKind.PULL, in_flight=8),
    BenchRow("java-sync-1", "Java client, sync, 1 thread", RowKind.JAVA_SYNC),
    BenchRow("java-sync-64", "Java client, sync, 64 threads", RowKind.JAVA_SYNC, in_flight=64),
    BenchRow(
        "java-async-1024", "Java client, async, 1024 in flight", RowKind.JAVA_ASYNC, in_flight=1024
    ),
    BenchRow("memory", "memory of the leader", RowKind.MEMORY),
)
BY_NAME: Final = {row.name: row for row in ROWS}
