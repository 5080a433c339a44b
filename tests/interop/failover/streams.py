"""Streams: each a process of an unmodified client that sends one message after the other, with its defaults.

It must not know what happens to the servers meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any, Final

from dledger_mq.blocking import PullConsumer
from jepsen.processes import poll
from tests.interop.conftest import ForeignClient, Listener
from tests.interop.failover.judgement import Send, Standing

INTERVAL_MS: Final = 80
ORDERED_INTERVAL_MS: Final = 250
SHARDS: Final = 4
HOURS_S: Final = 4 * 3600
"""Longer than any measurement: the clients are ended, they do not end."""

QUIET_SENDS: Final = 20
QUIET_S: Final = 120.0
QUIET_AGE_S: Final = 5.0
"""A client whose last send is older stands still, or has ended."""


class Stream(Listener):
    """A running stream.

    Attributes:
        kind: of client.
        topic: where it sends, and nobody else does.
        shards: how many sharding keys it has; None for a stream without order.
    """

    def __init__(self, kind: str, name_servers: str, *, is_ordered: bool) -> None:
        self.kind = kind
        self.shards = SHARDS if is_ordered else None
        self.topic = topic_of(kind, is_ordered=is_ordered)
        self._sends: list[Send] = []
        self._good = 0
        interval_ms = ORDERED_INTERVAL_MS if is_ordered else INTERVAL_MS
        order = ("--orderly", "--shards", str(SHARDS)) if is_ordered else ()
        super().__init__(
            ForeignClient(kind, name_servers, has_patience=False).start(
                *("produce", "--topic", self.topic, "--count", str(10**8), "--keep-going"),
                *("--interval-ms", str(interval_ms), "--timeout", str(HOURS_S), *order),
                *("--group", f"P_{self.topic}"),
            )
        )

    def _read(self) -> None:
        assert self._child.stdout is not None
        for text in self._child.stdout:
            now_s = time.monotonic()
            line = json.loads(text) if text.endswith("\n") else {}
            if "body_sha1" in line:
                self._sends.append(as_send(line, now_s))
                self._good += self._sends[-1].error is None

    @property
    def sends(self) -> list[Send]:
        """What it has sent until now."""
        return list(self._sends)

    def wait_quiet(self) -> None:
        """Wait until it has sent for a while without an error."""

        def is_quiet() -> bool:
            last = self._sends[-QUIET_SENDS:]
            if len(last) < QUIET_SENDS or time.monotonic() - last[-1].ended_s > QUIET_AGE_S:
                return False
            return all(send.error is None for send in last)

        assert poll(is_quiet, QUIET_S), (
            f"{self.topic} has no {QUIET_SENDS} good sends in a row after {QUIET_S} s: {self._sends[-3:]}"
        )


def as_send(line: dict[str, Any], ended_s: float) -> Send:
    """Read the line that a client printed when a send had ended."""
    error = line.get("error", line.get("status")) if line.get("status") not in GOOD else None
    begun_s = ended_s - line["ms"] / 1000
    return Send(line["i"], begun_s, ended_s, line["body_sha1"], error)


GOOD: Final = frozenset({"SEND_OK", "OK"})


def topic_of(kind: str, *, is_ordered: bool) -> str:
    plain = kind.replace(".", "_")
    return f"{'Ordered' if is_ordered else 'Steady'}-{plain}"


def read_all(name_servers: str, topic: str) -> list[Standing]:
    """Read everything that stands in a topic, in all groups."""
    found: list[Standing] = []
    with PullConsumer(name_servers, "reader-of-all") as reader:
        for queue in reader.queues(topic):
            offset, end = reader.min_offset(queue), reader.max_offset(queue)
            while offset < end:
                answer = reader.pull(queue, offset)
                found.extend(
                    Standing(
                        queue.broker_name,
                        queue.queue_id,
                        message.queue_offset,
                        hashlib.sha1(message.body).hexdigest(),
                    )
                    for message in answer.messages
                )
                offset = answer.next_offset
    return found
