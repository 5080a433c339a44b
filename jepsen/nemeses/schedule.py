"""The schedule of faults: drawn from the seed, each fault followed by its cure.

Each fault has a task of its own: quiet for a while, injected, held, cured, and again, so that the faults of a
mixed run overlap. Injecting and curing themselves happen one at a time: two of them may touch the same process.
A fault that is alone strikes a system that has come together again, as far as that takes no longer than
WHOLE_S; several at a time do not wait for each other.

In the history a fault is three operations of "nemesis", all `info`, with f = its name and a value

    {"do": "inject"}                                             it begins
    {"do": "inject", "done": what was done}                      it is in force
    {"do": "cure", "done": what was undone, "took_ms": ...}      it is over

With "broken" in the second: the system's answer to the fault was wrong in itself. With "missing" in the second, which
has an empty "done" then, or in the third: nothing was struck, and it is not counted.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from jepsen.history.ops import NEMESIS, OpLog
from jepsen.nemeses.api import Fault, NothingStruckError, PromiseBrokenError
from jepsen.systems.api import Subject

WHOLE_S: Final = 10.0
MISSES_MAX: Final = (
    10  # in a row, of so many rounds: what strikes nothing then does not later, either
)
CURE_S: Final = 60.0  # a cure starts nodes and waits for them; longer than that it hangs


@dataclass(frozen=True, slots=True)
class Pace:
    """The length of a fault, and of the quiet between two, in seconds: bounds of an even draw."""

    hold_s: tuple[float, float] = (1.0, 4.0)
    quiet_s: tuple[float, float] = (1.5, 4.0)


class FaultSchedule:
    """Injects and cures the faults of a run.

    Args:
        faults: prepared already; `lacking` was asked.
        system: whom they strike.
        log: the history.
        seed: every fault draws from a chance of its own, so that leaving one out changes no other.
        pace: how long and how often.
        rounds: after so many strikes of each fault it is over, or when nothing was struck MISSES_MAX times in a row;
            None for no end.

    Attributes:
        injected: how often each fault was injected.
        crashes: what faults raised, and rounds that were given up; the run then proves nothing.
        may_end_nodes: whether a node is right to end by itself for one of them.
    """

    def __init__(
        self,
        faults: Sequence[Fault],
        system: Subject,
        log: OpLog,
        *,
        seed: int,
        pace: Pace,
        rounds: int | None = None,
    ) -> None:
        self.injected: dict[str, int] = {fault.name: 0 for fault in faults}
        self.crashes: list[str] = []
        self.may_end_nodes = any(fault.may_end_nodes for fault in faults)
        self._faults = faults
        self._system = system
        self._log = log
        self._seed = seed
        self._pace = pace
        self._rounds = rounds
        self._in_force: dict[str, bool] = {}  # by name: whether it was counted
        self._missed = dict.fromkeys(self.injected, 0)  # since something was struck
        self._turn = trio.Lock()

    async def run(self) -> None:
        """Break things until cancelled, or for all rounds; what is broken then is left to `cure_all`."""
        async with trio.open_nursery() as nursery:
            for number, fault in enumerate(self._faults):
                chance = random.Random(f"{self._seed}/{number}/{fault.name}")
                nursery.start_soon(self._strike, fault, chance, name=f"fault {fault.name}")
            if self._rounds is None:
                # Faults that crashed have ended, and there may be none: the run goes on all the same.
                await trio.sleep_forever()

    async def cure_all(self) -> None:
        """Cure everything; where nothing is in force that does nothing, and is not noted."""
        for fault in self._faults:
            await self._cure(fault)

    async def _strike(self, fault: Fault, chance: random.Random) -> None:
        while self._rounds is None or self.injected[fault.name] < self._rounds:
            await trio.sleep(chance.uniform(*self._pace.quiet_s))
            if len(self._faults) == 1:
                await self._system.wait_whole(WHOLE_S)
            hold_s = chance.uniform(*self._pace.hold_s)
            if not await self._inject(fault, chance):
                return
            await trio.sleep(hold_s)
            await self._cure(fault)
        await trio.sleep(self._pace.quiet_s[1])  # the last one is to be overcome, too

    async def _inject(self, fault: Fault, chance: random.Random) -> bool:
        """Inject a fault and note how that went; False if the fault is not to be used again."""
        async with self._turn:
            self._in_force[fault.name] = False
            self._note(fault, {"do": "inject"})
            try:
                done = await fault.inject(self._system, chance)
            except PromiseBrokenError as error:
                self.injected[fault.name] += 1
                self._note(fault, {"do": "inject", "done": "", "broken": str(error)})
                return True
            except NothingStruckError as error:
                del self._in_force[fault.name]
                self._note(fault, {"do": "inject", "done": "", "missing": str(error)})
                return self._may_miss_again(fault, error)
            except Exception as error:  # noqa: BLE001 - the root of a fault: what it raises is a finding
                self._note_crash(fault, "inject", error)
                return False
            self._missed[fault.name] = 0
            self._in_force[fault.name] = bool(done)
            self.injected[fault.name] += bool(done)
            self._note(fault, {"do": "inject", "done": done})
        return True

    def _may_miss_again(self, fault: Fault, error: NothingStruckError) -> bool:
        """Count a strike that struck nothing; give up rounds that would go on so for as long as all may take."""
        self._missed[fault.name] += 1
        if self._rounds is None or self._missed[fault.name] < MISSES_MAX:
            return True
        self.crashes.append(
            f"{fault.name} struck nothing {MISSES_MAX} times in a row, the last time because: {error}"
        )
        return False

    async def _cure(self, fault: Fault) -> None:
        """Cure a fault, also while the run is cancelled; one that met nothing is taken back from the counts."""
        # Not even the end of the run may leave a cure half done.
        with trio.CancelScope(shield=True):
            async with self._turn:
                begun_ns = self._log.now_ns()
                is_unmet = self._in_force.get(fault.name, False) and not fault.has_struck(
                    self._system
                )
                try:
                    with trio.fail_after(CURE_S):
                        done = await fault.cure(self._system)
                except Exception as error:  # noqa: BLE001 - as above
                    self._note_crash(fault, "cure", error)
                    return
                if done or fault.name in self._in_force:
                    # Blows that were dealt while it was injected leave nothing to undo, and end here all the same.
                    took_ms = round((self._log.now_ns() - begun_ns) / 1e6)
                    value = {
                        "do": "cure",
                        "done": done or "nothing was left to undo",
                        "took_ms": took_ms,
                    }
                    if is_unmet:
                        self.injected[fault.name] -= 1
                        value["missing"] = "nobody met it"
                    self._note(fault, value)
                self._in_force.pop(fault.name, None)

    def _note(self, fault: Fault, value: dict[str, object]) -> None:
        self._log.add(NEMESIS, "info", fault.name, value)

    def _note_crash(self, fault: Fault, what: str, error: Exception) -> None:
        text = f"{fault.name}, {what}: {type(error).__name__}: {error}"
        self.crashes.append(text)
        self._log.add(NEMESIS, "info", fault.name, {"do": what}, error=text)
