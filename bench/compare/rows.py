"""The rows of the table: each is one load, the same for every system."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

QUEUES: Final = 16
BATCH_COUNT: Final = 100
BODY_BYTES: Final = 1024


class RowKind(Enum):
    """The work of a row."""

    SEND = "single sends"
    ONEWAY = "one-way sends"
    BATCH = "batches"
    PULL = "pulls of the newest"
    COLD_PULL = "pulls of the oldest"
    TAG_PULL = "pulls of one tag of four"
    JAVA_SYNC = "Java client, sync"
    JAVA_ASYNC = "Java client, async"
    END_TO_END = "send to reader"
    DELAY = "late after a delay"
    TRANSACTION = "transactions"
    FAILOVER = "leader killed"
    RECOVERY = "all killed"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One row.

    Attributes:
        name: in options and JSON.
        label: in the table.
        kind: what is done.
        connections: clients; each has its own.
        in_flight: of each connection.
        queues: of the topic.
        body_bytes: of a message.
        batch: messages of a batch.
        per_s: sends a second, where the load is a steady one.
        backlog_mib: what the log has at least, before.
    """

    name: str
    label: str
    kind: RowKind
    connections: int = 1
    in_flight: int = 1
    queues: int = QUEUES
    body_bytes: int = BODY_BYTES
    batch: int = BATCH_COUNT
    per_s: float = 100.0
    backlog_mib: int = 0

    @property
    def is_java(self) -> bool:
        """The load comes from Apache's Java client."""
        return self.kind in (RowKind.JAVA_SYNC, RowKind.JAVA_ASYNC)

    @property
    def is_fault(self) -> bool:
        """A round is one fault, however long it takes."""
        return self.kind in (RowKind.FAILOVER, RowKind.RECOVERY)


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
"""The rows of the table that speed is judged by."""
