"""The configuration in force at a member: that of the last entry in its log that names one (thesis 4.1).

It is in force as soon as the entry is appended, committed or not, and no longer when the entry is cut. What a log's
entries name need not be read again at a start: each entry that changed something is noted, with its index and term,
in the hard state, which is durable before the entry is. So a note may be of an entry that is not in the log (it was
cut, or a crash came before it was written): it says nothing then. An entry of the log without its note cannot be.

Without notes the configuration is the one that the member was started with; a group whose members never change notes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dledger.raft.configuration import Configuration
from dledger.raft.ids import NO_INDEX, EntryId, Index
from dledger.raft.log_layout import LogLayout


@dataclass(frozen=True, slots=True)
class ConfigurationNote:
    """An entry of the log that changed the configuration.

    Attributes:
        is_settled: the entry is known to be committed, and was durable here: it holds whatever the log shows.
    """

    entry_id: EntryId
    configuration: Configuration
    is_settled: bool = False


class ConfigurationLog:
    """The configurations of one member's log.

    Invariant: at most one note is settled, the first; the others are of later entries, which may be cut.

    Attributes:
        in_force: the one that holds now. Changed in here only.
        index: of the entry that put it in force; 0: none, it is the first one.
        is_unsaved: there is a note that the hard state does not have.
    """

    __slots__ = ("_first", "_first_index", "_notes", "in_force", "index", "is_unsaved")

    def __init__(
        self,
        first: Configuration,
        notes: tuple[ConfigurationNote, ...],
        log: LogLayout,
        first_index: Index | None = NO_INDEX,
    ) -> None:
        """Find the configuration in force.

        Args:
            first: the one without notes.
            notes: as the hard state has them.
            log: of this member.
            first_index: the entry from which on `first` held; None: nobody knows.
        """
        self._first = first
        self._first_index = first_index
        self._notes = notes
        self.is_unsaved = False
        self.in_force = first
        self.index = NO_INDEX
        self.cut(log)

    @property
    def notes(self) -> tuple[ConfigurationNote, ...]:
        """The notes that the hard state has to have."""
        return self._notes

    def at(self, log: LogLayout, index: Index) -> Configuration | None:
        """Return the configuration that was in force at an entry of the log; None: it is not known any more."""
        if self._settled_index > index:
            return None
        held = [note for note in self._held(log) if note.entry_id.index <= index]
        if held:
            return held[-1].configuration
        is_known = self._first_index is not None and index >= self._first_index
        return self._first if is_known else None

    def before(self, log: LogLayout) -> Configuration:
        """Return the configuration that the one in force took the place of."""
        held = self._held(log)
        return held[-2].configuration if len(held) > 1 else self._first

    def appended(self, entry_id: EntryId, configuration: Configuration) -> bool:
        """Put the configuration of a new entry in force; return whether it says anything new."""
        if entry_id.index <= self._settled_index or configuration.says_same(self.in_force):
            return False
        others = tuple(note for note in self._notes if note.entry_id != entry_id)
        self._notes = (*others, ConfigurationNote(entry_id, configuration))
        self.is_unsaved = True
        self.in_force, self.index = configuration, entry_id.index
        return True

    def cut(self, log: LogLayout) -> bool:
        """Look at a log whose end was cut; return whether another configuration is in force now."""
        held = self._held(log)
        before = self.in_force
        self.in_force = held[-1].configuration if held else self._first
        self.index = held[-1].entry_id.index if held else NO_INDEX
        return not self.in_force.says_same(before)

    def settle(self, log: LogLayout, index: Index) -> None:
        """Forget what can never be in force again: everything up to `index` is committed, and durable here."""
        notes = self._notes
        if not notes or (notes[0].is_settled and len(notes) == 1):
            return
        done = [note for note in self._held(log) if note.entry_id.index <= index]
        later = tuple(note for note in notes if note.entry_id.index > index)
        self._notes = (replace(done[-1], is_settled=True), *later) if done else later

    def committed(self, log: LogLayout, commit_index: Index) -> ConfigurationNote | None:
        """Return the last change that is committed; None: there is none."""
        done = [note for note in self._held(log) if note.entry_id.index <= commit_index]
        return replace(done[-1], is_settled=True) if done else None

    def begin_after(self, log: LogLayout, note: ConfigurationNote | None) -> bool:
        """Take over what a leader knows to be committed, for a log that begins anew behind a place that it knows, too.

        The note may be of an entry after that place: what comes until then changes nothing.

        Returns:
            whether another configuration is in force now.
        """
        notes = () if note is None else (replace(note, is_settled=True),)
        self.is_unsaved = self.is_unsaved or notes != self._notes
        self._notes = notes
        return self.cut(log)

    @property
    def _settled_index(self) -> Index:
        """The entry of the settled note; a log that was begun anew may end before it."""
        notes = self._notes
        return notes[0].entry_id.index if notes and notes[0].is_settled else NO_INDEX

    def _held(self, log: LogLayout) -> list[ConfigurationNote]:
        """Return the notes whose entries are in the log, in the log's order."""
        held = [
            note
            for note in self._notes
            if note.is_settled
            or note.entry_id.index < log.first_index
            or log.term_of(note.entry_id.index) == note.entry_id.term
        ]
        return sorted(held, key=lambda note: note.entry_id.index)
