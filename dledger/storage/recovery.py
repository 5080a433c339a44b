"""The decision tables of recovery: what can be found when a log is opened, and the action for it.

`LAST_SEGMENT` decides about the end of the log, `EARLIER_SEGMENT` about every finished segment. Each
row has a letter, which stands in log lines and errors, and an argument. A test enumerates every
combination of facts and finds exactly one row for each.

The distinction that matters: a *torn tail* is what a crash leaves of a write that was never
acknowledged; it is cut. *Corruption* is the loss of bytes that once were durable and perhaps acknowledged;
it is never cut and never skipped: the store refuses to open, naming file and byte, and in a group of
several the lost entries come back from the other members (docs/adr/0100). Three proofs distinguish them:

- an index unit is written only after its entry is durable, so a unit without its entry is a loss;
- a write batch has at most 4 MiB (or one entry) and starts only when the one before is durable, so a
  whole entry that stands further beyond a broken one than a batch reaches proves that the broken one
  was durable;
- a segment is sealed only once its successor is durable, so a sealed last segment is a loss.

A crash of the process alone keeps every unit (they are written before anything is acknowledged), so then the
distinction is exact; and opening makes those that it finds durable. After a power cut the units of the last
256 batches may be missing; damage in just these entries is then taken for a torn tail if it lies within
the last batch's reach.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar


class Seal(Enum):
    """The state of the index's end: a seal that is right in every byte, or not."""

    OPEN = "not sealed"
    SEALED = "sealed"


class Tail(Enum):
    """The kind of bytes after the last whole entry."""

    CLEAN = "nothing, or zeros to the end of the file"
    TORN = "other bytes, and no whole entry beyond the reach of one batch"
    WHOLE_BEHIND = "a whole entry beyond the reach of one batch"


class Beyond(Enum):
    """The evidence in the index that an entry existed which is not there."""

    NOTHING = "no"
    UNIT = "yes, one that fits the log's end"


class Units(Enum):
    """The outcome of comparing the whole entries' index units with the entries."""

    AGREE = "each says what its entry says"
    LACKING = "some are missing, the others agree"
    DAMAGED = "some are wrong in a way in which no entry's unit could be"
    FOREIGN = "one is the unit of another entry"


class Length(Enum):
    """A finished segment's data file, compared with where the next segment starts."""

    SHORT = "ends before"
    EXACT = "ends there"
    LONG = "goes on"


class Entries(Enum):
    """The outcome of scanning a finished segment."""

    WHOLE = "whole entries up to the next segment"
    BROKEN = "a place where the next entry is not whole"
    NOT_SCANNED = (
        "the index is sealed, its first unit fits the first header and the chain, its last the last"
    )
    FIRST_DIFFERS = (
        "the index is sealed, but its first or last unit does not fit the header or the chain"
    )


class Action(Enum):
    """The action for a finding."""

    KEEP = "take it as it is"
    REBUILD_INDEX = "write the index again from the entries"
    CUT = "remove the torn tail"
    CUT_AND_REBUILD = "remove the torn tail, write the index again"
    TRIM = "cut the data file to its entries"
    REBUILD_AND_SEAL = "write the index again, seal it, cut the data file to its entries"
    REFUSE = "raise CorruptionError: the other members have the bytes (adr/0100)"


FactT = TypeVar("FactT")


@dataclass(frozen=True, slots=True)
class DecisionRow(Generic[FactT]):
    """One row: for which facts, what, and why.

    Attributes:
        label: letter.
        when: per fact the values that the row is for; None for any.
        action: what is done.
        problem: for REFUSE: what the error says.
        why: the argument.
    """

    label: str
    when: tuple[frozenset[FactT] | None, ...]
    action: Action
    why: str
    problem: str = ""

    def matches(self, facts: tuple[FactT, ...]) -> bool:
        """Return whether the row is for these facts."""
        assert len(facts) == len(self.when), (
            f"row {self.label} is for {len(self.when)} facts, not {facts}"
        )
        return all(
            allowed is None or fact in allowed
            for fact, allowed in zip(facts, self.when, strict=True)
        )


def _only(*values: Enum) -> frozenset[Enum]:
    return frozenset(values)


