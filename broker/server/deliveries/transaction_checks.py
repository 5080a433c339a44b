"""Asks producers how their open transactions ended, while this node leads (rules O15 to O21).

A check is counted in the log first and asked then, so that no failover makes it more than the limit. Its
message is read before: one that cannot be read now is checked, or given up, once it is back.
After the last one the message moves to TRANS_CHECK_MAX_TIME_TOPIC: copy and op record in one entry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from broker.server.handlers.transactions import TransactionEnds, stage_op
from broker.server.requests.commits import Commits, OnCommit
from broker.service.catalog import Catalog, special_topic
from broker.store.control import CheckTransactions
from broker.store.record_reader import MessageGoneError, read_message
from broker.store.schedule import delivery
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from broker.store.transactions import OpenHalf, TransactionVerdict
from dledger import DLedgerError, EntryDamagedError, LogServer
from dledger_mq.message.errors import RecordError
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.names import CHECK_MAX_TOPIC
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.message.properties import PGROUP, UNIQ_KEY
from dledger_mq.message.record import StoredMessage, encode_record
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.header import encode_command, make_request

_log = logging.getLogger(__name__)

CHECKS_MAX = 256
"""Transactions checked or given up with one entry; their messages are read from the log."""

CHECKED_BYTES_MAX = 4 * 1024 * 1024
"""Sum of the sizes of those messages, unless one alone is larger."""

_CHECK_MAX_TOPIC = CHECK_MAX_TOPIC.encode()

Half = tuple[OpenHalf, StoredMessage | None]
"""A half message as the fold knows it, and as it is stored; None: the log no longer holds it."""


class TransactionChecks:
    """Checks the open transactions that are due; one batch at a time, so that counts are always those of the fold."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        ends: TransactionEnds,
        *,
        catalog: Catalog,
        ask: Callable[[str, bytes], None],
        broker_name: str,
        timeout_ms: int,
        interval_ms: int,
        check_max: int,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        """Set up the checks.

        Args:
            log: whoever leads it checks.
            state: the fold, with the open transactions.
            commits: what the checks propose goes through it.
            ends: puts aside what was checked too often.
            catalog: topics and groups, for the topic of what is put aside.
            ask: sends a frame to some producer of a group.
            broker_name: named in each question.
            timeout_ms: age of a half message at its first check, unless it asks for more.
            interval_ms: between two checks of one transaction.
            check_max: checks before a transaction is put aside.
            wall_ms: the time of the log.
            monotonic_ms: the time of this process, for waiting.
        """
        self._log = log
        self._state = state
        self._commits = commits
        self._ends = ends
        self._catalog = catalog
        self._ask = ask
        self._broker_name = broker_name
        self.timeout_ms = timeout_ms
        self.interval_ms = interval_ms
        self.check_max = check_max
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms
        self._is_waiting = False
        self._began_log_ms = 0
        self._began_ms = 0

    def leadership_began(self) -> None:
        """Begin: this node leads from now on."""
        self._is_waiting = False
        self._began_log_ms, self._began_ms = self._state.last_store_ms, self._monotonic_ms()

    def tick(self) -> None:
        """Begin the checks that are due; called every 50 ms or so."""
        transactions = self._state.transactions
        if not len(transactions) or self._is_waiting or self._commits.is_full:
            return
        if not self._log.is_serving:
            return
        now_ms = self._now_ms()
        due = transactions.due(
            now_ms, timeout_ms=self.timeout_ms, interval_ms=self.interval_ms, limit=CHECKS_MAX
        )
        assert len(due) <= CHECKS_MAX, f"{len(due)} transactions are due, at most {CHECKS_MAX}"
        due = [half for half in due if not self._ends.is_ending(half.queue_offset)]
        given_up = _first_bytes([half for half in due if half.check_count >= self.check_max])
        checked = _first_bytes([half for half in due if half.check_count < self.check_max])
        if found := self._readable(given_up):
            self._is_waiting = True
            self._give_up(found, now_ms)
        elif found := self._readable(checked):
            self._is_waiting = True
            offsets = [half.queue_offset for half, _ in found]
            place = self._commits.stage_control(CheckTransactions(offsets, now_ms))
            self._commits.wait(place, OnCommit(partial(self._counted, found), self._failed))

    def _now_ms(self) -> int:
        """Return the wall clock, but not less than the log's time and what passed since this leadership began.

        A leader whose clock is behind the one before it must not stop checking.
        """
        passed_ms = self._monotonic_ms() - self._began_ms
        assert passed_ms >= 0, f"the monotonic clock went back by {-passed_ms} ms"
        return max(self._wall_ms(), self._began_log_ms + passed_ms)

    # Asking.

    def _counted(self, checked: list[Half], _staged: StagedEntry, _place: int) -> None:
        """Ask the producers, since the checks are counted in the log."""
        self._is_waiting = False
        for half, message in checked:
            is_open = self._state.transactions.get(half.queue_offset) is not None
            if is_open and message is not None:
                self._ask_about(message)
        self.tick()

    def _failed(self, _error: DLedgerError) -> None:
        """Stop: leadership was lost. The next leader goes on from what the fold knows."""
        self._is_waiting = False

    def _readable(self, halves: list[OpenHalf]) -> list[Half]:
        """Read the half messages that can be read now; one that is gone for good is paired with None."""
        found: list[Half] = []
        for half in halves:
            try:
                found.append((half, read_message(self._log.reader, half.physical_offset)))
            except MessageGoneError as error:
                _log.warning("half message %d is gone: %s", half.queue_offset, error)
                found.append((half, None))
            except EntryDamagedError:
                continue  # the log says which entry, and asks the other nodes for it
        return found

    def _ask_about(self, half: StoredMessage) -> None:
        """Send CHECK_TRANSACTION_STATE to some producer of the group (O19)."""
        group, target = half.find(PGROUP), delivery(half)
        if group is None or target is None:
            return  # nobody can answer; it is given up in the end
        key = (half.find(UNIQ_KEY) or b"").decode(errors="replace")
        ext = {
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.physical_offset),
            "msgId": key,
            "transactionId": key,
            "offsetMsgId": offset_msg_id(half.store_host, half.physical_offset),
            "topic": target.topic.decode(errors="replace"),
            "bname": self._broker_name,
        }
        body = encode_record(
            topic=target.topic,
            queue_id=target.queue_id,
            queue_offset=half.queue_offset,
            physical_offset=half.physical_offset,
            sys_flag=half.sys_flag,
            flag=half.flag,
            born_timestamp_ms=half.born_timestamp_ms,
            born_host=half.born_host,
            store_timestamp_ms=half.store_timestamp_ms,
            store_host=half.store_host,
            body=half.body,
            properties=half.properties,
            reconsume_times=half.reconsume_times,
        )
        request = make_request(RequestCode.CHECK_TRANSACTION_STATE, 0, ext, body, is_oneway=True)
        self._ask(group.decode(errors="replace"), encode_command(request))

    # Giving up.

    def _give_up(self, halves: list[Half], now_ms: int) -> None:
        """Move the messages to where an operator finds them (O21): nobody knows how they ended."""
        self._commits.create(special_topic(self._catalog, CHECK_MAX_TOPIC)[1])
        for _, message in halves:
            if message is not None:
                self._copy(message)
        offsets = [half.queue_offset for half, _ in halves]
        place = stage_op(self._commits.staging, offsets, TransactionVerdict.GIVEN_UP, now_ms)
        _log.warning(
            "%d transactions are given up after %d checks: see %s",
            len(halves),
            self.check_max,
            CHECK_MAX_TOPIC,
        )
        self._ends.note_ending(offsets)
        self._commits.wait(
            place, OnCommit(partial(self._given_up, offsets), partial(self._kept, offsets))
        )

    def _given_up(self, offsets: list[QueueOffset], _staged: StagedEntry, _place: int) -> None:
        self._ends.ended(offsets)
        self._is_waiting = False
        self.tick()

    def _kept(self, offsets: list[QueueOffset], error: DLedgerError) -> None:
        self._ends.ended(offsets, error)
        self._is_waiting = False

    def _copy(self, half: StoredMessage) -> None:
        """Stage the copy for the operator.

        One that cannot be encoded is logged, and the half message ends all the same.
        """
        try:
            self._commits.staging.stage(
                _CHECK_MAX_TOPIC,
                QueueId(0),
                half.body,
                half.properties,
                born_timestamp_ms=half.born_timestamp_ms,
                born_host=half.born_host,
                sys_flag=half.sys_flag,
                flag=half.flag,
                reconsume_times=half.reconsume_times,
                prepared_transaction_offset=half.physical_offset,
            )
        except RecordError as error:
            _log.warning("half message %d cannot be moved: %s", half.queue_offset, error)


def _first_bytes(halves: list[OpenHalf]) -> list[OpenHalf]:
    """Return as many of the first half messages as fit into CHECKED_BYTES_MAX, but one at least."""
    total = 0
    for count, half in enumerate(halves):
        total += half.size_bytes
        if total > CHECKED_BYTES_MAX and count:
            return halves[:count]
    return halves
