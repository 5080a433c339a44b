"""All faults, by the specifications that the command line has.

A specification is a word, or a word with a choice: `kill:leader`, `partition:ring`, `flap`. Without a choice
the first one listed is taken. docs/nemeses.md describes each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jepsen.nemeses import damage, disk
from jepsen.nemeses.api import SCOPES, Fault, Scope
from jepsen.nemeses.busy_disk import BusyDisk
from jepsen.nemeses.clock import CLOCK_FAULTS, ClockFault, ShiftClocks
from jepsen.nemeses.damaged import DamageAll, DamageOne, OldCopy, Wiped
from jepsen.nemeses.disk import BadDisk, DiskRules, FullAtVote, LoseUnsynced
from jepsen.nemeses.limits import CPU, MEMORY, Limited
from jepsen.nemeses.network import (
    CutLinks,
    Flap,
    HalfOpen,
    ReplayFrames,
    ShapeLinks,
    SmallPackets,
    Unplug,
)
from jepsen.nemeses.partitions import PARTITIONS, Partition
from jepsen.nemeses.preload import Rule
from jepsen.nemeses.process import (
    CrashLoop,
    Kill,
    KillInElection,
    KillInRecovery,
    MachineCrash,
    Pause,
    RollingRestart,
    SameIdTwice,
    Stall,
    Terminate,
)
from jepsen.nemeses.transfer import Transfer
from jepsen.nemeses.votes import VoteTwice
from jepsen.systems.api import Shape


class UnknownFaultError(ValueError):
    """No fault has this name, or not with this choice; the text lists those that there are."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """Faults of one word.

    Attributes:
        choices: what may stand after the colon; empty when nothing may.
        make: the fault of a whole specification and its choice.
    """

    choices: tuple[str, ...]
    make: Callable[[str, str], Fault]


def _partition(spec: str, choice: str) -> Fault:
    found: Partition = next(each for each in PARTITIONS if each == choice)
    return CutLinks(spec, found)


def _scope(choice: str) -> Scope:
    return next(each for each in SCOPES if each == choice)


def _shaped(shape: Shape, *, with_clients: bool) -> FaultKind:
    return FaultKind((), lambda spec, _: ShapeLinks(spec, shape, with_clients=with_clients))


def _clock(spec: str, choice: str) -> Fault:
    kind: ClockFault = next(each for each in CLOCK_FAULTS if each == choice)
    return ShiftClocks(spec, kind)


def _bad_disk(scopes: tuple[Scope, ...], text: str, *rules: Rule) -> FaultKind:
    return FaultKind(
        scopes, lambda spec, choice: BadDisk(spec, _scope(choice), DiskRules(rules, text))
    )


def _disk_full(spec: str, choice: str) -> Fault:
    """Make the fault for one choice of when the disk is full; any other choice names the nodes that it strikes."""
    match choice:
        case "vote":
            rules = DiskRules((disk.FULL_AT_VOTE,), "no room for the vote")
            return FullAtVote(spec, "one", rules)
        case "segment":
            rules = DiskRules((disk.FULL_AT_SEGMENT,), "no room for a segment")
            return BadDisk(spec, "leader", rules)
        case "index":
            rules = DiskRules((disk.FULL_AT_INDEX,), "no room for an index")
            return BadDisk(spec, "leader", rules)
        case "thin":
            rules = DiskRules((disk.FULL_THIN,), "no room even for what was reserved")
            return BadDisk(spec, "leader", rules)
        case _:
            return BadDisk(spec, _scope(choice), DiskRules((disk.FULL,), "the disk is full"))


_FLIPS: dict[str, damage.Damage] = {
    "log": damage.flip_log,
    "index": damage.flip_index,
    "vote": damage.flip_vote,
    "snapshot": damage.flip_snapshot,
    "derived": damage.flip_derived,
}
_RUNNING = "log-running"


def _bit_flip(spec: str, choice: str) -> Fault:
    is_running = choice == _RUNNING
    return DamageOne(spec, _FLIPS["log" if is_running else choice], is_running=is_running)


def _segment(spec: str, choice: str) -> Fault:
    if choice == "lost":
        return DamageOne(spec, damage.lose_segment)
    return OldCopy(spec, segment_only=True)


_STRIKES: tuple[Scope, ...] = ("leader", "one", "all")

_LOSSES = {"10": 0.1, "1": 0.01, "30": 0.3}

KINDS: dict[str, FaultKind] = {
    "kill": FaultKind(SCOPES, lambda spec, choice: Kill(spec, _scope(choice))),
    "term": FaultKind(SCOPES, lambda spec, choice: Terminate(spec, _scope(choice))),
    "pause": FaultKind(SCOPES, lambda spec, choice: Pause(spec, _scope(choice))),
    "stall": FaultKind(("one", "leader", "all"), lambda spec, choice: Stall(spec, _scope(choice))),
    "crash-loop": FaultKind(
        ("one", "leader"), lambda spec, choice: CrashLoop(spec, _scope(choice))
    ),
    "crash": FaultKind(_STRIKES, lambda spec, choice: MachineCrash(spec, _scope(choice))),
    "kill-in-election": FaultKind((), lambda spec, _: KillInElection(spec)),
    "kill-in-recovery": FaultKind((), lambda spec, _: KillInRecovery(spec)),
    "rolling-restart": FaultKind((), lambda spec, _: RollingRestart(spec)),
    "vote-twice": FaultKind((), lambda spec, _: VoteTwice(spec)),
    "transfer": FaultKind((), lambda spec, _: Transfer(spec)),
    "same-id-twice": FaultKind((), lambda spec, _: SameIdTwice(spec)),
    "partition": FaultKind(PARTITIONS, _partition),
    "flap": FaultKind(("one", "leader"), lambda spec, choice: Flap(spec, _scope(choice))),
    "half-open": FaultKind(("one", "leader"), lambda spec, choice: HalfOpen(spec, _scope(choice))),
    "delay": _shaped(Shape(delay_ms=50, jitter_ms=450), with_clients=True),
    "loss": FaultKind(
        tuple(_LOSSES),
        lambda spec, choice: ShapeLinks(spec, Shape(retransmit=_LOSSES[choice]), with_clients=True),
    ),
    "lost-frames": _shaped(Shape(lose=0.1), with_clients=False),
    "duplicate": _shaped(Shape(duplicate=0.2), with_clients=False),
    "reorder": _shaped(Shape(reorder=0.2), with_clients=False),
    "corrupt": _shaped(Shape(corrupt=0.01), with_clients=False),
    "bandwidth": FaultKind(
        (),
        lambda spec, _: ShapeLinks(
            spec, Shape(bytes_per_s=125_000), with_clients=False, links="any"
        ),
    ),
    "unplug": FaultKind(("leader", "one"), lambda spec, choice: Unplug(spec, _scope(choice))),
    "mtu": FaultKind((), lambda spec, _: SmallPackets(spec)),
    "replay": FaultKind((), lambda spec, _: ReplayFrames(spec)),
    "clock": FaultKind(CLOCK_FAULTS, _clock),
    "disk-full": FaultKind((*_STRIKES, "thin", "vote", "segment", "index"), _disk_full),
    "fsync-slow": _bad_disk(_STRIKES, "syncs are slow", disk.SLOW_SYNC),
    "fsync-stuck": _bad_disk(_STRIKES, "syncs take seconds", disk.STUCK_SYNC),
    "fsync-fail": _bad_disk(_STRIKES, "the next sync fails", disk.SYNC_FAILS_ONCE),
    "fsync-broken": _bad_disk(_STRIKES, "every sync fails", disk.SYNC_FAILS),
    "read-fail": _bad_disk(_STRIKES, "the next reads of the log fail", disk.READ_FAILS),
    "read-broken": _bad_disk(("leader", "one"), "every read of the log fails", disk.READS_FAIL),
    "read-only": _bad_disk(_STRIKES, "the disk is read-only", *disk.READ_ONLY),
    "lost-unsynced": FaultKind(
        SCOPES, lambda spec, choice: LoseUnsynced(spec, _scope(choice), is_torn=False)
    ),
    "torn-unsynced": FaultKind(
        SCOPES, lambda spec, choice: LoseUnsynced(spec, _scope(choice), is_torn=True)
    ),
    "busy-disk": FaultKind((), lambda spec, _: BusyDisk(spec)),
    "cpu": FaultKind(_STRIKES, lambda spec, choice: Limited(spec, _scope(choice), CPU)),
    "memory": FaultKind(_STRIKES, lambda spec, choice: Limited(spec, _scope(choice), MEMORY)),
    "torn-tail": FaultKind((), lambda spec, _: DamageOne(spec, damage.tear_tail)),
    "bit-flip": FaultKind((*_FLIPS, _RUNNING), _bit_flip),
    "damage-all": FaultKind((), lambda spec, _: DamageAll(spec)),
    "misdirected": FaultKind((), lambda spec, _: DamageOne(spec, damage.misdirect)),
    "segment": FaultKind(("lost", "old"), _segment),
    "wipe": FaultKind((), lambda spec, _: Wiped(spec)),
    "backup": FaultKind((), lambda spec, _: OldCopy(spec, segment_only=False)),
}


def named(spec: str) -> Fault:
    """Make the fault of a specification.

    Raises:
        UnknownFaultError: there is none.
    """
    word, colon, choice = spec.partition(":")
    kind = KINDS.get(word)
    if kind is None:
        raise UnknownFaultError(f"no fault is called {word!r}; there are {', '.join(KINDS)}")
    if not colon and kind.choices:
        choice = kind.choices[0]
    if choice not in (kind.choices or ("",)) or (colon and not kind.choices):
        offered = ", ".join(f"{word}:{each}" for each in kind.choices) or word
        raise UnknownFaultError(f"{spec!r} is no fault; there is {offered}")
    return kind.make(spec, choice)


def specifications() -> list[str]:
    """Return every specification, with its choice."""
    return [
        f"{word}:{choice}" if choice else word
        for word, kind in KINDS.items()
        for choice in kind.choices or ("",)
    ]
