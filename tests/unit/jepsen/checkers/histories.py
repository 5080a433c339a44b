"""Histories written by hand: a line for each operation, 10 ms apart."""

from typing import Any

from jepsen.checkers.results import CheckResult
from jepsen.history.ops import Op, OpType

STEP_NS = 10_000_000
Q = "orders/broker-a/0"


class History:
    """Build one by saying what happened."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.now_ns = 0
        self._running: dict[int, tuple[str, Any]] = {}

    def add(
        self, process: int | str, type_: OpType, f: str, value: Any = None, node: str = ""
    ) -> None:
        self.ops.append(Op(len(self.ops), self.now_ns, process, type_, f, value, node=node))
        self.now_ns += STEP_NS

    def wait(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def begin(self, process: int, f: str, value: Any = None) -> None:
        self._running[process] = (f, value)
        self.add(process, "invoke", f, value)

    def end(self, process: int, told: Any = None, type_: OpType = "ok") -> None:
        f, value = self._running.pop(process)
        self.add(process, type_, f, value if told is None else told)

    def do(self, process: int, f: str, value: Any, told: Any = None, type_: OpType = "ok") -> None:
        self.begin(process, f, value)
        self.end(process, told, type_)

    def send(
        self,
        key: str,
        offset: int | None = None,
        *,
        queue: str = Q,
        process: int = 0,
        uniq: str = "",
    ) -> None:
        """An acknowledged send; without an offset one that ended unknown."""
        asked = {"key": key, "queue": queue}
        if offset is None:
            self.do(process, "send", asked, type_="info")
        else:
            self.do(process, "send", asked, {**asked, "offset": offset, "uniq": uniq})

    def poll(self, *messages: list[Any], queue: str = Q, process: int = 9) -> None:
        self.do(process, "poll", None, {queue: list(messages)})

    def drained(self, end: int = 0, *, queue: str = Q, process: int = 9) -> None:
        self.do(process, "drained", None, {queue: end})


def kinds(result: CheckResult) -> list[str]:
    return [anomaly.kind for anomaly in result.anomalies]


def assert_shows_only(result: CheckResult, kind: str) -> None:
    """The history shows exactly this anomaly, once, and says where."""
    assert kinds(result) == [kind], result.anomalies
    assert result.valid is False
    assert result.anomalies[0].text
    assert result.anomalies[0].ops
