"""Clients that send: messages at once, in batches, for later, and within transactions.

As the real ones they send again with the same unique key and the same born time when no answer came.

Nothing here judges an answer (broker/testing/answers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.testing.broker_cluster import DELAYS_MS
from broker.testing.client import GROUP, SimClient
from broker.testing.forms import Fate, Form
from broker.testing.sim_broker import WALL_ZERO_MS
from dledger.testing.state_checker import Violation
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.message.properties import encode_properties
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.heartbeat import Heartbeat, encode_heartbeat

TRIES_MAX: Final = 8
CLOCK_SLACK_MS: Final = 20
"""Clocks round, and follow the wall clock by a thousandth."""
BATCH_MAX: Final = 4
_COMMIT, _ROLLBACK = 8, 12


def send_request(
    forms: Sequence[Form], born_ms: int, *, queue_count: int, is_half: bool = False
) -> tuple[dict[str, str], bytes]:
    """Build header fields and body of a send: of one message, or of a batch for one queue."""
    first = forms[0]
    body, properties = first.body, encode_properties(dict(first.properties))
    if len(forms) > 1:
        body = encode_batch(
            BatchItem(0, each.body, encode_properties(dict(each.properties))) for each in forms
        )
        properties = b""
    ext = {
        "producerGroup": GROUP,
        "topic": first.topic,
        "defaultTopic": AUTO_CREATE_TOPIC,
        "defaultTopicQueueNums": str(queue_count),
        "queueId": str(first.queue_id),
        "sysFlag": "4" if is_half else "0",
        "bornTimestamp": str(born_ms),
        "flag": "0",
        "properties": properties.decode(),
        "reconsumeTimes": "0",
        "batch": "true" if len(forms) > 1 else "false",
    }
    return ext, body


class SimProducer(SimClient):
    """Sends one message after another, and takes some of the timed ones back.

    Attributes:
        must_succeed: never gives up; for the probe.
        place: queue id and offset of what was acknowledged last.
    """

    must_succeed = False
    place = (QueueId(0), 0)
    is_transactional = False

    def go_on(self) -> None:
        """Make up the next send."""
        if self.is_stopped:
            return
        self._begin(self.topic())

    def _begin(self, topic: str) -> None:
        """Choose the next messages and note them as wanted before the first try: any try may be stored."""
        self._tries = 0
        self._topic = topic
        self._queue_id = self.queue_id()
        self._born_ms = WALL_ZERO_MS + self.cluster.now_ms
        is_batch = self.chance(self.settings.batch_permille) and not self.is_transactional
        self.counts["sends"] += 1
        count = self.rng.randint(2, BATCH_MAX) if is_batch else 1
        number = self.counts["sends"]
        keys = self._make_keys(number, count)
        self._wishes = {} if is_batch or self.is_transactional else self._wish()
        due_ms = self._due_ms() if self._wishes else 0
        body = self._make_body(number)
        self._forms = [
            Form.of(topic, self._queue_id, body, {**self._properties(key), **self._wishes})
            for key in keys
        ]
        for form in self._forms:
            fate = Fate(is_transaction=self.is_transactional, due_ms=due_ms)
            self.model.wanted(form, fate)
        self._send()

    def _make_keys(self, number: int, count: int) -> Sequence[str]:
        return [f"{self.name}-{number}-{place}" for place in range(count)]

    def _make_body(self, number: int) -> bytes:
        return b"b" * self.rng.randint(1, self.settings.body_bytes_max)

    def _wish(self) -> dict[str, str]:
        """Draw the properties of a message that is to come later."""
        if self.chance(self.settings.delayed_permille):
            return {"DELAY": str(self.rng.randint(1, len(DELAYS_MS)))}
        if self.chance(self.settings.timed_permille):
            return {"TIMER_DELAY_MS": str(self.rng.randint(1, self.settings.due_ms_max))}
        return {}

    def _due_ms(self) -> int:
        """Return the earliest true time at which a wish is due, however wrong the leaders' clocks are."""
        level = int(self._wishes.get("DELAY", 0))
        delay_ms = DELAYS_MS[level - 1] if level else int(self._wishes["TIMER_DELAY_MS"])
        settings, now_ms = self.settings, self.cluster.now_ms
        drift_ms = 2 * settings.drift_permille_max * (now_ms + delay_ms) // 1000
        return now_ms + delay_ms - 2 * settings.wall_offset_ms_max - drift_ms - CLOCK_SLACK_MS

    def _properties(self, key: str) -> dict[str, str]:
        return {"UNIQ_KEY": key}

    def _send(self) -> None:
        self._tries += 1
        self._is_owed = self.is_served
        ext, body = send_request(
            self._forms,
            self._born_ms,
            queue_count=self.settings.queue_count,
            is_half=self.is_transactional,
        )
        self.ask(RequestCode.SEND_MESSAGE, ext, self._answered, body=body)

    def _answered(self, answer: RemotingCommand | None) -> None:
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.counts["acknowledged"] += 1
            self._stored(answer)
            return
        self._check_owed(answer)
        self.counts["refused" if answer is not None else "unknown"] += 1
        if self._tries < TRIES_MAX or self.must_succeed:
            self.pause(self._send)
        else:
            self._next()

    def _check_owed(self, answer: RemotingCommand | None) -> None:
        """Demand that no send fails while nothing goes wrong."""
        if self._is_owed and self.is_served:
            said = f"code {answer.code}: {answer.remark}" if answer is not None else "no answer"
            raise Violation(
                f"a send of {self.name} to {self.node_id} failed though members are only stopped in order: {said}"
            )

    def _next(self) -> None:
        self.pause(self.go_on)

    def _stored(self, answer: RemotingCommand) -> None:
        """Check the acknowledgement of a send."""
        self.place = (QueueId(int(answer.ext["queueId"])), int(answer.ext["queueOffset"]))
        self.answers.acknowledged(self._forms, answer)
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
            self.answers.recalled(self._forms[0])
        self._next()


