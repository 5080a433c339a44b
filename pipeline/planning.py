"""The ends of a batch read, and the steps of a stream: options and brokers' answers become offsets.

Knows nothing of Spark. Both work on a `BrokerLookup` (`pipeline.broker_view`), so that tests can give them another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from pipeline.errors import DataLossError, PipelineUsageError
from pipeline.initial_offsets import asked_for, kept_offsets
from pipeline.offsets import (
    EARLIEST,
    LATEST,
    Bounds,
    OffsetLoss,
    Offsets,
    OffsetsForm,
    check_names,
    from_form,
    joined,
    limited,
    loss_at_end,
    loss_at_start,
    loss_between,
    loss_of_queues,
    loss_of_topics,
    reached,
    resolved,
    to_form,
    within,
)
from pipeline.ranges import QueueRange, ranges_between
from pipeline.source_options import Boundary, BoundaryKind, SourceOptions

INITIAL_FILE: Final = "initial-offsets.json"
log = logging.getLogger(__name__)


class BrokerLookup(Protocol):
    """The questions that planning asks brokers; `BrokerView` answers them."""

    def bounds(self, *, may_miss: bool = False) -> dict[MessageQueue, Bounds]:
        """Return the bounds of every queue."""

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return the offsets at a time."""

    def try_commit(self, offsets: Mapping[MessageQueue, QueueOffset]) -> bool:
        """Store offsets for people to look at."""


