"""The settings and statistics of a broker as text, for tools (26, 28)."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from broker.server.config import BrokerConfig
from broker.server.handlers.disk_room import DiskRoom, room_table, size_text
from broker.server.handlers.member_info import MemberInfo
from broker.server.handlers.pull_answers import PullCounts
from broker.server.handlers.sends import SEND_CODES
from broker.server.handlers.version_info import version_table
from broker.server.requests.put_times import PutTimes
from broker.server.watches.day_counts import DayCounts
from broker.server.watches.rates import SAMPLE_MS, RateWindows
from broker.server.watches.retention_watch import HeldUp
from broker.store.lookups import earliest_store_ms
from broker.store.pins import Pins
from broker.store.state import BrokerState
from dledger import LogServer, Position
from dledger.raft.ids import Index
from dledger_mq.message.numbers import StoreTimeMs
from dledger_mq.remoting.codes import RequestCode

_S_PER_DAY: Final = 24 * 60 * 60
PULL_CODES: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """The times of requests, as those see them who only look.

    Attributes:
        put_times: of sends lately.
        longest_ms: returns the longest time until an answer to one of these codes, without those that were held.
        waiting_pulls: returns the number of pulls that wait for their turn, not for messages.
        head_begun_ms: returns when the oldest entry of sends was proposed that is not committed; None: none.
    """

    put_times: PutTimes
    longest_ms: Callable[[Collection[int]], int]
    waiting_pulls: Callable[[], int]
    head_begun_ms: Callable[[], int | None]


class RuntimeInfo:
    """Samples counters and writes tables.

    Attributes:
        is_replaying: what is applied now was stored before this process started.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: LogServer,
        state: BrokerState,
        *,
        member: MemberInfo,
        room: Callable[[], DiskRoom | None],
        wall_ms: Callable[[], int],
        pulls: PullCounts,
        clock_ahead_ms: Callable[[], int],
        loss_notice: Callable[[], str],
        held_up: Callable[[], HeldUp | None],
        requests: RequestTimes,
    ) -> None:
        """Set up the figures of one process.

        Args:
            config: shown as it is in force.
            log: role, term, index and disk.
            state: the fold's counters.
            member: what only this member knows of itself.
            room: returns the room on the store's disk; None: the disk cannot say.
            wall_ms: returns the milliseconds since 1970; the process starts now.
            pulls: what was pulled from this node.
            clock_ahead_ms: returns the distance of the wall clock ahead of what most members show.
            loss_notice: returns what the group was found to have lost; empty: nothing.
            held_up: returns what keeps messages that are due to be deleted; None: nothing, or this node follows.
            requests: how long they take and wait.
        """
        self._config = config
        self._log = log
        self._state = state
        self._member = member
        self._room = room
        self._wall_ms = wall_ms
        self._boot_ms = boot_ms = wall_ms()
        self._pulls = pulls
        self._clock_ahead_ms = clock_ahead_ms
        self._loss_notice = loss_notice
        self._held_up = held_up
        self._requests = requests
        self._behind_max = 0
        self._puts, self._pulled = RateWindows(), RateWindows()
        self._found, self._missed, self._asked = RateWindows(), RateWindows(), RateWindows()
        self._put_days = DayCounts(boot_ms, state.put_count)
        self._pulled_days = DayCounts(boot_ms, 0)
        self.is_replaying = True
        self._earliest: tuple[Position, StoreTimeMs] | None = None
        self._next_ms = 0

    def sample(self, now_ms: int) -> None:
        """Note the counters, every SAMPLE_MS at most."""
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + SAMPLE_MS
            pulls, put_count, wall_ms = self._pulls, self._state.put_count, self._wall_ms()
            if not self.is_replaying:
                self._puts.sample(now_ms, put_count)
            self._pulled.sample(now_ms, pulls.messages)
            self._found.sample(now_ms, pulls.found)
            self._missed.sample(now_ms, pulls.missed)
            self._asked.sample(now_ms, pulls.found + pulls.missed)
            self._put_days.sample(wall_ms, put_count)
            self._pulled_days.sample(wall_ms, pulls.messages)
            self._requests.put_times.sample(now_ms)
            self._behind_max = max(self._behind_max, self._behind_bytes())

    def note_replayed(self) -> bool:
        """Note that entries were applied while `is_replaying`: what is old does not count as of today.

        Returns True once that is over.
        """
        self.is_replaying = self._state.last_store_ms < self._boot_ms
        if self.is_replaying:
            self._put_days.restart(self._state.put_count)
        return not self.is_replaying

    def _earliest_ms(self) -> int:
        """Return the store time of the oldest record, -1 for none; read anew only when the log begins elsewhere."""
        reader = self._log.reader
        first = self._first_position()
        if self._earliest is None or self._earliest[0] != first:
            found = earliest_store_ms(reader, first, end=reader.committed_position)
            self._earliest = None if found is None else (first, found)
        return -1 if self._earliest is None else self._earliest[1]

    def _head_wait_ms(self) -> int:
        """Return for how long the oldest entry of sends has been waiting for its commit."""
        begun_ms = self._requests.head_begun_ms()
        return 0 if begun_ms is None else max(0, self._wall_ms() - begun_ms)

    def _first_position(self) -> Position:
        """Return where the log begins for clients: what is forgotten may still have its bytes here."""
        return max(self._log.reader.first_position, self._state.retention.position)

    def table(self) -> dict[str, str]:
        """Return the names that `mqadmin clusterList` and dashboards read, and what the group knows of itself."""
        return (
            self._of_rocketmq()
            | room_table(self._room())
            | self._of_log()
            | self._member.table()
            | version_table(self._state)
        )

    def _of_rocketmq(self) -> dict[str, str]:
        """Return the figures that RocketMQ has; one that is not measured is RocketMQ's zero."""
        state = self._state
        average = state.put_bytes / state.put_count if state.put_count else 0.0
        return {
            "brokerVersionDesc": "V4_9_8",
            "brokerVersion": "409",
            "brokerActive": "true",
            "bootTimestamp": str(self._boot_ms),
            "runtime": _uptime_text(self._member.up_ms // 1000),
            "putTps": self._puts.text(),
            "getTotalTps": self._asked.text(),
            "getFoundTps": self._found.text(),
            "getMissTps": self._missed.text(),
            "getTransferedTps": self._pulled.text(),
            "getTransferredTps": self._pulled.text(),  # 5.x spells it so
            "msgPutTotalYesterdayMorning": str(self._put_days.yesterday_morning),
            "msgPutTotalTodayMorning": str(self._put_days.morning),
            "msgPutTotalTodayNow": str(state.put_count),
            "msgGetTotalYesterdayMorning": str(self._pulled_days.yesterday_morning),
            "msgGetTotalTodayMorning": str(self._pulled_days.morning),
            "msgGetTotalTodayNow": str(self._pulls.messages),
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "commitLogMinOffset": str(self._first_position()),
            "commitLogMaxOffset": str(self._log.reader.committed_position),
            "dispatchBehindBytes": str(self._behind_bytes()),
            "dispatchMaxBuffer": str(max(self._behind_max, self._behind_bytes())),
            "remainHowManyDataToFlush": size_text(self._unsynced_bytes()),
            "putMessageDistributeTime": self._requests.put_times.text(),
            "putMessageEntireTimeMax": str(self._requests.longest_ms(SEND_CODES)),
            "getMessageEntireTimeMax": str(self._requests.longest_ms(PULL_CODES)),
            **self._queues(),
            **self._delays(),
            "putMessageTimesTotal": str(state.put_count),
            "putMessageSizeTotal": str(state.put_bytes),
            "putMessageAverageSize": f"{average:.1f}",
            "remainTransientStoreBufferNumbs": "0",
            "startAcceptSendRequestTimeStamp": "0",
            "timerCongestNum": str(state.timers.count),
        }

    def _queues(self) -> dict[str, str]:
        """Return what waits where RocketMQ has thread pools: sends for their commit, pulls for their turn."""
        return {
            "sendThreadPoolQueueSize": str(self._log.status.statistics().pending_count),
            "sendThreadPoolQueueCapacity": str(self._config.limits.staged_messages_max),
            "sendThreadPoolQueueHeadWaitTimeMills": str(self._head_wait_ms()),
            "pullThreadPoolQueueSize": str(self._requests.waiting_pulls()),
            "pullThreadPoolQueueCapacity": str(self._config.limits.held_pulls_max),
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueCapacity": "0",
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
        }

    def _delays(self) -> dict[str, str]:
        """Return for each level that has messages where its delivery stands, and where its queue ends."""
        return {
            f"scheduleMessageOffset_{level}": f"{start},{queue.max_offset}"
            for level, queue, start in self._state.schedule.waiting()
        }

    def _behind_bytes(self) -> int:
        """Return how much of the log is committed and not applied."""
        reader = self._log.reader
        return max(0, reader.committed_position - reader.applied_position)

    def _unsynced_bytes(self) -> int:
        """Return how much of the log is not yet on this member's disk for sure."""
        now = self._log.status.statistics()
        if now.last_index <= now.durable_index:
            return 0
        position_of = self._log.reader.position_of
        first = Index(max(now.durable_index + 1, now.first_index))
        return position_of(Index(now.last_index + 1)) - position_of(first)

    def _of_log(self) -> dict[str, str]:
        """Return what the log and the replicas know of themselves."""
        state, statistics = self._state, self._log.status.statistics()
        snapshotter, cold = self._log.reader.snapshotter, self._log.reader.cold
        return {
            "raftNode": str(statistics.node_id),
            "raftRole": statistics.role.value,
            "raftTerm": str(statistics.term),
            "raftLeader": str(statistics.leader_id or ""),
            "raftCommitIndex": str(statistics.commit_index),
            "raftAppliedIndex": str(statistics.applied_index),
            "raftSyncMs": f"{statistics.sync_latency_us / 1000:.2f}",
            "raftDisk": statistics.disk_trouble or "ok",
            "raftColdReads": str(cold.load_count if cold is not None else 0),
            "raftColdReadBytes": str(cold.load_bytes if cold is not None else 0),
            "raftCatchUpReads": str(statistics.catch_up_reads),
            "raftCatchUpReadBytes": str(statistics.catch_up_read_bytes),
            "raftRecentSends": str(len(state.recent_sends)),
            "raftSendsForgottenEarly": str(state.recent_sends.chained.forgotten_early),
            "stateDigest": f"{state.digest():08x}",
            "raftWentBack": self._loss_notice() or "no",
            "raftFirstIndex": str(statistics.first_index),
            "raftKeptFromIndex": str(state.keep_from),
            "raftForgotten": self._forgotten_text(),
            "raftForgettingHeldUp": self._held_up_text(),
            "raftPins": self._pins_text(),
            "raftMembers": ",".join(self._log.roster.in_force.members),
            "raftLearners": ",".join(self._log.roster.in_force.learners),
            "snapshotIndex": str(snapshotter.index if snapshotter is not None else 0),
            "snapshotBytes": str(snapshotter.size_bytes if snapshotter is not None else 0),
            "snapshotsTaken": str(snapshotter.taken_count if snapshotter is not None else 0),
            "snapshotPauseMs": f"{snapshotter.pause_ms if snapshotter is not None else 0.0:.1f}",
            "clockAheadMs": str(self._clock_ahead_ms()),
            "digestMarks": json.dumps(
                {
                    str(index): {name: f"{value:08x}" for name, value in digests.items()}
                    for index, digests in state.marks.kept().items()
                }
            ),
            "digestsComparedIndex": str(state.marks.compared_index),
            "digestAlarms": ", ".join(
                f"{each.component}@{each.index}" for each in state.marks.divergences
            ),
        }

    def _forgotten_text(self) -> str:
        """Return why the log begins where it does, and since when; empty: nothing was ever forgotten."""
        retention = self._state.retention
        if not retention.cause:
            return ""
        since_s = max(0, self._state.last_store_ms - retention.moved_ms) // 1000
        return f"{retention.cause}, {since_s} s before the newest record"

    def _held_up_text(self) -> str:
        """Return what keeps messages that are due, and since when; empty: nothing."""
        held_up = self._held_up()
        if held_up is None:
            return ""
        since_s = max(0, self._wall_ms() - held_up.since_ms) // 1000
        return f"{held_up.text}, since {since_s} s"

    def _pins_text(self) -> str:
        state, end = self._state, self._log.reader.applied_position
        return pins_text(
            state.retention.pins, now_ms=max(self._wall_ms(), state.last_store_ms), end=end
        )


def pins_text(pins: Pins, *, now_ms: int, end: int) -> str:
    """Return the pins as JSON, by name.

    Args:
        pins: of the log.
        now_ms: the time by which retention counts: while nothing is sent, that of the log stands still.
        end: where the log ends.
    """
    return json.dumps(
        {
            name: {
                "position": pin.position,
                "bytes": max(0, end - pin.position),
                "ageMs": max(0, now_ms - pin.put_ms),
                "keepMs": pin.keep_ms,
                "keepBytes": pin.keep_bytes,
                "by": pin.by,
                "state": "overrun"
                if pin.is_overrun
                else "holds"
                if pin.holds(now_ms, end)
                else "over",
            }
            for name, pin in pins.items()
        }
    )


def _uptime_text(seconds: int) -> str:
    """Write a duration as RocketMQ does."""
    days, rest = divmod(seconds, _S_PER_DAY)
    return f"[ {days} days, {rest // 3600} hours, {rest // 60 % 60} minutes, {rest % 60} seconds ]"
