"""Handshakes of a simulated group, in which members exchange the records of their stores.

Only runs in which a member may come back with an older copy of its store have them. Two processes meet
when one of them first has something to say; what it has to say then is lost, as it is without a
connection. The decisions are those of dledger/raft/member_record.py, the file is the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from dledger.codec.member_record import (
    MemberRecordFormatError,
    decode_handshake_record,
    decode_member_record,
    encode_handshake_record,
)
from dledger.errors import DiskFullError, DLedgerError
from dledger.raft.events import GiveUpVote
from dledger.raft.ids import NodeId
from dledger.raft.member_record import MemberRecord, Start, learn
from dledger.storage.member_file import MEMBER_NAME, MemberFile
from dledger.testing.sim_group import SimGroup
from dledger.testing.sim_node import SimNode

MEETING_MS_MAX = 20
"""A connection takes so long to be made."""

_Pair = frozenset[tuple[NodeId, int]]


class Meetings:
    """The pairs of members that have shaken hands, and the verdicts on their stores."""

    def __init__(self, cluster: SimGroup, draw: Callable[[int, int], int]) -> None:
        self._cluster = cluster
        self._draw = draw
        self._met: set[_Pair] = set()
        self._planned: set[_Pair] = set()

    def started(self, node: SimNode) -> None:
        """Count a member's start, which opens its store, before anything else.

        Raises:
            OSError, DiskFailedError: its disk failed.
        """
        if node.counted_life == node.life:
            return  # it was repaired before it could have an engine
        file = MemberFile.open(node.disk)
        last, missed = file.record.start, file.record.missed
        if node.is_outdated and not missed.count:
            # Started more often than the others remember, it would pass for a newer store: adr/0103 does not help.
            if last.count <= node.copied_start.count + 1:
                last = node.copied_start
            else:
                node.is_outdated = False  # it overtook them just as its disk failed
        record = MemberRecord(
            "sim", node.node_id, file.record.restoration, last, file.record.seen, missed=missed
        ).started(node.life)
        node.member = None
        node.missed = missed if missed.count else None
        try:
            file.save(record)
        except DiskFullError:
            return
        node.member = file
        node.counted_life = node.life

    def may_speak(self, node: SimNode, target: SimNode) -> bool:
        """Return whether the two have shaken hands; if not, schedule a handshake."""
        pair = _pair(node, target)
        if pair in self._met:
            return True
        if pair not in self._planned:
            self._planned.add(pair)
            due_ms = self._cluster.now_ms + self._draw(0, MEETING_MS_MAX)
            self._cluster.at(due_ms, self._meet, node, target, pair)
        return False

    def look_after(self, node: SimNode) -> None:
        """Check a member after a step, which may have given up its vote."""
        engine, file = node.engine, node.member
        if engine is None or file is None or node.missed is None or not engine.is_hard_state_saved:
            return
        with suppress(DiskFullError):  # it is tried again with the next step
            file.save(replace(file.record, missed=node.missed).overtaking())
            node.missed = None
            node.is_outdated = False
            self._cluster.trace_line(
                node, f"is start {file.record.start.count} of its store from here"
            )

    def _meet(self, node: SimNode, target: SimNode, pair: _Pair) -> None:
        """Let two members shake hands, unless one was restarted since this was planned, or they are cut off."""
        self._planned.discard(pair)
        network, now_ms = self._cluster.network, self._cluster.now_ms
        is_open = network.is_open(node.node_id, target.node_id) and network.is_open(
            target.node_id, node.node_id
        )
        are_up = all(
            (each.engine is not None or each.repair is not None) and not each.pauses(now_ms)
            for each in (node, target)
        )
        if pair != _pair(node, target) or not is_open or not are_up:
            return
        said = _record_for(node, target), _record_for(target, node)
        if self._take_record(target, said[0]) and self._take_record(node, said[1]):
            self._met.add(pair)

    def _take_record(self, node: SimNode, said: MemberRecord | None) -> bool:
        """Let a member learn another's record; return False if it stopped because of it."""
        file = node.member
        if said is None or file is None:
            return True
        heard = learn(file.record, said, self._cluster.node_ids)
        if heard.record != file.record:
            try:
                file.save(heard.record)
            except DiskFullError:
                self._cluster.trace_line(node, "has no room to remember")
            except DLedgerError as error:
                self._cluster.trace_line(node, f"cannot remember: {error}")
                self._cluster.stop(node, power_loss=False)
                self._cluster.start_later(node)
                return False
        if heard.missed is not None:
            node.missed = heard.missed
            self._cluster.trace_line(
                node, f"has an old copy: {said.node_id} remembers {heard.missed}"
            )
            self._cluster.reached["old-copy-noticed"] += 1
            self._cluster.step(node, GiveUpVote())
        return node.engine is not None or node.repair is not None


def remembers(node: SimNode, whom: NodeId) -> Start:
    """Return the latest start of another member that a member surely knows of."""
    return Start() if node.member is None else node.member.record.seen.get(whom, Start())


def will_learn_that_it_is_old(node: SimNode, others: Iterable[SimNode]) -> bool:
    """Return whether some store remembers a later start of this member than its own store does.

    It may vote now, and will have no vote once the two have met: its record was lost, say, or it has met
    those who remember less.
    """
    own = _record_on_disk(node)
    # A start for which there was no room is counted with the next one.
    start = own.start if node.member is not None else own.started(-1).start
    return any(
        start.lacks(_record_on_disk(each).seen.get(node.node_id, Start())) for each in others
    )


def _record_on_disk(node: SimNode) -> MemberRecord:
    """Return the record on a member's disk, also while the member is down or has not read it."""
    if not node.disk.exists(MEMBER_NAME):
        return MemberRecord()
    try:
        return decode_member_record(node.disk.content(MEMBER_NAME))
    except MemberRecordFormatError:
        return MemberRecord()


def _pair(node: SimNode, target: SimNode) -> _Pair:
    return frozenset({(node.node_id, node.life), (target.node_id, target.life)})


def _record_for(node: SimNode, to: SimNode) -> MemberRecord | None:
    """Return a member's handshake record as the other side decodes it."""
    if node.member is None:
        return None
    return decode_handshake_record(
        node.node_id, encode_handshake_record(node.member.record, to.node_id)
    )
