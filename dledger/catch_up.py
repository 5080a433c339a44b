"""Old entries for a member that lacks them: read beside the loop, as the core asks for them (docs/adr/0187).

Without tasks and clock; when a load runs, and in which thread, is the runtime's and the simulator's to say.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.codec.entry import EntryFormatError
from dledger.raft.effects import LoadEntries
from dledger.raft.entry import Entry
from dledger.raft.ids import Index
from dledger.storage.log_reader import CheckPlan
from dledger.storage.read_errors import is_shortage
from dledger.storage.segmented_log import SegmentedLog


@dataclass(slots=True)
class EntriesLoad:
    """The read of the entries of one request; `run` may run in any thread.

    Attributes:
        want: what the core asked for.
        plan: what is read: all of it, or as much as stands in one segment.
        entries: what was read, and verified; empty if the disk did not give all of it.
        refusal: the reason for which it cannot be read now, a shortage; None: it is none.
    """

    want: LoadEntries
    plan: CheckPlan
    entries: tuple[Entry, ...] = ()
    refusal: OSError | None = None

    @classmethod
    def planned(cls, log: SegmentedLog, want: LoadEntries) -> EntriesLoad:
        """Plan the read, within the same step: later the log may have lost its beginning.

        Raises:
            OSError: where they stand cannot be looked up now.
        """
        size_bytes = log.layout.position_of(want.end) - log.layout.position_of(want.first)
        return cls(want, log.plan_check(want.first, size_bytes, last=Index(want.end - 1)))

    def run(self) -> None:
        """Read and verify. Damage is not dealt with here: whoever sends what is missing meets it."""
        try:
            self.entries = tuple(self.plan.read())
        except OSError as error:
            self.refusal = error if is_shortage(error) else None
        except EntryFormatError:
            return