class StreamLookup(BrokerLookup, Protocol):
    """The questions that a stream asks besides, since it knows what was there."""

    def look_for(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """Return the bounds of queues that were not seen, without those that are gone; raise if nobody can say."""


class ArchiveLookup(Protocol):
    """The questions that planning asks an archive; `pipeline.archive.history.History` answers them."""

    bounds: dict[MessageQueue, Bounds]

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return the offsets at a time; queues without a message so young are left out."""


class JoinedView:
    """Brokers and an archive as one: each queue reaches from the archive's first offset to the brokers' end.

    Args:
        options: of the source.
        view: of the brokers.
        archive: opens the archive's history; its argument is the only group there is, "" if there is
            none, or None.
    """

    def __init__(
        self,
        options: SourceOptions,
        view: BrokerLookup,
        archive: Callable[[str | None], ArchiveLookup],
    ) -> None:
        self._options = options
        self._view = view
        self._archive = archive
        self._live: dict[MessageQueue, Bounds] = {}
        self.past: dict[MessageQueue, Bounds] = {}
        self._history: ArchiveLookup | None = None

    def bounds(self, *, may_miss: bool = False) -> dict[MessageQueue, Bounds]:
        """Return the bounds of brokers and archive together.

        Raises:
            PipelineUsageError: a topic is in neither.
            DataLossError: what lies between the two is gone, or the archive is of another log.
        """
        live = self._view.bounds(may_miss=True)
        groups = {queue.broker_name for queue in live} or {""}
        self._history = self._archive(groups.pop() if len(groups) == 1 else None)
        self._live = live
        reads, archived = self._options.reads, self._history.bounds
        self.past = {queue: archived[queue] for queue in archived if reads(queue)}
        known = {queue.topic for queue in (*live, *self.past)}
        missing = sorted(set(self._options.topics) - known)
        if missing or not known:
            what = f"topic {missing[0]}" if missing else self._options.subject
            raise PipelineUsageError(f"{what} exists neither at the brokers nor in the archive")
        assigned = self._options.assigned
        absent = assigned.missing((*live, *self.past)) if assigned is not None else []
        if absent:
            raise PipelineUsageError(
                f"option assign: {', '.join(absent[:5])} is neither at the brokers nor in the archive"
            )
        on_loss(self._options, loss_between(self.past, live))
        return joined(self.past, live)

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return the offsets at a time: from the archive, if it is that old."""
        wanted = list(queues)
        found = self._view.offsets_at([queue for queue in wanted if queue in self._live], time_ms)
        assert self._history is not None, "bounds come first"
        older = self._history.offsets_at([queue for queue in wanted if queue in self.past], time_ms)
        ends = {queue: has.end for queue, has in self.past.items()}
        return ends | found | older

    def try_commit(self, offsets: Mapping[MessageQueue, QueueOffset]) -> bool:
        """Store offsets at the brokers."""
        return self._view.try_commit(offsets)


def divided(
    start: Offsets, end: Offsets, past: Mapping[MessageQueue, Bounds]
) -> tuple[list[QueueRange], Offsets]:
    """Divide a batch between archive and brokers: the archive's ranges, and where the brokers' begin."""
    turn = {
        queue: min(max(start[queue], past[queue].end), end[queue])
        if queue in past
        else start[queue]
        for queue in end
    }
    return ranges_between(start, turn), turn


def on_loss(options: SourceOptions, loss: OffsetLoss) -> None:
    """Raise DataLossError, or only warn if failOnDataLoss is false.

    Raises:
        DataLossError: names what is gone.
    """
    if not loss:
        return
    if options.fail_on_data_loss:
        raise DataLossError(f"{loss} (option failOnDataLoss=false goes on without what is gone)")
    log.warning("going on with what is left: %s", loss)


def place_of(
    options: SourceOptions,
    which: str,
    place: Boundary,
    *,
    bounds: Mapping[MessageQueue, Bounds],
    view: BrokerLookup,
) -> Offsets:
    """Return the offsets that a start or an end stands for now.

    Args:
        options: of the source.
        which: "starting" or "ending", as the options' names begin.
        place: what one of them said.
        bounds: what the queues hold.
        view: who knows where a time lies.

    Raises:
        PipelineUsageError: they do not fit the queues, or nothing is as young as the time that is said.
    """
    if place.kind is BoundaryKind.TIME:
        times = dict.fromkeys(bounds, place.timestamp_ms)
        return _at_times(f"{which}Timestamp", times, place, bounds=bounds, view=view)
    if place.kind is BoundaryKind.QUEUE_TIMES:
        name = f"{which}OffsetsByTimestamp"
        assert place.offsets is not None, "of queues, in ms"
        check_names(place.offsets, bounds, f"option {name} for {options.subject}")
        return _at_times(name, place.offsets, place, bounds=bounds, view=view)
    mark = {BoundaryKind.EARLIEST: EARLIEST, BoundaryKind.LATEST: LATEST}.get(place.kind)
    wanted = place.offsets if place.offsets is not None else dict.fromkeys(bounds, mark or LATEST)
    return resolved(wanted, bounds, f"option {which}Offsets for {options.subject}")


def _at_times(
    name: str,
    times: Mapping[MessageQueue, int],
    place: Boundary,
    *,
    bounds: Mapping[MessageQueue, Bounds],
    view: BrokerLookup,
) -> Offsets:
    """Return per queue the offset of the first message stored at its time or later; its end where there is none."""
    found: dict[MessageQueue, int] = {}
    for time_ms in sorted(set(times.values())):
        found |= view.offsets_at([queue for queue in bounds if times[queue] == time_ms], time_ms)
    if not place.or_latest:
        none = sorted(queue for queue, has in bounds.items() if found[queue] >= has.end)
        if none:
            raise PipelineUsageError(
                f"option {name}: {none[0]}"
                f"{f' and {len(none) - 1} more' if len(none) > 1 else ''} have no message stored at "
                f"{times[none[0]]} ms or later; startingOffsetsByTimestampStrategy=latest takes their end"
            )
    return {queue: QueueOffset(min(offset, bounds[queue].end)) for queue, offset in found.items()}


def batch_offsets(options: SourceOptions, view: BrokerLookup) -> tuple[Offsets, Offsets]:
    """Return start and end of a batch read, settled once for all its tasks.

    Raises:
        PipelineUsageError: topics or offsets that do not exist.
        DataLossError: what was asked for is gone, or not there yet.
        InconclusiveError: brokers do not answer.
    """
    bounds = view.bounds()
    start = place_of(options, "starting", options.starting, bounds=bounds, view=view)
    end = place_of(options, "ending", options.ending, bounds=bounds, view=view)
    on_loss(options, loss_at_start(start, bounds))
    on_loss(options, loss_at_end(start, end, bounds))
    start = within(start, bounds)
    return start, {queue: max(start[queue], at) for queue, at in within(end, bounds).items()}


class StreamOffsets:
    """The place where a stream begins, and how far its next batch goes.

    Args:
        options: of the source.
        view: of the brokers.
        clock: seconds, for maxTriggerDelay.
    """

    def __init__(
        self,
        options: SourceOptions,
        view: StreamLookup,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._view = view
        self._clock = clock
        self._initial: OffsetsForm | None = None
        self._target: Offsets | None = None
        self._newest: Offsets | None = None
        self._waiting_since: float | None = None
        self._committed: Offsets | None = None

    def initial(self) -> OffsetsForm:
        """Return where a new query begins: settled once, and kept in metadataPath if there is one."""
        if self._initial is None:
            folder = self._options.metadata_path
            self._initial = (
                self._settle_initial()
                if folder is None
                else kept_offsets(
                    folder / INITIAL_FILE, asked_for(self._options), self._settle_initial
                )
            )
        return self._initial

    def _settle_initial(self) -> OffsetsForm:
        bounds = self._view.bounds()
        start = place_of(
            self._options, "starting", self._options.starting, bounds=bounds, view=self._view
        )
        on_loss(self._options, loss_at_start(start, bounds))
        return to_form(within(start, bounds))

    def freeze(self) -> None:
        """Fix the present ends as the target of the stream (Trigger.AvailableNow)."""
        bounds = self._view.bounds(may_miss=True)
        self._target = {queue: has.end for queue, has in bounds.items()}

    def latest(self, start_form: object, most: int | None) -> OffsetsForm:
        """Return the end of the batch that begins at `start_form`; the same offsets when there is none.

        A queue that is new begins with its earliest offset: this batch notes that, the next one reads.

        Raises:
            DataLossError: what comes next is gone, or the start is that of a query on other topics.
            InconclusiveError: brokers do not answer, or a group that the start names has no leader.
        """
        start = from_form(start_form, "the start of a batch")
        strangers = [queue for queue in start if not self._options.reads(queue)]
        topics = {queue.topic for queue in strangers if not self._options.wants(queue.topic)}
        on_loss(self._options, loss_of_topics(sorted(topics), self._options.subject))
        left = [queue for queue in strangers if queue.topic not in topics]
        on_loss(self._options, loss_of_queues(sorted(left)))
        self._show(start)
        known = {queue: offset for queue, offset in start.items() if queue not in strangers}
        bounds = self._bounds(known)
        on_loss(self._options, loss_at_start(known, bounds))
        end = reached(start, bounds)
        self._newest = end
        if self._target is not None:
            # A queue of the checkpoint that was away when the ends were fixed, and is back, is read as well.
            back = {queue: end[queue] for queue in known if queue in bounds}
            self._target = back | self._target
            end = _not_beyond(self._target, start, end)
        new = {queue: min(bounds[queue].start, end[queue]) for queue in end if queue not in start}
        end = {queue: offset for queue, offset in end.items() if queue in start}
        # An end before its start would give offsets back that were read: the next batch would read them twice.
        assert all(end[queue] >= start[queue] for queue in end), f"from {start} back to {end}"
        if self._should_wait(start, end):
            return to_form(start)
        if most is not None:
            end = limited(start, end, most)
        return to_form(end | new)

    def _bounds(self, known: Offsets) -> dict[MessageQueue, Bounds]:
        """Return what the queues hold. A known one that is not seen is looked for: its group may only be away.

        Who goes on without what is gone goes on without what is away, too, as long as there is anything to read:
        both keep their place.
        """
        bounds = self._view.bounds(may_miss=True)
        unseen = known.keys() - bounds.keys()
        if unseen and (self._options.fail_on_data_loss or not bounds):
            bounds |= self._view.look_for(unseen)
        return bounds

    def _should_wait(self, start: Offsets, end: Offsets) -> bool:
        """Return whether minOffsetsPerTrigger asks for more, and maxTriggerDelay is not over."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return False
        waiting = sum(end[queue] - start[queue] for queue in end)
        now = self._clock()
        if self._waiting_since is None:
            self._waiting_since = now
        is_over = now - self._waiting_since >= self._options.max_trigger_delay_ms / 1000
        if waiting < least and not is_over:
            return True
        self._waiting_since = None
        return False

    def newest(self) -> OffsetsForm | None:
        """Return the committed ends as they were last seen, for progress reports."""
        return None if self._newest is None else to_form(self._newest)

    def _show(self, done: Offsets) -> None:
        """Store what is done under commitGroup. A batch begins at `done`: all before it has ended."""
        if self._options.commit_group is None or done == self._committed:
            return
        if self._view.try_commit(done):
            self._committed = done


def _not_beyond(target: Offsets, start: Offsets, end: Offsets) -> Offsets:
    """Hold an end back at a target, but never before the start; queues that neither knows drop out."""
    held: Offsets = {}
    for queue, offset in end.items():
        if queue in start:
            held[queue] = max(start[queue], min(offset, target.get(queue, start[queue])))
        elif queue in target:
            held[queue] = min(offset, target[queue])
    return held
