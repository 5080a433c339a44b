"""Judges that no process ended by itself: a broken invariant stops one, and the next cure would hide that.

The model: none. The onlooker notes `ended` of each process that nobody had killed or stopped, with value
{"status": ..., "words": the last line of its log, "excused": whether a fault of the run may be why}. A node is right
to end when it cannot trust its disk any more.

    ended  a process ended by itself, and no fault of the run excuses it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import OBSERVER, Op
from jepsen.history.values import EndSeen, shaped

NAME: Final = "ends"
ENDED: Final = "ended"


def check_ends(ops: Sequence[Op]) -> CheckResult:
    """Report each process that ended although no fault had ended it."""
    ended = [
        (op, shaped(op.value, EndSeen)) for op in ops if op.process == OBSERVER and op.f == ENDED
    ]
    anomalies = [
        Anomaly(
            "ended",
            f"{op.node} ended by itself with status {end['status']}: {end['words']}",
            (op.index,),
        )
        for op, end in ended
        if not end["excused"]
    ]
    excused = len(ended) - len(anomalies)
    return judged(NAME, anomalies, {"ended": len(ended), "excused": excused})
