"""Clients that send: messages at once, in batches, for later, and within transactions.

As the real ones they send again with the same unique key and the same born time when no answer came.
"""

from __future__ import annotations

from typing import Final

from broker.message.batch import BatchItem, encode_batch
from broker.message.properties import encode_properties
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.header import RemotingCommand
from broker.remoting.heartbeat import Heartbeat, encode_heartbeat
from broker.store.names import AUTO_CREATE_TOPIC
from broker.testing.broker_cluster import DELAYS_MS
from broker.testing.client import GROUP, SimClient
from broker.testing.model import Sent
from broker.testing.sim_broker import WALL_ZERO_MS

TRIES_MAX: Final = 8
CLOCK_SLACK_MS: Final = 20
"""Clocks round, and follow the wall clock by a thousandth."""
DUE_MS_MAX: Final = 1500
BATCH_MAX: Final = 4
_COMMIT, _ROLLBACK = 8, 12


class Producer(SimClient):
    """Sends one message after another, and takes some of the timed ones back.

    Attributes:
        must_succeed: never gives up; for the probe.
        place: queue id and offset of what was acknowledged last.
    """

    must_succeed = False
    place = (0, 0)
    is_transactional = False

    def go_on(self) -> None:
        """Make up the next send."""
        if self.is_stopped:
            return
        self._begin(self.topic())

    def _begin(self, topic: str) -> None:
        self._tries = 0
        self._topic = topic
        self._queue_id = self.queue_id()
        self._born_ms = WALL_ZERO_MS + self.cluster.now_ms
        is_batch = self.chance(self.settings.batch_permille) and not self.is_transactional
        self.counts["sends"] += 1
        count = self.rng.randint(2, BATCH_MAX) if is_batch else 1
        number = self.counts["sends"]
        self._keys = [f"{self.name}-{number}-{place}".encode() for place in range(count)]
        self._wishes = {} if is_batch or self.is_transactional else self._wish()
        due_ms = self._due_ms() if self._wishes else 0
        for key in self._keys:
            self.model.sent[key] = Sent(topic, is_transaction=self.is_transactional, due_ms=due_ms)
        self._body = b"b" * self.rng.randint(1, self.settings.body_bytes_max)
        self._send()

    def _wish(self) -> dict[str, str]:
        """The properties of a message that is to come later."""
        if self.chance(self.settings.delayed_permille):
            return {"DELAY": str(self.rng.randint(1, len(DELAYS_MS)))}
        if self.chance(self.settings.timed_permille):
            return {"TIMER_DELAY_MS": str(self.rng.randint(1, DUE_MS_MAX))}
        return {}

    def _due_ms(self) -> int:
        """When what was wished is due in true time at the earliest, however wrong the leaders' clocks are."""
        level = int(self._wishes.get("DELAY", 0))
        delay_ms = DELAYS_MS[level - 1] if level else int(self._wishes["TIMER_DELAY_MS"])
        settings, now_ms = self.settings, self.cluster.now_ms
        drift_ms = 2 * settings.drift_permille_max * (now_ms + delay_ms) // 1000
        return now_ms + delay_ms - 2 * settings.wall_offset_ms_max - drift_ms - CLOCK_SLACK_MS

    def _properties(self, key: bytes) -> bytes:
        more = {"TRAN_MSG": "true", "PGROUP": GROUP} if self.is_transactional else {}
        return encode_properties({"UNIQ_KEY": key.decode(), **self._wishes, **more})

    def _send(self) -> None:
        self._tries += 1
        is_batch = len(self._keys) > 1
        body, properties = self._body, b""
        if is_batch:
            items = [BatchItem(0, self._body, self._properties(key)) for key in self._keys]
            body = encode_batch(items)
        else:
            properties = self._properties(self._keys[0])
        ext = {
            "producerGroup": GROUP,
            "topic": self._topic,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "defaultTopicQueueNums": str(self.settings.queue_count),
            "queueId": str(self._queue_id),
            "sysFlag": "4" if self.is_transactional else "0",
            "bornTimestamp": str(self._born_ms),
            "flag": "0",
            "properties": properties.decode(),
            "reconsumeTimes": "0",
            "batch": "true" if is_batch else "false",
        }
        self.ask(RequestCode.SEND_MESSAGE, ext, self._answered, body=body)

    def _answered(self, answer: RemotingCommand | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.counts["acknowledged"] += 1
            self._stored(answer)
            return
        self.counts["refused" if answer is not None else "unknown"] += 1
        if self._tries < TRIES_MAX or self.must_succeed:
            self.pause(self._send)
        else:
            self._next()

    def _next(self) -> None:
        self.pause(self.go_on)

    def _stored(self, answer: RemotingCommand) -> None:
        """The send is acknowledged."""
        first, queue_id = int(answer.ext["queueOffset"]), int(answer.ext["queueId"])
        self.place = (queue_id, first)
        for place, key in enumerate(self._keys):
            self.told.acknowledged(key, None if self._wishes else (queue_id, first + place))
        handle = answer.ext.get("recallHandle")
        if handle and self.chance(self.settings.recall_permille):
            self.pause(lambda: self._recall(handle))
            return
        self._next()

    def _recall(self, handle: str) -> None:
        ext = {"topic": self._topic, "recallHandle": handle, "producerGroup": GROUP}
        self.ask(RequestCode.RECALL_MESSAGE, ext, self._recalled)

    def _recalled(self, answer: RemotingCommand | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.told.recalled(self._keys[0])
        self._next()


class TransactionProducer(Producer):
    """Stores half messages and ends them: at once, or when it is asked, or never.

    A decision, once made, is what it always says.
    """

    is_transactional = True

    def connected(self) -> None:
        """Say hello, so that a leader can ask back."""
        broker = self.cluster.brokers[self._node_id] if self._node_id else None
        if broker is not None and broker.log.is_serving:
            beat = Heartbeat(self.name, (GROUP,), ())
            self.tell(RequestCode.HEART_BEAT, {}, body=encode_heartbeat(beat))

    def _stored(self, answer: RemotingCommand) -> None:
        key = self._keys[0]
        self.told.half_acknowledged(key, int(answer.ext["queueOffset"]))
        if self.chance(self.settings.undecided_permille):
            self._next()
            return
        self._decide(key)
        place = answer.ext["queueOffset"], answer.ext["msgId"][16:]
        self._end(key, place[0], str(int(place[1], 16)))

    def _decide(self, key: bytes) -> int:
        """What the local transaction came to."""
        sent = self.model.sent[key]
        if not sent.is_committed and not sent.is_rolled_back:
            sent.is_rolled_back = self.chance(self.settings.rollback_permille)
            sent.is_committed = not sent.is_rolled_back
        return _COMMIT if sent.is_committed else _ROLLBACK

    def _end(self, key: bytes, queue_offset: str, physical_offset: str) -> None:
        ext = self._ending(key, queue_offset, physical_offset)

        def ended(answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.counts["ends"] += 1
                if self.model.sent[key].is_committed:
                    self.told.committed(key)
            self._next()

        self.ask(RequestCode.END_TRANSACTION, ext, ended)

    def _ending(self, key: bytes, queue_offset: str, physical_offset: str) -> dict[str, str]:
        return {
            "producerGroup": GROUP,
            "tranStateTableOffset": queue_offset,
            "commitLogOffset": physical_offset,
            "commitOrRollback": str(self._decide(key)),
            "msgId": key.decode(),
            "transactionId": key.decode(),
        }

    def asked(self, request: RemotingCommand) -> None:
        """A check: half of them are answered."""
        key = request.ext["transactionId"].encode()
        self.counts["checks"] += 1
        if key not in self.model.sent or not self.chance(500):
            return
        ext = self._ending(key, request.ext["tranStateTableOffset"], request.ext["commitLogOffset"])
        self.tell(RequestCode.END_TRANSACTION, {**ext, "fromTransactionCheck": "true"})
