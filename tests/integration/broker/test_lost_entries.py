"""Real processes: the leader's disk does not give old entries (EIO) while timers and transactions need them."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_mq import Message, NoRouteError
from dledger_mq.blocking import Producer, PullConsumer
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.header import RemotingCommand
from jepsen.nemeses.preload import Control, Operation, Rule, attach_process, lacking_preload
from jepsen.processes import SMALL_SEGMENTS, Group, Process, poll
from tests.integration.broker.conftest import pull_ext, send_ext
from tests.integration.broker.reading import everything, has_as_many
from tests.integration.broker.test_processes import ask, brokers_of, leader_of, led

pytestmark = [pytest.mark.slow, pytest.mark.integration]

TOPIC = "Due"
ENDED = "Ended"
TIMED_COUNT = 400
DELAYED_COUNT = 10
HALF_COUNT = 12
LEAD_MS = 8000
LEAD_MS_MAX = 200_000
SPAN_MS = 8000
PATIENCE_S = 120.0
NOTHING_KEPT = "readCacheBytesMax=0\n"
"""What was read once, as for the first check of each transaction, is read from the disk again."""

UNREADABLE = Rule(Operation.READ, error=errno.EIO, contains="/data/")


class Stage:
    """Three brokers whose memory holds no entry, with messages that fall due and transactions that are open."""

    def __init__(self, group: Group, controls: dict[str, Control], start_s: float) -> None:
        self.group = group
        self.controls = controls
        self.ends: list[dict[str, str]] = []
        # The group is started once more before the first message falls due.
        self.lead_ms = max(LEAD_MS, min(round(4000 * start_s), LEAD_MS_MAX))
        self.fill()
        for node in group.nodes:
            node.kill()
        for node in group.nodes:
            node.start()
        self.pids = [node.pid for node in group.nodes]
        group.wait_listening()
        # What the name server tells may be older than the restart: whoever confirms a read leads.
        assert poll(lambda: self.offset_answer(self.leader).code == 0, PATIENCE_S)

    def fill(self) -> None:
        with Producer(self.group.namesrv, "due", timeout_s=PATIENCE_S) as producer:
            assert poll(lambda: self.is_sent(producer), PATIENCE_S)
            start_ms = now_ms() + self.lead_ms
            step_ms = SPAN_MS // TIMED_COUNT
            timed = [
                Message(TOPIC, b"%d" % n, deliver_at_ms=start_ms + n * step_ms)
                for n in range(TIMED_COUNT)
            ]
            delayed = [Message(TOPIC, b"level %d" % n, delay_level=3) for n in range(DELAYED_COUNT)]
            for result in producer.send_many(timed + delayed):
                assert not isinstance(result, Exception), result
        self.end_ms = start_ms + SPAN_MS
        leader = self.leader
        for number in range(HALF_COUNT):
            key = f"u{number}"
            named = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "P"}
            properties = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
            ext = send_ext(ENDED, 0, properties) | {"f": "4"}
            answer = led(leader, 310, ext, b"half %d" % number)
            assert answer.code == 0, answer.remark
            self.ends.append(
                {
                    "producerGroup": "P",
                    "tranStateTableOffset": answer.ext["queueOffset"],
                    "commitLogOffset": str(int(answer.ext["msgId"][16:], 16)),
                    "msgId": key,
                    "transactionId": key,
                    "commitOrRollback": "8",
                }
            )

    @staticmethod
    def is_sent(producer: Producer) -> bool:
        try:
            producer.send(Message(TOPIC, b"first"))
        except NoRouteError:
            return False
        return True

    @property
    def leader(self) -> Process:
        return leader_of(self.group)

    @staticmethod
    def offset_answer(node: Process) -> RemotingCommand:
        return ask(node.port, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})

    def end(self, node: Process, number: int) -> RemotingCommand:
        return ask(node.port, RequestCode.END_TRANSACTION, self.ends[number])

    def all_ended(self) -> bool:
        """Whether all transactions are committed; asks again about all of them."""
        node = self.leader
        return all(self.end(node, number).code == 0 for number in range(HALF_COUNT))

    def wait_until_due(self) -> None:
        """Wait until the first message falls due."""
        lead_s = self.lead_ms / 1000
        assert poll(lambda: now_ms() > self.end_ms - SPAN_MS, lead_s + PATIENCE_S)

    def judge(self) -> None:
        """Everything came once and in order, and no process ended."""
        assert poll(self.all_ended, PATIENCE_S, 0.5)
        assert poll(lambda: now_ms() > self.end_ms, PATIENCE_S)
        with PullConsumer(self.group.namesrv, "judge", timeout_s=PATIENCE_S) as consumer:
            count = TIMED_COUNT + DELAYED_COUNT
            assert poll(lambda: has_as_many(consumer, TOPIC, count), PATIENCE_S, 0.2)
            found = everything(consumer, TOPIC)
            ended = everything(consumer, ENDED)
        timed = [int(each.body) for each in found if not each.body.startswith(b"level")]
        assert sorted(timed) == list(range(TIMED_COUNT)), "each exactly once"
        levels = [each.body for each in found if each.body.startswith(b"level")]
        assert sorted(levels) == sorted(b"level %d" % n for n in range(DELAYED_COUNT))
        for message in found:
            due_ms = message.properties.get("TIMER_OUT_MS")
            assert due_ms is None or message.store_timestamp_ms >= int(due_ms), "never early"
        by_storing = sorted(
            (each for each in found if not each.body.startswith(b"level")),
            key=lambda each: each.physical_offset,
        )
        assert [int(each.body) for each in by_storing] == list(range(TIMED_COUNT)), "in order"
        assert sorted(each.body for each in ended) == sorted(
            b"half %d" % n for n in range(HALF_COUNT)
        )
        assert [node.pid for node in self.group.nodes] == self.pids, "no process ended"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    if lacking := lacking_preload():
        pytest.skip(lacking)
    with Group(tmp_path, settings=SMALL_SEGMENTS + NOTHING_KEPT) as group:
        controls = {}
        for node in group.nodes:
            side = tmp_path / f"{node.name}-faults"
            side.mkdir()
            controls[node.name] = attach_process(
                node, tmp_path / node.name, side, with_journal=False
            )
        begun_s = time.monotonic()
        group.start()
        group.wait_listening()
        leader_of(group)
        yield Stage(group, controls, time.monotonic() - begun_s)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_nobody_stops_when_nobody_gives_what_the_leaders_disk_does_not(stage: Stage) -> None:
    stage.wait_until_due()
    assert any(refuses_unread(stage, number) for number in range(HALF_COUNT))
    stage.judge()


def refuses_unread(stage: Stage, number: int) -> bool:
    """End a transaction that the leader cannot read while nobody else answers; whether it still led and tried to.

    It leads for as long as its followers were silent a moment: on a slow machine that is over sooner.
    """
    assert poll(lambda: stage.offset_answer(stage.leader).code == 0, PATIENCE_S)
    leader = stage.leader
    others = [node for node in stage.group.nodes if node is not leader]
    control = stage.controls[leader.name]
    control.set_rules(UNREADABLE)
    for node in others:
        node.pause()
    try:
        answer = stage.end(leader, number)
        assert answer.code == 14, f"refused, and it may be tried again: {answer.remark}"
        return control.hits() > 0
    finally:
        for node in others:
            node.resume()
        control.set_rules()


def test_a_leader_whose_disk_keeps_nothing_hands_over(stage: Stage) -> None:
    stage.wait_until_due()
    leader = stage.leader
    control = stage.controls[leader.name]
    control.set_rules(UNREADABLE)
    others = {node.address for node in stage.group.nodes if node is not leader}
    assert poll(lambda: brokers_of(stage.group).get(0) in others, PATIENCE_S), "another one leads"
    old = {"offset": stage.ends[0]["commitLogOffset"]}
    viewed = led(leader, RequestCode.VIEW_MESSAGE_BY_ID, old)
    assert viewed.code == 0, f"the new leader has it: {viewed.remark}"
    assert b"half 0" in viewed.body
    pulled: list[RemotingCommand] = []

    def is_refused() -> bool:
        """Whether it says why; while the lead moves, it refuses for that."""
        place = pull_ext("RMQ_SYS_TRANS_HALF_TOPIC")
        pulled[:] = [ask(leader.port, RequestCode.PULL_MESSAGE, place)]
        assert pulled[0].code == 14
        return f"is damaged on {leader.name}" in (pulled[0].remark or "")

    assert poll(is_refused, PATIENCE_S), pulled[0].remark
    stage.judge()
    assert "timed messages wait" in leader.log.read_text()
    assert control.hits() > 0
