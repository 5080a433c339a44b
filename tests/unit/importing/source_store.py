"""Small stores of RocketMQ, written record by record, for tests of what reads them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from broker.importing.survey import Source, SourceSurvey, survey
from dledger_mq.message.numbers import PhysicalOffset
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.record import encode_record

FILE_BYTES = 2048
STORED_MS = 1_700_000_000_000
HOST = bytes((10, 0, 0, 1)) + (10911).to_bytes(4, "big")
END_MAGIC = 0xCBD43194


class SourceStore:
    """A store whose broker was stopped in order; `in_entries`: its log is DLedger's."""

    def __init__(self, folder: Path, *, begin: int = 0, in_entries: bool = False) -> None:
        self.folder = folder
        self.log = folder / "dledger-n0" / "data" if in_entries else folder / "commitlog"
        self.committed: int | None = None
        self.next_index = 0
        self._head_bytes = 48 if in_entries else 0
        self.log.mkdir(parents=True)
        (folder / "config").mkdir()
        self.place = begin
        self.topics: dict[str, dict[str, object]] = {}
        self.groups: dict[str, dict[str, object]] = {}
        self.offsets: dict[str, dict[str, int]] = {}
        self.delays: dict[str, int] = {}
        self._next: dict[tuple[str, int], int] = {}
        self.stored_ms = STORED_MS

    def topic(self, name: str, queues: int = 1, **more: object) -> None:
        self.topics[name] = {
            "topicName": name,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            **more,
        }

    def put(
        self,
        topic: str,
        body: bytes = b"body",
        *,
        queue: int = 0,
        offset: int | None = None,
        sys_flag: int = 0,
        prepared: int = 0,
        raw: bytes | None = None,
        **properties: str,
    ) -> int:
        """Write a record where the log ends, in a new file if it has no room; return its place."""
        if offset is None:
            offset = self._next.get((topic, queue), 0)
        self._next[topic, queue] = offset + 1
        self.stored_ms += 1
        for _ in range(2):
            record = encode_record(
                topic=topic.encode(),
                queue_id=queue,
                queue_offset=offset,
                physical_offset=self.place + self._head_bytes,
                sys_flag=sys_flag,
                born_timestamp_ms=STORED_MS,
                born_host=HOST,
                store_timestamp_ms=self.stored_ms,
                store_host=HOST,
                body=body,
                properties=encode_properties(properties) if raw is None else raw,
                prepared_transaction_offset=prepared,
            )
            left = FILE_BYTES - self.place % FILE_BYTES
            if self._head_bytes + len(record) + 8 <= left:
                break
            end = (-1, left) if self._head_bytes else (left, END_MAGIC - 2**32)
            self.write(struct.pack(">ii", *end))
            self.place += left - 8
        place = self.place + self._head_bytes
        self.write_entry(1, record) if self._head_bytes else self.write(record)
        return place

    def write_entry(self, magic: int, body: bytes) -> None:
        """Write one of DLedger's entries."""
        head = (magic, 48 + len(body), self.next_index, 1, self.place, 0, 0, 0, len(body))
        self.next_index += 1
        self.write(struct.pack(">iiqqqiiii", *head) + body)

    def write(self, data: bytes) -> None:
        """Write bytes where the log ends."""
        first = self.place - self.place % FILE_BYTES
        path = self.log / f"{first:020}"
        if not path.exists():
            path.write_bytes(bytes(FILE_BYTES))
        with path.open("r+b") as file:
            file.seek(self.place - first)
            file.write(data)
        self.place += len(data)

    def queue_file(
        self, topic: str, queue: int, first: int, units: list[tuple[int, int]], tag: int = 0
    ) -> None:
        """Write the last file of a consume queue."""
        folder = self.folder / "consumequeue" / topic / str(queue)
        folder.mkdir(parents=True)
        data = b"".join(struct.pack(">qiq", place, size, tag) for place, size in units)
        (folder / f"{first * 20:020}").write_bytes(data.ljust(2000, b"\0"))

    def save(self) -> Path:
        """Write the tables."""
        tables: dict[str, object] = {
            "topics.json": {"dataVersion": {"counter": 1}, "topicConfigTable": self.topics},
            "subscriptionGroup.json": {"subscriptionGroupTable": self.groups},
            "consumerOffset.json": {"offsetTable": self.offsets},
            "delayOffset.json": {"offsetTable": self.delays},
        }
        for name, table in tables.items():
            (self.folder / "config" / name).write_text(json.dumps(table))
        timers = self.folder / "config" / "timercheck"
        if not timers.exists():
            timers.write_bytes(bytes(24))
        if self._head_bytes:
            committed = self.next_index - 1 if self.committed is None else self.committed
            text = f"#Mon Nov 23\ncommittedIndex={committed}\nendIndex={self.next_index - 1}\n"
            (self.log.parent / "checkpoint").write_text(text)
        return self.folder

    def survey(self, until: int | None = None) -> SourceSurvey:
        folder = self.save()
        end = None if until is None else PhysicalOffset(until)
        return survey(Source(folder, [self.log], end), lambda _done, _total: None)
