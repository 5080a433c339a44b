"""Offsets of a broadcast consumer: a JSON file of its own, since no two members stand at the same place.

`<folder>/<client id>/<group>/offsets.json`, in the form of RocketMQ's Java client (rule S1):
`{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5}}`. It is written aside, synced and renamed,
so a crash leaves the old file or the new one. The file before is kept as `offsets.json.bak` and read when
the newer one is damaged by something else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeGuard

from dledger_mq.client.durable_file import replace_file
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.json_body import read_object, write_json
from dledger_mq.remoting.message_queue import WireQueue

DEFAULT_FOLDER: Final = "~/.rocketmq_offsets"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_NAME: Final = "offsets.json"

log = logging.getLogger(__name__)


class LocalOffsets:
    """The stored offsets of one member. `load` first; `save` makes them durable.

    Args:
        folder: under which every client has its own folder; "~" is the user's home.
        client_id, group: whose they are.
    """

    def __init__(self, folder: str | Path, client_id: str, group: str) -> None:
        # Client ids hold "@", "#" and dots, never a slash, unless an application chose one.
        if "/" in client_id or client_id in ("", ".", ".."):
            raise ClientUsageError(f"client id {client_id!r} cannot name a folder")
        self.path = Path(folder).expanduser() / client_id / group / _NAME
        self._offsets: dict[MessageQueue, QueueOffset] = {}

    def load(self) -> None:
        """Read what was stored before; a damaged file is reported, and the one before it is used.

        Raises:
            OSError: the folder cannot be read.
        """
        for path in (self.path, self._before):
            try:
                with path.open("rb") as file:
                    data = file.read(FILE_BYTES_MAX + 1)
            except FileNotFoundError:
                continue
            try:
                self._offsets = decode_offsets(data)
            except BodyError as error:
                log.warning("%s is damaged and not used: %s", path, error)
            else:
                return

    def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """Return the stored offset, None when there is none."""
        return self._offsets.get(queue)

    def save(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        """Store these in addition to the others, durably; blocks for the disk.

        Raises:
            OSError: they are not stored; the file before stands.
        """
        offsets = self._offsets | dict(offsets)
        replace_file(self.path, encode_offsets(offsets), before=self._before)
        self._offsets = offsets

    @property
    def _before(self) -> Path:
        return self.path.with_name(f"{_NAME}.bak")


def encode_offsets(offsets: Mapping[MessageQueue, QueueOffset]) -> bytes:
    """Write a table of offsets as RocketMQ's clients and brokers do (docs/formats/remoting.md, "Offsets as a body")."""
    table = {
        WireQueue(queue.broker_name, queue.queue_id, queue.topic): offset
        for queue, offset in sorted(offsets.items())
    }
    return write_json({"offsetTable": table})


def decode_offsets(data: bytes) -> dict[MessageQueue, QueueOffset]:
    """Read a table of offsets, as an object with queues as keys or as the list for C++ clients.

    Raises:
        BodyError: it is not one, or is longer than FILE_BYTES_MAX.
    """
    if len(data) > FILE_BYTES_MAX:
        raise BodyError(f"more than {FILE_BYTES_MAX} bytes")
    table = read_object(data).get("offsetTable")
    found: dict[MessageQueue, QueueOffset] = {}
    if isinstance(table, dict):
        for key, offset in table.items():
            if not isinstance(key, WireQueue) or not _is_offset(offset):
                raise BodyError(f"offsetTable holds {key!r}: {offset!r}")
            found[MessageQueue(key.topic, key.broker_name, key.queue_id)] = offset
        return found
    if not isinstance(table, list):
        raise BodyError(f"offsetTable is {type(table).__name__}")
    for item in table:
        match item:
            case {
                "topic": str(topic),
                "brokerName": str(name),
                "queueId": int(queue_id),
                "offset": int(offset),
            } if _is_offset(offset):
                found[MessageQueue(topic, name, queue_id)] = offset
            case _:
                raise BodyError(f"offsetTable holds {item!r}")
    return found


def _is_offset(value: object) -> TypeGuard[QueueOffset]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