LAST_SEGMENT: tuple[DecisionRow[Enum], ...] = (
    DecisionRow(
        "A",
        (_only(Seal.OPEN), _only(Tail.CLEAN), _only(Beyond.NOTHING), _only(Units.AGREE)),
        Action.KEEP,
        "An orderly end, or a crash between two writes. Also an empty segment: the crash came "
        "between its creation and the first write.",
    ),
    DecisionRow(
        "B",
        (
            _only(Seal.OPEN),
            _only(Tail.CLEAN),
            _only(Beyond.NOTHING),
            _only(Units.LACKING, Units.DAMAGED),
        ),
        Action.REBUILD_INDEX,
        "Units are written after their entries and without a sync, so a crash may lose or tear "
        "them. The entries prove themselves by two checksums; the index is derived from them.",
    ),
    DecisionRow(
        "C",
        (_only(Seal.OPEN), _only(Tail.TORN), _only(Beyond.NOTHING), _only(Units.AGREE)),
        Action.CUT,
        "A crash during a write. It was not synced, or the index would know or more would follow; "
        "so these entries were never acknowledged. Cut to the last whole entry, not further.",
    ),
    DecisionRow(
        "D",
        (
            _only(Seal.OPEN),
            _only(Tail.TORN),
            _only(Beyond.NOTHING),
            _only(Units.LACKING, Units.DAMAGED),
        ),
        Action.CUT_AND_REBUILD,
        "As C and B.",
    ),
    DecisionRow(
        "E",
        (
            _only(Seal.OPEN),
            None,
            _only(Beyond.UNIT),
            _only(Units.AGREE, Units.LACKING, Units.DAMAGED),
        ),
        Action.REFUSE,
        "The unit was written after a sync of its entry, which is now broken, cut off, or zeros. "
        "It may have been acknowledged. An older copy of the data file looks the same.",
        "the index remembers an entry that is no longer whole here",
    ),
    DecisionRow(
        "F",
        (
            _only(Seal.OPEN),
            _only(Tail.WHOLE_BEHIND),
            _only(Beyond.NOTHING),
            _only(Units.AGREE, Units.LACKING, Units.DAMAGED),
        ),
        Action.REFUSE,
        "A later batch is there, so the batch with the broken entry was durable.",
        "the entry here is not whole, but later ones are",
    ),
    DecisionRow(
        "G",
        (_only(Seal.OPEN), None, None, _only(Units.FOREIGN)),
        Action.REFUSE,
        "A whole entry stands where the index remembers another, with another term and another "
        "history. Truncation removes units before their entries, so no crash leaves this: data and "
        "index are of different ages.",
        "the index remembers another entry at this place",
    ),
    DecisionRow(
        "H",
        (_only(Seal.SEALED), None, None, None),
        Action.REFUSE,
        "A segment is sealed only once its successor is durable, and truncation removes the seal "
        "before the successor. So the successor was lost.",
        "the segment that followed is missing",
    ),
)
"""By (Seal, Tail, Beyond, Units)."""


EARLIER_SEGMENT: tuple[DecisionRow[Enum], ...] = (
    DecisionRow(
        "P",
        (_only(Length.EXACT), _only(Entries.NOT_SCANNED), None),
        Action.KEEP,
        "Finished in good order. Its bodies are verified whenever they are read.",
    ),
    DecisionRow(
        "Q",
        (_only(Length.LONG), _only(Entries.NOT_SCANNED), None),
        Action.TRIM,
        "The trim after sealing is not synced; a crash may lose it.",
    ),
    DecisionRow(
        "R",
        (
            _only(Length.EXACT, Length.LONG),
            _only(Entries.WHOLE),
            _only(Units.AGREE, Units.LACKING, Units.DAMAGED),
        ),
        Action.REBUILD_AND_SEAL,
        "A crash between the successor's creation and the seal, or between the removal of the seal "
        "and of the successor by a truncation; or the index was lost. The entries are all there.",
    ),
    DecisionRow(
        "S",
        (_only(Length.SHORT), None, None),
        Action.REFUSE,
        "A successor is created only when the entries before it are durable. Either this file was "
        "cut, or a segment between this one and the next is missing.",
        "the file ends before the next segment starts: bytes or a whole segment are missing",
    ),
    DecisionRow(
        "T",
        (_only(Length.EXACT, Length.LONG), _only(Entries.BROKEN), None),
        Action.REFUSE,
        "As S: everything before the next segment was durable.",
        "the entry here is not whole",
    ),
    DecisionRow(
        "U",
        (_only(Length.EXACT, Length.LONG), _only(Entries.WHOLE), _only(Units.FOREIGN)),
        Action.REFUSE,
        "As G.",
        "the index remembers another entry at this place",
    ),
    DecisionRow(
        "V",
        (_only(Length.EXACT, Length.LONG), _only(Entries.FIRST_DIFFERS), None),
        Action.REFUSE,
        "The chain CRC of a first entry identifies everything before it. It does not continue the "
        "segment before, or the index is not this file's: one of the files is an older copy, or "
        "the first header is damaged.",
        "the first entry does not continue the segment before",
    ),
)
"""By (Length, Entries, Units); Units.AGREE where the segment was not scanned."""


def decide(rows: Iterable[DecisionRow[Enum]], *facts: Enum) -> DecisionRow[Enum]:
    """Return the one row for these facts."""
    found = [row for row in rows if row.matches(facts)]
    assert len(found) == 1, f"{facts} match rows {[row.label for row in found]}"
    return found[0]