class SimTransactionProducer(SimProducer):
    """Stores half messages and ends them: at once, or when it is asked, or never.

    A decision, once made, is what it always says.
    """

    is_transactional = True
    _last_keys: Sequence[str] = ()

    def connected(self) -> None:
        """Send a heartbeat, so that a leader can ask how transactions ended."""
        broker = self.cluster.brokers[self._node_id] if self._node_id else None
        if broker is not None and broker.log.is_serving:
            beat = Heartbeat(self.name, (GROUP,), ())
            self.send_oneway(RequestCode.HEART_BEAT, {}, body=encode_heartbeat(beat))

    def _properties(self, key: str) -> dict[str, str]:
        return {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": GROUP}

    def _make_keys(self, number: int, count: int) -> Sequence[str]:
        """Draw keys; now and then that of the one before, as with another body it is another transaction."""
        if not self._last_keys or not self.chance(self.settings.twin_permille):
            self._last_keys = super()._make_keys(number, count)
        return self._last_keys

    def _make_body(self, number: int) -> bytes:
        return b"%d " % number + super()._make_body(number)

    def _stored(self, answer: RemotingCommand) -> None:
        form = self._forms[0]
        self.answers.acknowledged(self._forms, answer)
        if self.chance(self.settings.undecided_permille):
            self._next()
            return
        place = answer.ext["queueOffset"], answer.ext["msgId"][16:]
        self._end(form, place[0], str(int(place[1], 16)))

    def _decide(self, form: Form) -> int:
        """Draw the end of the local transaction."""
        fate = self.model.fates[form]
        if not fate.is_committed and not fate.is_rolled_back:
            fate.is_rolled_back = self.chance(self.settings.rollback_permille)
            fate.is_committed = not fate.is_rolled_back
        return _COMMIT if fate.is_committed else _ROLLBACK

    def _end(self, form: Form, queue_offset: str, physical_offset: str) -> None:
        ext = self._ending(form, queue_offset, physical_offset)

        def ended(answer: RemotingCommand | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.counts["ends"] += 1
                if self.model.fates[form].is_committed:
                    self.answers.committed(form)
            self._next()

        self.ask(RequestCode.END_TRANSACTION, ext, ended)

    def _ending(self, form: Form, queue_offset: str, physical_offset: str) -> dict[str, str]:
        return {
            "producerGroup": GROUP,
            "tranStateTableOffset": queue_offset,
            "commitLogOffset": physical_offset,
            "commitOrRollback": str(self._decide(form)),
            "msgId": form.key.decode(),
            "transactionId": form.key.decode(),
        }

    def asked(self, request: RemotingCommand) -> None:
        """Answer half of the checks."""
        queue_offset = request.ext["tranStateTableOffset"]
        form = self.model.half_at(QueueOffset(int(queue_offset)))
        self.counts["checks"] += 1
        if form is None or not self.chance(500):
            return
        ext = self._ending(form, queue_offset, request.ext["commitLogOffset"])
        self.send_oneway(RequestCode.END_TRANSACTION, {**ext, "fromTransactionCheck": "true"})
