"""Who acts in a story: a client that sends one request at a time, as the story says, and prints the answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.testing.client import SimClient
from broker.testing.sim_broker import WALL_ZERO_MS
from dledger.raft.ids import NodeId
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.record import StoredMessage, decode_records
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.group_bodies import LockRequest, decode_lock_reply, encode_lock_request
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumerEntry,
    ConsumeType,
    Heartbeat,
    MessageModel,
    Subscription,
    encode_heartbeat,
)
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.requests import PULL_SUBSCRIPTION, PULL_SUSPEND

PULL_MAX = 16
UNIQ_KEY = b"UNIQ_KEY"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as scripts write it: `T/0`."""

    topic: str
    queue_id: int

    @classmethod
    def of(cls, word: str) -> Queue:
        """Read a queue from its text."""
        topic, _, queue_id = word.rpartition("/")
        return cls(topic, int(queue_id))

    def __str__(self) -> str:
        return f"{self.topic}/{self.queue_id}"


@dataclass(slots=True)
class Places:
    """The places of messages that everybody in a story knows, by key.

    Attributes:
        halves: queue offset and physical offset of the half message.
        seen: physical offset of the copy that was seen last.
        handles: topic and recall handle.
    """

    halves: dict[str, tuple[str, str]]
    seen: dict[str, int]
    handles: dict[str, tuple[str, str]]


