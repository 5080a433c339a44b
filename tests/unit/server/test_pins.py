"""Pins of the log: who puts them, what they keep, and when retention goes on without them."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from crc32c import crc32c

from broker.server.handlers.pins import KEEP_MS_MAX, PinRequests
from broker.server.handlers.runtime_info import pins_text
from broker.server.watches.age_holds import DOUBT_MS
from broker.service.retention import ROUND_MS, RetentionRules
from broker.store.pins import PINS_MAX
from broker.store.state import BrokerState
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker
from tests.unit.server.pending import pending
from tests.unit.server.test_retention_watch import AGE_MS, RULES, SEGMENT, Bench

DAY_MS = 86_400_000
GIB = 1 << 30


class PinBench(Bench):
    """A leader with a watch, and the requests that concern pins."""

    def __init__(self, rules: RetentionRules = RULES) -> None:
        super().__init__(rules)
        leader: Any = self.leader
        self.pins = PinRequests(leader.commits, leader.router, leader.state)

    def ask(self, code: RequestCode, **ext: str) -> RemotingCommand:
        asker = Asker()
        by_code = {handler.code: handler for handler in self.pins.handlers()}
        by_code[code].serve(
            pending(asker, code), RemotingCommand(code=code, opaque=9, ext=ext, version=409)
        )
        self.leader.commit()
        decoder = FrameDecoder()
        decoder.feed(b"".join(asker.frames))
        (frame,) = decoder.frames()
        return decode_command(frame)

    def put(
        self,
        name: str = "a",
        position: int | None = None,
        keep_ms: int = 7 * DAY_MS,
        keep_bytes: int = GIB,
    ) -> RemotingCommand:
        place = {} if position is None else {"position": str(position)}
        return self.ask(
            RequestCode.PIN_LOG, name=name, keepMs=str(keep_ms), keepBytes=str(keep_bytes), **place
        )

    def states(self) -> dict[str, tuple[int, bool]]:
        pins = self.leader.state.retention.pins
        return {name: (pin.position, pin.is_overrun) for name, pin in pins.items()}


def test_what_is_pinned_stays_until_the_pin_is_moved() -> None:
    bench = PinBench()
    bench.fill(2)
    place = bench.log.end_position
    answer = bench.put(position=place)
    assert (answer.code, answer.ext["position"]) == (ResponseCode.SUCCESS, str(place))
    bench.fill(4)
    bench.pass_ms(2 * AGE_MS)
    assert place - SEGMENT <= bench.beginning <= place
    assert bench.watch.held_up is not None
    assert bench.watch.held_up.what == "the pin 'a'"
    assert bench.watch.held_up.position == place
    bench.put(position=place + 2 * SEGMENT)
    bench.pass_ms(2 * ROUND_MS)
    assert place + SEGMENT <= bench.beginning <= place + 2 * SEGMENT
    assert bench.ask(RequestCode.UNPIN_LOG, name="a").code == ResponseCode.SUCCESS
    bench.pass_ms(2 * ROUND_MS)
    assert bench.beginning > place + 2 * SEGMENT
    assert bench.states() == {}


def test_without_a_position_all_that_is_kept_is_pinned() -> None:
    bench = PinBench()
    bench.fill(3)
    bench.pass_ms(2 * AGE_MS)
    beginning = bench.beginning
    assert beginning > 0
    assert bench.put().ext["position"] == str(beginning)
    bench.fill(3)
    bench.pass_ms(2 * AGE_MS)
    assert bench.beginning == beginning


@pytest.mark.parametrize("bound", ["time", "size"])
def test_past_its_bounds_retention_goes_on_and_says_so(
    bound: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bench = PinBench()
    bench.fill(1)
    if bound == "time":
        bench.put(keep_ms=3 * AGE_MS)
    else:
        bench.put(keep_bytes=6 * SEGMENT)
    bench.fill(3)
    bench.pass_ms(2 * AGE_MS)
    assert bench.beginning == 0
    if bound == "time":
        bench.pass_ms(2 * AGE_MS)
    else:
        bench.fill(4)
        bench.pass_ms(2 * ROUND_MS)
    assert bench.beginning > SEGMENT
    assert bench.states() == {"a": (0, True)}
    (line,) = [line for line in caplog.messages if line.startswith("pin-overrun")]
    assert "name=a position=0 by=1.2.3.4:5" in line
    bench.fill(3)
    bench.pass_ms(2 * AGE_MS)
    assert len([line for line in caplog.messages if line.startswith("pin-overrun")]) == 1


def test_a_disk_that_is_fairly_full_does_not_wait_for_an_archive() -> None:
    bench = PinBench(RetentionRules(reserved_ms=AGE_MS, is_any_hour=True, bytes_max=3 * SEGMENT))
    bench.put()
    bench.fill(5)
    bench.pass_ms(2 * AGE_MS)
    assert bench.beginning == 0
    bench.percents["n2"] = 76.0
    bench.pass_ms(ROUND_MS)
    assert bench.beginning > SEGMENT
    assert bench.leader.state.retention.cause == "disk"
    assert bench.states() == {"a": (0, True)}


def test_a_place_that_the_log_has_not_is_refused() -> None:
    bench = PinBench()
    bench.fill(3)
    bench.pass_ms(2 * AGE_MS)
    gone = bench.put(position=bench.beginning - 1)
    assert gone.code == ResponseCode.SYSTEM_ERROR
    kept_from = bench.leader.state.retention.index
    assert f"is forgotten: the log begins with entry {kept_from}, at position" in (
        gone.remark or ""
    )
    beyond = bench.put(position=bench.log.end_position + 10_000)
    assert "beyond the end of the log" in (beyond.remark or "")
    assert bench.states() == {}


def test_there_are_only_so_many() -> None:
    bench = PinBench()
    for n in range(PINS_MAX):
        assert bench.put(f"a{n}").code == ResponseCode.SUCCESS
    assert "there are 16 pins already" in (bench.put("one more").remark or "")
    assert bench.put("a3").code == ResponseCode.SUCCESS, "it is moved"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"name": ""}, "1 to 64 printable characters"),
        ({"name": "x" * 65}, "1 to 64 printable characters"),
        ({"name": "a\nb"}, "1 to 64 printable characters"),
        ({"position": -1}, "before every log"),
        ({"keep_ms": 0}, "keepMs=0"),
        ({"keep_ms": KEEP_MS_MAX + 1}, "is not a number from 1 to"),
        ({"keep_bytes": 0}, "keepBytes=0"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any, text: str) -> None:
    bench = PinBench()
    answer = bench.put(**wrong)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert text in (answer.remark or "")
    assert bench.states() == {}


def test_a_pin_that_is_not_there_cannot_be_removed() -> None:
    bench = PinBench()
    bench.put("a")
    answer = bench.ask(RequestCode.UNPIN_LOG, name="b")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark == "there is no pin 'b'; there are: 'a'"


def test_a_snapshot_has_the_pins_and_the_digest_tells_them_apart() -> None:
    bench = PinBench()
    bench.fill(3)
    before = bench.leader.state.digests()
    bench.put("a", keep_ms=AGE_MS)
    bench.put("b")
    bench.put("b", position=SEGMENT)
    bench.pass_ms(3 * AGE_MS)
    state, twin = bench.leader.state, BrokerState()
    twin.restore(state.snapshot())
    assert "pins" not in before
    assert state.digests()["pins"]
    assert twin.digests() == state.digests()
    assert list(twin.retention.pins.items()) == list(state.retention.pins.items())


def test_a_state_without_pins_has_the_digest_that_older_versions_wrote() -> None:
    """Their snapshots are refused otherwise, and a log without its beginning needs one."""
    bench = PinBench()
    bench.fill(1)
    state = bench.leader.state
    names = "queues key_index topics groups offsets locks schedule recent_sends transactions timers sinks retention"
    expected = {name: state.digests()[name] for name in (*names.split(), "settings", "refusals")}
    assert state.digest() == crc32c(repr((state.applied_index, expected)).encode())


@pytest.mark.parametrize("sends", [False, True])
def test_a_clock_that_leaps_ends_no_pin_while_it_is_doubted(*, sends: bool) -> None:
    bench = PinBench(RetentionRules(reserved_ms=3 * DAY_MS, bytes_max=3 * SEGMENT))
    bench.put(keep_ms=7 * DAY_MS)
    bench.fill(6)
    bench.pass_ms(5 * ROUND_MS)
    bench.leader.now_ms += 8 * DAY_MS
    if sends:
        bench.fill(1)
    bench.pass_ms(DOUBT_MS - ROUND_MS, step_ms=60_000)
    assert (bench.beginning, bench.states()) == (0, {"a": (0, False)})
    bench.leader.now_ms -= 8 * DAY_MS  # a leader whose clock is right
    bench.lead_anew()
    bench.pass_ms(5 * ROUND_MS)
    assert (bench.beginning, bench.states()) == (0, {"a": (0, False)})


def test_a_pin_grows_old_while_nothing_is_sent() -> None:
    """Retention counts by the time of now; the log's own stands still then."""
    bench = PinBench()
    bench.put("a", keep_ms=AGE_MS)
    pins, put_ms = bench.leader.state.retention.pins, bench.leader.state.last_store_ms
    for age_ms, state in ((0, "holds"), (AGE_MS, "holds"), (AGE_MS + 1, "over")):
        (told,) = json.loads(pins_text(pins, now_ms=put_ms + age_ms, end=5)).values()
        assert (told["ageMs"], told["state"], told["bytes"]) == (age_ms, state, 5)


