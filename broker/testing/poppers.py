"""Clients that pop: they acknowledge what they get, singly or together, in time or late, change its time, or forget it.

Once they are to begin nothing more they pop and acknowledge until nothing is left: what was not acknowledged must come
again in the end.

Nothing here judges an answer (broker/testing/pop_answers.py).
"""

from __future__ import annotations

import base64
import json
from typing import Final

from broker.testing.client import Prefers, SimClient
from broker.testing.pop_answers import PopHold
from broker.testing.pop_model import ORDERED_GROUP, POP_GROUP, POP_GROUPS
from broker.testing.producers import CLOCK_SLACK_MS
from dledger_mq.message import names
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

COUNTS: Final = (1, 3, 32)
POLL_MS: Final = (0, 0, 150)
TRIES_MAX: Final = 3
REST_MS: Final = 100
"""Between two looks of a client that is to begin nothing more."""


class Popper(SimClient):
    """Pops, and works on what it gets."""

    _ready_count = 0
    _attempt = 0

    def go_on(self) -> None:
        """Pop something; before, say of each group how often it wants a message."""
        if self._ready_count < len(POP_GROUPS):
            self._make_group(POP_GROUPS[self._ready_count])
            return
        if self.is_stopped:
            left = list(self.model.unpopped())
            if not left:
                self.pause(self.go_on, least_ms=REST_MS)
                return
            self._group, self._topic, _ = self.rng.choice(left)
        else:
            self._choose()
        self._is_ordered = self._group == ORDERED_GROUP
        self._attempt += 1
        least_ms = self.settings.invisible_ms_max if self.is_stopped else 20
        self._invisible_ms = self.rng.randint(least_ms, self.settings.invisible_ms_max)
        self._pop()

    def _choose(self) -> None:
        """Choose a group, and what to pop."""
        self._topic, self._group = self.topic(), POP_GROUP
        if self.chance(200):
            self._topic = names.retry_topic(POP_GROUP)
        elif self.chance(self.settings.pop_ordered_permille):
            self._group = ORDERED_GROUP

    def _make_group(self, group: str) -> None:
        """Say how often a group wants a message."""
        body = {"groupName": group, "retryMaxTimes": self.settings.pop_retries_max}

        def made(answer: RemotingCommand | None) -> None:
            self._ready_count += answer is not None and answer.code == ResponseCode.SUCCESS
            self.pause(self.go_on)

        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        self.ask(code, {}, made, body=json.dumps(body).encode())

    def _next(self) -> None:
        self.pause(self.go_on)

    def _anywhere(self) -> Prefers:
        if self.is_stopped:
            return Prefers.LEADER  # members may be down for good
        return self.rng.choice((Prefers.LEADER, Prefers.LEADER, Prefers.ANYBODY))

    def _earliest_ms(self) -> int:
        """Return the earliest true time at which what is asked for now may go to somebody else.

        Clocks drift, and follow the wall clock by a thousandth.
        """
        lost_ms = self._invisible_ms * (2 * self.settings.drift_permille_max + 2) // 1000
        return self.cluster.now_ms + self._invisible_ms - lost_ms - CLOCK_SLACK_MS

    # Popping.

    def _pop(self) -> None:
        """Ask for messages; nobody else may get them before the invisible time from now on is over."""
        earliest_ms = self._earliest_ms()
        ext = {
            "consumerGroup": self._group,
            "topic": self._topic,
            "queueId": str(self.rng.choice((-1, -1, -1 if self.is_stopped else self.queue_id()))),
            "maxMsgNums": str(COUNTS[-1] if self.is_stopped else self.rng.choice(COUNTS)),
            "invisibleTime": str(self._invisible_ms),
            "pollTime": str(self.rng.choice(POLL_MS)),
            "bornTime": "0",
            "initMode": "0",
            "exp": "*",
            "order": str(self._is_ordered).lower(),
        }
        if self._is_ordered:
            ext["attemptId"] = f"{self.name}-{self._attempt}"
        self.ask(
            RequestCode.POP_MESSAGE,
            ext,
            lambda answer: self._popped(answer, earliest_ms),
            prefers=self._anywhere(),
        )

    def _popped(self, answer: RemotingCommand | None, earliest_ms: int) -> None:
        """Judge what was popped, then work on it: at once, when its time is over, or never."""
        if answer is None and self._is_ordered and self.chance(500):
            self.pause(self._pop)  # the same attempt
            return
        if answer is None or answer.code != ResponseCode.SUCCESS:
            self._next()
            return
        records = decode_records(answer.body)
        holds = self.pop_answers.popped(
            self._group, self._topic, answer, list(records), earliest_ms=earliest_ms
        )
        starts = dict(_place_and_value(row) for row in answer.ext["startOffsetInfo"].split(";"))
        self._starts = {int(place.split(" ")[1]): value for place, value in starts.items()}
        self._revive = answer.ext["reviveQid"]
        is_late = not self.is_stopped and self.chance(250)
        late_ms = self.settings.invisible_ms_max if is_late else 0
        if not self.is_stopped and self.chance(self.settings.pop_forget_permille):
            self._next()
        else:
            self.pause(lambda: self._work(holds), least_ms=1 + late_ms)

    # What becomes of messages.

    def _work(self, holds: list[PopHold]) -> None:
        """Do one thing about the first of these messages, or about all, and then the rest."""
        if not holds:
            self._next()
        elif self.chance(800 if self.is_stopped else self.settings.pop_batch_permille):
            self._acknowledge_all(holds)
        elif not self.is_stopped and self.chance(self.settings.pop_change_permille):
            self._change(holds[0], holds[1:])
        elif not self.is_stopped and self.chance(self.settings.pop_forget_permille):
            self._work(holds[1:])
        else:
            self._acknowledge(holds[0], holds[1:])

    def _fields(self, hold: PopHold) -> dict[str, str]:
        """Return the fields that name a message, with the handle as Java's client puts it together."""
        group, topic, queue_id = hold.key
        flag = "1" if names.is_retry_topic(topic) else "0"
        parts = (
            *(self._starts[queue_id], hold.popped_ms, self._invisible_ms, self._revive),
            *(flag, "sim", queue_id, hold.offset),
        )
        return {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "offset": str(hold.offset),
            "extraInfo": " ".join(map(str, parts)),
        }

    def _acknowledge(self, hold: PopHold, rest: list[PopHold], tries: int = 1) -> None:
        """Acknowledge a message; again if no answer came, as it may be done or not."""
        self.model.pops.asked.add(hold)

        def answered(answer: RemotingCommand | None) -> None:
            if answer is None and tries < TRIES_MAX:
                self.pause(lambda: self._acknowledge(hold, rest, tries + 1))
                return
            self._judge_ack([hold], answer)
            self.pause(lambda: self._work(rest))

        self.ask(RequestCode.ACK_MESSAGE, self._fields(hold), answered, prefers=self._anywhere())

    def _acknowledge_all(self, holds: list[PopHold]) -> None:
        """Acknowledge messages together: one row for each pop time of each queue."""
        self.model.pops.asked.update(holds)
        rows: dict[tuple[int, int], list[int]] = {}
        for hold in holds:
            rows.setdefault((hold.key[2], hold.popped_ms), []).append(hold.offset)
        group, topic, _ = holds[0].key
        acks = [
            {
                "c": group,
                "t": topic,
                "r": "0",
                "so": min(offsets),
                "q": queue_id,
                "rq": 0,
                "pt": popped_ms,
                "it": self._invisible_ms,
                "b": _bits(offsets),
            }
            for (queue_id, popped_ms), offsets in rows.items()
        ]

        def answered(answer: RemotingCommand | None) -> None:
            self._judge_ack(holds, answer)
            self._next()

        self.counts["pop_batches"] += 1
        self.ask(
            RequestCode.BATCH_ACK_MESSAGE,
            {},
            answered,
            body=json.dumps({"brokerName": "sim", "acks": acks}).encode(),
            prefers=self._anywhere(),
        )

    def _judge_ack(self, holds: list[PopHold], answer: RemotingCommand | None) -> None:
        if answer is None:
            return
        if answer.code == ResponseCode.SUCCESS:
            self.pop_answers.acknowledged(holds)
        else:
            self.pop_answers.not_held(holds, answer)

    def _change(self, hold: PopHold, rest: list[PopHold]) -> None:
        """Ask for another time; then acknowledge under the new handle, or now and then under the old one."""
        self.model.pops.asked.add(hold)
        fields = self._fields(hold)
        self._invisible_ms = self.rng.randint(1, self.settings.invisible_ms_max)
        earliest_ms = self._earliest_ms()

        def answered(answer: RemotingCommand | None) -> None:
            if answer is None or answer.code != ResponseCode.SUCCESS:
                if answer is not None:
                    self.pop_answers.not_held([hold], answer)
                self.pause(lambda: self._work(rest))
                return
            new = self.pop_answers.changed(hold, answer, earliest_ms=earliest_ms)
            meant = hold if self.chance(100) else new
            self.pause(lambda: self._acknowledge(meant, rest))

        fields["invisibleTime"] = str(self._invisible_ms)
        self.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields, answered, prefers=self._anywhere()
        )


def _place_and_value(row: str) -> tuple[str, str]:
    place, _, value = row.rpartition(" ")
    return place, value


def _bits(offsets: list[int]) -> str:
    """Return offsets as the bits of a batch, counted from the lowest."""
    bits = sum(1 << (offset - min(offsets)) for offset in offsets)
    return base64.b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()
