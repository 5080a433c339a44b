"""Popping from the broker group in memory: what is handed out, to be acknowledged or handed out again after its time.

It follows docs/pop.md as far as consumers can see: handles that die, order, counts of deliveries. It knows no dead
letters, and nothing of it goes to retry topics.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Final

from dledger_mq.filters import FilterTextError
from dledger_mq.message.names import is_retry_topic
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand, make_response
from dledger_mq.remoting.pop_bodies import EACH_FIELD, ENDED_FIELD, AckMark, decode_batch_ack
from dledger_mq.testing.fake_clock import FakeClock
from dledger_mq.testing.fake_log import FakeLog, first_kept

POP_CODES: Final = frozenset(
    {
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
    }
)

_RECONSUMED: Final = struct.Struct(">i")
_RECONSUMED_AT: Final = 72  # in a record with IPv4 hosts, as all here are

_Place = tuple[str, str, int]


@dataclass(slots=True)
class _InFlight:
    """One message in flight."""

    popped_ms: int
    due_ms: int
    times: int = 1


@dataclass(slots=True)
class _Queue:
    """The messages that one group has in flight of one queue; `attempt` is that of a pop in order, else None."""

    in_flight: dict[int, _InFlight]
    attempt: str | None = None
    end: int = 0
    last_ms: int = 0


class FakePops:
    """The messages in flight, by group, topic and queue.

    Args:
        offsets: committed offsets of the group in memory; pops move them.
    """

    def __init__(
        self,
        log: FakeLog,
        clock: FakeClock,
        offsets: MutableMapping[_Place, int],
        broker_name: str,
    ) -> None:
        self._log = log
        self._clock = clock
        self._offsets = offsets
        self._broker_name = broker_name
        self._queues: dict[_Place, _Queue] = defaultdict(lambda: _Queue({}))

    def in_flight(self, group: str, topic: str) -> int:
        """Return how many messages of a topic a group has in flight."""
        return sum(
            len(queue.in_flight) for key, queue in self._queues.items() if key[:2] == (group, topic)
        )

    def counts(self) -> dict[str, dict[int, int]]:
        """Return how many messages are in flight, by topic and group, and by queue."""
        table: dict[str, dict[int, int]] = {}
        for (group, topic, queue_id), queue in self._queues.items():
            if queue.in_flight:
                table.setdefault(f"{topic}@{group}", {})[queue_id] = len(queue.in_flight)
        return table

    def answer(self, request: RemotingCommand) -> RemotingCommand:
        """Carry out one of POP_CODES at once."""
        ext, opaque = request.ext, request.opaque
        try:
            match request.code:
                case RequestCode.POP_MESSAGE:
                    return self._pop(request)
                case RequestCode.NOTIFICATION:
                    found = str(self._has_messages(request)).lower()
                    answer = {"hasMsg": found, "pollingFull": "false"}
                    return make_response(opaque, ResponseCode.SUCCESS, ext=answer)
                case RequestCode.BATCH_ACK_MESSAGE:
                    return self._acknowledge_batch(request)
                case code:
                    place = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
                    popped_ms = int(ext["extraInfo"].split(" ")[1])
                    if code == RequestCode.ACK_MESSAGE:
                        is_done = self._acknowledge(place, int(ext["offset"]), popped_ms)
                        wanted = ResponseCode.SUCCESS if is_done else ResponseCode.NO_MESSAGE
                        return make_response(opaque, wanted)
                    return self._change(request, place, popped_ms)
        except FilterTextError as error:
            return make_response(opaque, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))

    def _has_messages(self, request: RemotingCommand) -> bool:
        return any(
            self._due(place, request) or self._new(place, request)[0]
            for place in self._places(request)
        )

    def _places(self, request: RemotingCommand) -> Iterable[_Place]:
        ext = request.ext
        for queue_id in range(len(self._log.queues.get(ext["topic"], ()))):
            yield ext["consumerGroup"], ext["topic"], queue_id

    def _pop(self, request: RemotingCommand) -> RemotingCommand:
        """Hand out what is due, else what is new, of the first queue that has some; in order a group moves on later."""
        ext = request.ext
        if ext["topic"] not in self._log.queues:
            return make_response(request.opaque, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        most = int(ext["maxMsgNums"])
        for place in self._places(request):
            queue = self._queues[place]
            again = self._due(place, request)[:most]
            new, end = ([], 0) if again else self._new(place, request)
            new = new[:most]
            if not again and not new:
                continue
            if new:
                end = end if len(new) < most else new[-1] + 1
                if ext["order"] == "true":
                    queue.end = end
                else:
                    self._offsets[place] = end
            queue.attempt = ext["attemptId"] if ext["order"] == "true" else None
            return self._hand_out(request, place, again or new)
        return make_response(request.opaque, ResponseCode.POLLING_TIMEOUT, "no new message")

    def _due(self, place: _Place, request: RemotingCommand) -> list[int]:
        """Return what may be handed out again."""
        queue, now_ms = self._queues[place], self._clock.now_ms
        if queue.attempt is None:
            return [n for n, one in sorted(queue.in_flight.items()) if one.due_ms <= now_ms]
        is_over = all(one.due_ms <= now_ms for one in queue.in_flight.values())
        is_repeat = queue.attempt == request.ext["attemptId"]
        return sorted(queue.in_flight) if is_over or is_repeat else []

    def _new(self, place: _Place, request: RemotingCommand) -> tuple[list[int], int]:
        """Return what was never handed out and is wanted, and the end of what was looked at."""
        if self._queues[place].attempt is not None and self._queues[place].in_flight:
            return [], 0
        ext, records = request.ext, self._log.queue(place[1], place[2])
        begin = self._offsets.get(place, 0)
        offsets = range(max(begin, first_kept(records)), len(records))
        wanted = [n for n in offsets if self._log.matches(records[n], ext["exp"], ext["expType"])]
        return wanted, len(records)

    def _hand_out(
        self, request: RemotingCommand, place: _Place, offsets: list[int]
    ) -> RemotingCommand:
        """Note messages as in flight, and answer with them."""
        queue, ext = self._queues[place], request.ext
        invisible_ms = int(ext["invisibleTime"])
        popped_ms = self._next_ms(queue)
        records = []
        for offset in offsets:
            before = queue.in_flight.get(offset)
            times = before.times if before is not None else 0
            record = bytearray(self._log.queue(place[1], place[2])[offset])
            _RECONSUMED.pack_into(record, _RECONSUMED_AT, times)
            records.append(bytes(record))
            queue.in_flight[offset] = _InFlight(popped_ms, popped_ms + invisible_ms, times + 1)
        self._clock.at(popped_ms + invisible_ms, lambda: self._log.wake(place[1]))
        at = f"{int(is_retry_topic(place[1]))} {place[2]}"
        answer = {
            "popTime": str(popped_ms),
            "invisibleTime": str(invisible_ms),
            "reviveQid": "0",
            "restNum": "0",
            "startOffsetInfo": f"{at} {offsets[0]}",
            "msgOffsetInfo": f"{at} {','.join(map(str, offsets))}",
        }
        code = ResponseCode.SUCCESS
        return make_response(request.opaque, code, "FOUND", ext=answer, body=b"".join(records))

    def _next_ms(self, queue: _Queue) -> int:
        queue.last_ms = max(self._clock.now_ms, queue.last_ms + 1)
        return queue.last_ms

    def _acknowledge(self, place: _Place, offset: int, popped_ms: int) -> bool:
        queue = self._queues[place]
        found = queue.in_flight.get(offset)
        if found is None or found.popped_ms != popped_ms:
            return False
        del queue.in_flight[offset]
        if queue.attempt is not None and not queue.in_flight:
            self._offsets[place], queue.attempt = queue.end, None
            self._log.wake(place[1])
        return True

    def _acknowledge_batch(self, request: RemotingCommand) -> RemotingCommand:
        done = [
            self._acknowledge((pop.group, pop.topic, pop.queue_id), offset, pop.popped_ms)
            for pop in decode_batch_ack(request.body)
            for offset in pop.offsets
        ]
        marks = "".join(AckMark.ENDED if each else AckMark.NOT_IN_FLIGHT for each in done)
        ext = {ENDED_FIELD: marks} if EACH_FIELD in request.ext else {}
        code = ResponseCode.SUCCESS if any(done) else ResponseCode.NO_MESSAGE
        return make_response(request.opaque, code, ext=ext)

    def _change(self, request: RemotingCommand, place: _Place, popped_ms: int) -> RemotingCommand:
        queue, offset = self._queues[place], QueueOffset(int(request.ext["offset"]))
        found = queue.in_flight.get(offset)
        if found is None or found.popped_ms != popped_ms:
            return make_response(request.opaque, ResponseCode.NO_MESSAGE)
        invisible_ms = int(request.ext["invisibleTime"])
        new_ms = self._next_ms(queue)
        queue.in_flight[offset] = _InFlight(new_ms, new_ms + invisible_ms, found.times)
        self._clock.at(new_ms + invisible_ms, lambda: self._log.wake(place[1]))
        ext = {"popTime": str(new_ms), "invisibleTime": str(invisible_ms), "reviveQid": "0"}
        return make_response(request.opaque, ResponseCode.SUCCESS, ext=ext)
