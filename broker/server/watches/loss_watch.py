"""Detects that this group has lost what it had committed: a name server remembers how far it was, the leader judges.

All stores of a group, put back from backups of one moment, agree with one another: inside nothing is wrong. Name
servers stand outside and live on. The leader hears from them the furthest place that any node ever announced as
committed, and only then confirms that it leads, as for a linearizable read. Raft has such a leader know
everything that was committed before. So a log that ends below that place, or has another entry there, has
lost committed entries. A follower may lag and a deposed leader may be late: they judge nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from dledger import Index, LogServer, OutcomeUnknownError, RefusedError, Term
from dledger.runtime.events_log import log_event
from dledger_mq.remoting.log_point import LogPoint

CONFIRM_TIMEOUT_S: Final = 3.0

STATUS_ATTRIBUTE: Final = "went_back"

_REASON: Final = (
    "committed entries are gone: all stores were put back from backups, or begun anew, and nobody said so; "
    "what was acknowledged there is lost. If that was meant, stop all nodes and run `dledger restored` on every "
    "store; else put newer stores in place (docs/restoring.md)"
)


class Loss(NamedTuple):
    """Committed entries that are gone, at least these.

    Attributes:
        first, last: their indexes.
    """

    first: Index
    last: Index

    @staticmethod
    def between(first: int, last: int) -> Loss:
        """Build a loss from its two bounds."""
        assert first <= last, f"entries {first}..{last} cannot be gone"
        return Loss(Index(first), Index(last))


def find_loss(
    furthest: LogPoint, *, restoration: str, confirmed_index: Index, chain_crc: int | None
) -> Loss | None:
    """Find what a leader has lost of what was announced as committed; None if no loss can be seen.

    Args:
        furthest: the place that was announced before the leader confirmed that it leads.
        restoration: the incarnation of its group.
        confirmed_index: the last committed entry when it had confirmed that.
        chain_crc: of its own entry at the announced place; None: it has none, or keeps it no more.
    """
    if furthest.restoration != restoration:
        return None
    if furthest.index > confirmed_index:
        return Loss.between(confirmed_index + 1, furthest.index)
    if chain_crc is not None and chain_crc != furthest.chain_crc:
        return Loss.between(furthest.index, furthest.index)
    return None


class LossWatch:
    """Judges what name servers remember; one log line for each term of leadership.

    Attributes:
        notice: the loss that was found last, for tools; empty: none since this process started.
    """

    def __init__(self, log: LogServer, has_records: Callable[[], bool] = lambda: True) -> None:
        """Set up the watch for lost entries.

        Args:
            log: the member that is judged.
            has_records: returns True once a record was applied. The log of a group that was just founded is that of
                any other group; with its first record, which has a time and an address, it is its own.
        """
        self.notice = ""
        self._log = log
        self._has_records = has_records
        self._reported_term = Term(0)
        self._is_confirming = False

    def own_point(self) -> LogPoint | None:
        """Return the place up to which this node knows the log to be committed; None while it names no group yet."""
        if not self._has_records():
            return None
        index = self._log.reader.commit_index
        name = self._log.reader.committed_fingerprint(index)
        if name is None:
            return None
        return LogPoint(int(index), int(name.term), name.chain_crc, self._log.status.restoration)

    async def judge(self, furthest: LogPoint) -> None:
        """Compare the log with a place that a name server remembers, if this node leads."""
        if self._is_confirming or not self._log.is_serving:
            return
        self._is_confirming = True
        known_index = self._log.reader.commit_index
        try:
            confirmed_index = await self._log.reader.barrier(timeout_s=CONFIRM_TIMEOUT_S)
        except (RefusedError, OutcomeUnknownError):
            return  # no leader, or none that can say so now: it registers again
        finally:
            self._is_confirming = False
        assert confirmed_index >= known_index, (
            f"{confirmed_index} was confirmed as committed, {known_index} was known before"
        )
        name = self._log.reader.committed_fingerprint(Index(furthest.index))
        loss = find_loss(
            furthest,
            restoration=self._log.status.restoration,
            confirmed_index=confirmed_index,
            chain_crc=None if name is None else name.chain_crc,
        )
        if loss is not None:
            self._report(furthest, confirmed_index, loss)

    def _report(self, furthest: LogPoint, confirmed_index: Index, loss: Loss) -> None:
        """Log a loss, and show it to tools; once in each term."""
        term = self._log.term
        if term == self._reported_term:
            return
        self._reported_term = term
        self.notice = (
            f"index {furthest.index} of term {furthest.term} was committed; in term {term} the log is committed "
            f"up to {confirmed_index}: lost at least {loss.first}..{loss.last}"
        )
        self._log.status.show(STATUS_ATTRIBUTE, self.notice)
        log_event(
            logging.ERROR,
            "group-went-back",
            node=self._log.node_id,
            group=self._log.config.group,
            was_index=furthest.index,
            was_term=furthest.term,
            index=confirmed_index,
            term=term,
            lost=f"{loss.first}..{loss.last}",
            reason=_REASON,
        )