def test_who_asks_for_what_is_due_is_told_of_the_pin_that_keeps_all_of_it() -> None:
    bench = PinBench(RetentionRules(reserved_ms=AGE_MS, delete_hours=frozenset({4})))
    bench.put(position=0)
    assert bench.watch.ask() == "", "nothing is due"
    bench.fill(4)
    bench.pass_ms(2 * AGE_MS)
    assert bench.watch.ask() == "the pin 'a', at position 0"
    bench.put(position=2 * SEGMENT)
    assert bench.watch.ask() == "", "some of it goes"
    bench.leader.commit()
    assert SEGMENT < bench.beginning <= 2 * SEGMENT
    assert bench.watch.ask() == f"the pin 'a', at position {2 * SEGMENT}"


def test_who_asks_for_what_is_due_is_told_of_a_clock_that_is_doubted() -> None:
    bench = PinBench(RetentionRules(reserved_ms=AGE_MS, delete_hours=frozenset({4})))
    bench.fill(4)
    bench.leader.now_ms += 365 * DAY_MS
    bench.pass_ms(ROUND_MS)
    assert "nothing goes by its age for 60 minutes" in bench.watch.ask()
    assert bench.beginning == 0
    bench.pass_ms(DOUBT_MS)
    assert bench.watch.ask() == ""
    bench.leader.commit()
    assert bench.beginning > 0
