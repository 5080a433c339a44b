"""Judges that the system recovers once every fault is cured.

The model: none. The onlooker notes `healed` when everything was cured, with value {"whole": whether one node leads and
all others follow it, "waited_ms": until then}. A system that does not is not judged wrong, but what the last reads of
such a run miss proves nothing: the verdict is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jepsen.checkers.results import CheckResult, judged
from jepsen.history.ops import OBSERVER, Op
from jepsen.history.values import Healed, shaped

NAME: Final = "recovery"
HEALED: Final = "healed"


def check_recovery(ops: Sequence[Op]) -> CheckResult:
    """Judge by what the observer saw after the last cure."""
    healed = [op for op in ops if op.process == OBSERVER and op.f == HEALED]
    if not healed:
        return judged(NAME, (), None, "nobody looked whether the system came together again")
    value = shaped(healed[-1].value, Healed)
    waited_ms = value["waited_ms"]
    why = "" if value["whole"] else f"not together again {waited_ms} ms after everything was cured"
    return judged(NAME, (), {"waited_ms": waited_ms}, why)