class Actor(SimClient):
    """A client of a story; it stays with the member that it was sent to, and prints whatever it receives.

    Attributes:
        print_line: takes a line for the script.
        places: shared with the other actors.
        is_waiting: whether its last request is not answered yet.
    """

    print_line: Callable[[str], None]
    places: Places
    is_waiting = False

    def go_on(self) -> None:
        """Do nothing by itself: the script says what is next."""

    def go_to(self, node_id: NodeId) -> None:
        """Connect to a member, and to no other."""
        self.hang_up()
        self._node_id = node_id
        connection = self.cluster.connect(self._address, node_id)
        if connection is None:
            self.print_line(f"{self.name}: {node_id} cannot be reached")
            return
        connection.received, connection.ended = self._received, self._lost
        self._connection = connection

    def asked(self, request: RemotingCommand) -> None:
        """Take a request of the broker: print it, and keep the place of a half message that it asks about."""
        if request.code == RequestCode.CHECK_TRANSACTION_STATE:
            key = request.ext["msgId"]
            place = request.ext["tranStateTableOffset"], request.ext["commitLogOffset"]
            self.places.halves[key] = place
            self.print_line(f"{self.name} is asked how {key} ended")
        elif request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.print_line(f"{self.name} is told that {request.ext['consumerGroup']} has changed")

    # Requests.

    def join(self, group: str, topics: tuple[str, ...]) -> None:
        """Send a heartbeat as a member of a consumer group; its answer, which may need tasks, is not awaited."""
        entry = ConsumerEntry(
            group,
            ConsumeType.CONSUME_PASSIVELY,
            MessageModel.CLUSTERING,
            ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            tuple(Subscription(topic, version=1) for topic in topics),
        )
        beat = encode_heartbeat(Heartbeat(self.name, (), (entry,)))
        self.send_oneway(RequestCode.HEART_BEAT, {}, body=beat)

    def produce(self, group: str) -> None:
        """Send a heartbeat as a producer, which can be asked how its transactions ended."""
        beat = encode_heartbeat(Heartbeat(self.name, (group,), ()))
        self.send_oneway(RequestCode.HEART_BEAT, {}, body=beat)

    def send(self, queue: Queue, body: str, properties: dict[str, str], *, group: str) -> None:
        """Send a message; one with TRAN_MSG is a half message."""
        is_half = "TRAN_MSG" in properties
        ext = {
            "producerGroup": group,
            "topic": queue.topic,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "defaultTopicQueueNums": str(self.settings.queue_count),
            "queueId": str(queue.queue_id),
            "sysFlag": "4" if is_half else "0",
            "bornTimestamp": str(WALL_ZERO_MS + self.cluster.now_ms),
            "flag": "0",
            "properties": encode_properties(properties).decode(),
            "reconsumeTimes": "0",
        }
        key = properties["UNIQ_KEY"]

        def describe(answer: RemotingCommand) -> str:
            offset = answer.ext["queueOffset"]
            if is_half:
                self.places.halves[key] = offset, str(int(answer.ext["msgId"][16:], 16))
                return f"half message {offset}"
            if "recallHandle" in answer.ext:
                self.places.handles[key] = queue.topic, answer.ext["recallHandle"]
                return "waits for its time"
            return f"{queue.topic}/{answer.ext['queueId']} at {offset}"

        self._request(RequestCode.SEND_MESSAGE, ext, describe, body=body.encode())

    def recall(self, key: str) -> None:
        """Take a message with a due time back."""
        topic, handle = self.places.handles[key]
        ext = {"topic": topic, "recallHandle": handle, "producerGroup": "P"}
        self._request(RequestCode.RECALL_MESSAGE, ext)

    def end(self, key: str, verdict: int, *, group: str, is_check: bool) -> None:
        """Say how a transaction ended; 0, unknown, is not answered (O5)."""
        queue_offset, physical_offset = self.places.halves[key]
        ext = {
            "producerGroup": group,
            "tranStateTableOffset": queue_offset,
            "commitLogOffset": physical_offset,
            "commitOrRollback": str(verdict),
            "fromTransactionCheck": "true" if is_check else "false",
            "msgId": key,
            "transactionId": key,
        }
        if verdict:
            self._request(RequestCode.END_TRANSACTION, ext)
        else:
            self.send_oneway(RequestCode.END_TRANSACTION, ext)

    def pull(self, queue: Queue, offset: int, *, group: str, hold_ms: int) -> None:
        """Read from a queue offset on."""
        ext = {
            **self._place(queue, group),
            "queueOffset": str(offset),
            "maxMsgNums": str(PULL_MAX),
            "sysFlag": str(PULL_SUBSCRIPTION | (PULL_SUSPEND if hold_ms else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(hold_ms),
            "subscription": "*",
            "subVersion": "0",
        }

        def describe(answer: RemotingCommand) -> str:
            records = decode_records(answer.body)
            for record in records:
                self.places.seen[_key(record)] = record.physical_offset
            shown = ", ".join(_line(record) for record in records)
            return f"{shown}; next {answer.ext['nextBeginOffset']}"

        self._request(RequestCode.PULL_MESSAGE, ext, describe)

    def give_back(self, key: str, *, group: str, level: int, times_max: int) -> None:
        """Return the copy of a message that was seen last."""
        ext = {
            "offset": str(self.places.seen[key]),
            "group": group,
            "delayLevel": str(level),
            "originMsgId": "",
            "originTopic": "",
            "maxReconsumeTimes": str(times_max),
        }
        self._request(RequestCode.CONSUMER_SEND_MSG_BACK, ext)

    def ask_offset(self, queue: Queue, *, group: str) -> None:
        """Ask for a group's offset."""
        self._request(
            RequestCode.QUERY_CONSUMER_OFFSET,
            self._place(queue, group),
            lambda answer: answer.ext["offset"],
        )

    def commit(self, queue: Queue, offset: int, *, group: str) -> None:
        """Commit a group's offset."""
        ext = {**self._place(queue, group), "commitOffset": str(offset), "clientId": self.name}
        self._request(RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    def lock(self, queue: Queue, *, group: str) -> None:
        """Ask for a queue, or keep it."""

        def describe(answer: RemotingCommand) -> str:
            return "granted" if decode_lock_reply(answer.body) else "not granted"

        self._request(RequestCode.LOCK_BATCH_MQ, {}, describe, body=self._lock_body(queue, group))

    def unlock(self, queue: Queue, *, group: str) -> None:
        """Release a queue."""
        self._request(RequestCode.UNLOCK_BATCH_MQ, {}, body=self._lock_body(queue, group))

    # How it asks.

    def _lock_body(self, queue: Queue, group: str) -> bytes:
        queues = (WireQueue("sim", queue.queue_id, queue.topic),)
        return encode_lock_request(LockRequest(group, self.name, queues, False))

    @staticmethod
    def _place(queue: Queue, group: str) -> dict[str, str]:
        return {"consumerGroup": group, "topic": queue.topic, "queueId": str(queue.queue_id)}

    def _request(
        self,
        code: RequestCode,
        ext: dict[str, str],
        describe: Callable[[RemotingCommand], str] = lambda _answer: "",
        *,
        body: bytes = b"",
    ) -> None:
        """Send one request, and print how it ended.

        `is_waiting` is true until then: an actor has one request open at most.
        """
        self.is_waiting = True

        def answered(answer: RemotingCommand | None) -> None:
            self.is_waiting = False
            if answer is None:
                self.print_line(f"{self.name} gets no answer")
            elif answer.code == ResponseCode.SUCCESS:
                self.print_line(f"{self.name}: {describe(answer) or 'done'}")
            else:
                self.print_line(
                    f"{self.name}: {ResponseCode(answer.code).name} {_remark(answer)}".rstrip()
                )

        self.ask_there(code, ext, answered, body=body)

    def _give_up(self, opaque: int) -> None:
        """Wait no longer for the answer, but stay connected."""
        answered = self._waiting.pop(opaque, None)
        if answered is not None:
            answered(None)

    def _lost(self) -> None:
        self.print_line(f"{self.name} loses its connection")
        self._ended()


def _key(record: StoredMessage) -> str:
    return (record.find(UNIQ_KEY) or b"").decode()


def _line(record: StoredMessage) -> str:
    again = f" again ({record.reconsume_times})" if record.reconsume_times else ""
    return f"{record.queue_offset}={record.body.decode()}{again}"


def _remark(answer: RemotingCommand) -> str:
    """The first words of a remark; numbers in it may differ from run to run."""
    return (answer.remark or "").split(",")[0]
