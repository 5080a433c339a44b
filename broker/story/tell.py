"""The story of one message: the log is looked through once for its records, and then folded from before the first one.

It must not know how a story is shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from broker.store.state import BrokerState
from broker.story.copies import Copy, FoundCopies, Progress, find_copies
from broker.story.errors import StoryError
from broker.story.places import StorePlaces, fold, scratch_state
from broker.story.steps import StoryStep
from broker.story.verdict import CopyStanding, standing_of
from broker.story.watch import Watch
from dledger.raft.entry import Entry
from dledger.raft.ids import Index
from dledger.storage.scan import ChainEnd
from dledger.storage.snapshots import SnapshotFile
from dledger.storage.snapshots_beside import end_of

_FOLDED_AT_ONCE: Final = 256


@dataclass(slots=True)
class MessageStory:
    """The story of a message that a store tells.

    Attributes:
        found: its records, and how far the log goes.
        steps: what happened, in the order of the log.
        standings: of each record, at the end; empty if the state there is not known and nothing else tells.
        state_from: the entry after which the state is known; None: of none.
        is_cut: there are more records or steps.
        unknown: what stands in place of a state that can never be known, in words; empty: a store's log.
    """

    found: FoundCopies
    steps: list[StoryStep] = field(default_factory=list)
    standings: list[CopyStanding] = field(default_factory=list)
    state_from: int | None = None
    is_cut: bool = False
    unknown: str = ""

    @property
    def is_visible(self) -> bool | None:
        """True if a consumer can get the message somewhere; None: that is not known."""
        if self.found.copies and self.state_from is None:
            return None
        return any(each.is_visible for each in self.standings)

    @property
    def verdict(self) -> str:
        """The state of things in a sentence."""
        begin, end = self.found.begin.index + 1, self.found.end.index
        if self.unknown and not self.found.copies:
            return f"no record of it stands in what was read of the entries {begin} to {end}"
        if not self.found.copies:
            rest = f"; what stood before entry {begin} is deleted" if begin > 1 else ""
            return f"no record of it stands in the entries {begin} to {end}{rest}"
        if self.unknown:
            known = [each for each in self.standings if each.is_visible is None]
            reasons = known or [each for each in self.standings if not each.is_ended]
            text = ", and ".join(each.reason for each in (reasons or self.standings[-1:]))
            return f"{text}, up to entry {end}; {self.unknown}"
        if self.state_from is None:
            return f"not known: the log has lost what stood before entry {begin}, and no snapshot reaches it"
        visible = [each for each in self.standings if each.is_visible]
        if visible:
            return "visible " + ", and ".join(each.reason for each in visible)
        open_ones = [each for each in self.standings if not each.is_ended]
        return f"not visible: {(open_ones or self.standings)[-1].reason}"


def tell(
    places: StorePlaces, message_id: str, looking: Progress, folding: Progress
) -> MessageStory:
    """Tell the story of a message.

    Args:
        places: the store.
        message_id: an offset message id, or a unique key.
        looking: told how far the search for its records has come.
        folding: told how far the fold has come.

    Raises:
        StoryError: the log cannot be read so.
        CorruptionError: it is damaged.
        OSError: the disk failed.
    """
    found = find_copies(places, message_id, looking)
    story = MessageStory(found, is_cut=found.is_cut)
    if not found.copies:
        return story
    with scratch_state() as state:
        _follow(places, story, state, folding)
    return story


def _follow(
    places: StorePlaces, story: MessageStory, state: BrokerState, progress: Progress
) -> None:
    """Read the entries from before the first record to the last one that was looked at."""
    found = story.found
    watch = Watch(found.copies)
    begin = _begin(places, found, state)
    is_known = begin is not None
    start = found.begin if begin is None else begin
    later = None if is_known else _later(found, places)
    story.state_from = start.index if is_known else None
    batch: list[Entry] = []
    for entry in _entries(places, start, found.end, progress):
        if later is not None and entry.index == later.meta.index + 1:
            if not places.restore(later, state):
                raise StoryError(f"snapshot {later.path} is damaged, or gone meanwhile: ask again")
            is_known, story.state_from, later = True, later.meta.index, None
            watch.begin_with(state, Index(entry.index - 1), entry.term, state.last_store_ms)
        if not watch.may_matter(entry):
            if is_known:
                batch.append(entry)
                if len(batch) == _FOLDED_AT_ONCE:
                    fold(state, batch)
                    batch = []
            continue
        if batch:
            fold(state, batch)
            batch = []
        look = watch.before(entry, state if is_known else None)
        if is_known:
            fold(state, [entry])
        watch.behind(look, state if is_known else None)
    if batch:
        fold(state, batch)
    if later is not None and places.restore(later, state):  # it ends where the log does
        is_known, story.state_from = True, later.meta.index
        watch.begin_with(state, later.meta.index, later.meta.term, state.last_store_ms)
    story.steps, story.is_cut = watch.steps, story.is_cut or watch.is_cut
    if is_known:
        story.standings = [standing_of(each, watch.steps, state) for each in found.copies]


def _begin(places: StorePlaces, found: FoundCopies, state: BrokerState) -> ChainEnd | None:
    """Bring a state to before the first record, if anything in the store leads there; return its last entry."""
    first: Copy = found.copies[0]
    for snapshot in _fitting(places, found):
        if snapshot.meta.index < first.index and places.restore(snapshot, state):
            return end_of(snapshot)
    return found.begin if places.is_whole else None


def _later(found: FoundCopies, places: StorePlaces) -> SnapshotFile | None:
    """Return the oldest snapshot behind the first record: from it on the state is known."""
    fitting = _fitting(places, found)
    return fitting[-1] if fitting else None


def _fitting(places: StorePlaces, found: FoundCopies) -> list[SnapshotFile]:
    """Return the snapshots that are of this log, newest first."""
    return [
        each
        for each in places.snapshots
        if found.snapshot_crcs.get(int(each.meta.index)) == each.meta.chain_crc
    ]


def _entries(
    places: StorePlaces, start: ChainEnd, end: ChainEnd, progress: Progress
) -> Iterator[Entry]:
    """Yield the entries after one, up to and with another, which was read before."""
    total = end.position - start.position
    if start.index >= end.index:
        return
    for some in places.log.entries(start):
        yield from (entry for entry in some if entry.index <= end.index)
        progress(min(some[-1].end_position, end.position) - start.position, total)
        if some[-1].index >= end.index:
            return
    raise StoryError(
        f"the log ended before entry {end.index}, which was read a moment ago: its member has cut it; ask again"
    )
