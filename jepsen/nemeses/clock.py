"""Faults of clocks. They need the preload library (`preload.py`), so nodes must be started with it.

The kernel's clocks are left alone: what a node reads is shifted by an offset that may change while it runs.
"""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import Final, Literal, get_args

import trio

from jepsen.nemeses.api import Fault
from jepsen.nemeses.preload import Control, attach, control_of, lacking_preload
from jepsen.nemeses.process import is_serving, revive, struck
from jepsen.systems.api import System

ClockFault = Literal["jump", "strobe", "skew", "ahead", "behind", "past", "future", "monotonic"]
CLOCK_FAULTS: tuple[ClockFault, ...] = get_args(ClockFault)

SECOND_NS: Final = 1_000_000_000
JUMP_S: Final = 3600
SKEW_S: Final = 300
STROBE_S: Final = 0.1
STROBE_ROUNDS: Final = 50
SUSPEND_S: Final = 60
PAST: Final = datetime(1970, 1, 2, tzinfo=UTC)
FUTURE: Final = datetime(
    2106, 2, 8, tzinfo=UTC
)  # beyond the last second of an unsigned 32-bit clock


def _set_wall(control: Control, offset_s: int) -> None:
    """Set a wall clock wrong by so much; the monotonic clock goes on, and would go back otherwise."""
    _, monotonic_ns = control.clocks()
    control.shift_clocks(realtime_ns=offset_s * SECOND_NS, monotonic_ns=monotonic_ns)


class ShiftClocks(Fault):
    """One node's (skew: every node's) wall clock, or monotonic clock, shows something else.

    jump       an hour on or back, at once
    strobe     an hour on and back again ten times a second
    skew       every node up to five minutes off
    ahead, behind
               the node starts again with its clock five minutes wrong
    past, future
               the node starts again and believes it is January 1970, or February 2106
    monotonic  the node is paused for a moment in which its monotonic clock goes on by a minute: a suspend

    A node that believes it is 1970 or 2106 may refuse to start.
    """

    def __init__(self, name: str, kind: ClockFault) -> None:
        self.name = name
        self.may_end_nodes = kind in {"past", "future"}
        self._kind = kind

    def lacking(self) -> str | None:
        """Return what this machine lacks: it needs a C compiler."""
        return lacking_preload()

    def prepare(self, system: System, chance: random.Random) -> None:
        """Let nodes start with the library."""
        attach(system)

    async def inject(self, system: System, chance: random.Random) -> str:
        """Shift the clocks that the fault names."""
        if self._kind == "skew":
            return self._skew(system, chance)
        name = (struck(system, "one", chance) or [system.nodes[0].name])[0]
        control = control_of(system, name)
        match self._kind:
            case "jump":
                seconds = chance.choice([JUMP_S, -JUMP_S])
                _set_wall(control, seconds)
                return f"the clock of {name} jumps by {seconds} s"
            case "strobe":
                for at in range(2 * STROBE_ROUNDS):
                    _set_wall(control, 0 if at % 2 else JUMP_S)
                    await trio.sleep(STROBE_S)
                return f"the clock of {name} jumped by {JUMP_S} s and back {STROBE_ROUNDS} times"
            case "ahead" | "behind":
                seconds = SKEW_S if self._kind == "ahead" else -SKEW_S
                await self._reboot(system, name, seconds)
                return f"{name} starts again with its clock off by {seconds:+d} s"
            case "past" | "future":
                believed = PAST if self._kind == "past" else FUTURE
                await self._reboot(system, name, round(believed.timestamp() - time.time()))
                return f"{name} starts again and believes it is {believed:%Y-%m-%d}"
            case "monotonic":
                node = system.node(name)
                node.pause()
                realtime_ns, monotonic_ns = control.clocks()
                monotonic_ns += SUSPEND_S * SECOND_NS  # again and again: no such clock stands still
                control.shift_clocks(realtime_ns=realtime_ns, monotonic_ns=monotonic_ns)
                node.resume()
                return f"{name} was suspended; its monotonic clock went on by {SUSPEND_S} s"

    def _skew(self, system: System, chance: random.Random) -> str:
        done: list[str] = []
        for node in system.nodes:
            seconds = chance.randint(-SKEW_S, SKEW_S)
            _set_wall(control_of(system, node.name), seconds)
            done.append(f"{node.name} {seconds:+d} s")
        return f"clocks are off: {', '.join(done)}"

    async def _reboot(self, system: System, name: str, offset_s: int) -> None:
        node = system.node(name)
        node.kill()
        _set_wall(control_of(system, name), offset_s)
        node.start()
        # The cure may follow soon, and must not set the clock right before it was read.
        await is_serving(node)

    async def cure(self, system: System) -> str:
        """Correct the wall clocks and start nodes that have ended; monotonic clocks are never set back."""
        right: list[str] = []
        for node in system.nodes:
            control = control_of(system, node.name)
            realtime_ns, monotonic_ns = control.clocks()
            if realtime_ns:
                control.shift_clocks(monotonic_ns=monotonic_ns)
                right.append(node.name)
        started = revive(system.nodes)
        done = [f"the clocks of {', '.join(right)} are right"] if right else []
        return "; ".join(done + ([f"started {', '.join(started)}"] if started else []))
