"""The lane for plain pulls: those of one read that find messages in memory, from their frames to their answers.

Most pulls are plain: this node leads, they may read, and what they ask for is in memory. They are answered where they
come. What a request value would hold for each is in the frames already, so none is made; and what holds for all of one
read, as that this node leads, is asked once: nothing else runs in between. The decisions are those of the ordinary
way, in its order: who may read is asked of the same rules (`service.pull`), what is there of the same reading, and how
much of a turn is left of the same turns.

Whatever is not plain, as a pull that finds nothing, that is refused or that has to wait, ends this and goes the
ordinary way (pulls.py), from its first step on: nothing of it was done here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

from broker.server.handlers.pull_answers import BACKLOG_BYTES, PullAnswers
from broker.server.handlers.pull_request import Pull
from broker.server.handlers.pull_turns import PullTurns
from broker.server.handlers.sent_away import SentAway
from broker.server.requests.calls import Calls
from broker.server.requests.origin import Origin
from broker.server.requests.request import HOLD_MS, Command
from broker.service.catalog import NOTHING_NEW
from broker.service.pull import PullGrant, PullRules
from broker.service.refusal import Refusal
from broker.store.not_in_memory import NotInMemoryError
from broker.store.reading import GetResult
from broker.store.state import BrokerState
from dledger.raft.ids import Position
from dledger.runtime.log_reader import LogReader
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.errors import FieldError, FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.requests import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PullFields,
    PullRequest,
    decode_request,
)

GRANTS_MAX: Final = 1024
GRANT_CHARACTERS_MAX: Final = 1024
"""Of what is remembered: most pulls are of few groups, and whoever pulls may name what he likes."""

Asked = tuple[str, str, QueueId, int, str | None, str | None]
"""The fields of a pull by which it is judged, if it brings its subscription."""


class _Gathered:
    """The answers to the pulls of one read.

    Attributes:
        origin: of all of them.
        log_end: of the committed log, all of which is applied.
        pieces: the answers.
    """

    __slots__ = ("log_end", "origin", "pieces")

    def __init__(self, origin: Origin, log_end: Position) -> None:
        self.origin = origin
        self.log_end = log_end
        self.pieces: list[bytes | memoryview] = []


class PullLane:
    """Answers plain pulls while this node leads."""

    def __init__(
        self,
        reader: LogReader,
        state: BrokerState,
        rules: PullRules,
        answers: PullAnswers,
        *,
        turns: PullTurns[Pull],
        sent_away: SentAway,
        commit_offset: Callable[[Origin, PullFields], None],
        calls_of: Callable[[int], Calls],
        note_mistake: Callable[[Exception, str], bool],
    ) -> None:
        """Set up the lane.

        Args:
            reader: the log.
            state: the fold.
            rules: who may read what.
            answers: what answers are made of.
            turns: how much of a turn pulls may take.
            sent_away: those who were sent to the leader.
            commit_offset: takes the offset that a pull carries.
            calls_of: returns what counts the answers to a code.
            note_mistake: see `Mistakes.note`.
        """
        self._reader = reader
        self._state = state
        self._rules = rules
        self._answers = answers
        self._turns = turns
        self._sent_away = sent_away
        self._commit_offset = commit_offset
        self._calls_of = calls_of
        self._note_mistake = note_mistake
        self._grants: dict[Asked, PullGrant] = {}
        self._judged_by: tuple[object, object, object] = (None, None, None)

    def take(
        self,
        origin: Origin,
        frames: Sequence[Frame],
        at: int,
        command: PullRequest,
        *,
        deadline_ms: int,
    ) -> tuple[int, Command | None]:
        """See `RequestLane`; all that are taken have the code of the first."""
        # Who follows a reset is found out the ordinary way.
        log_end = self._reader.current_end
        if log_end is None or self._state.offsets.resets or origin.is_closed:
            return at, command
        self._sent_away.forget()
        self._look_at_tables()
        first, calls, count = at, self._calls_of(command.code), len(frames)
        gathered = _Gathered(origin, log_end)
        code, following = command.code, cast("Command | None", command)
        try:
            while isinstance(following, PullRequest) and following.code == code:
                if following.flag or not self._answer(gathered, following):
                    break
                at += 1
                try:
                    following = decode_request(frames[at]) if at < count else None
                except (FieldError, FrameError):
                    following = None  # whoever decodes it next says so
        finally:
            if at > first:
                origin.send_pieces(gathered.pieces)
                calls.answered(ResponseCode.SUCCESS, deadline_ms - HOLD_MS, at - first)
        return at, following

    def _look_at_tables(self) -> None:
        """Forget who may read what, if anything has changed by which that was judged."""
        state, rules = self._state, self._rules
        topics, groups = state.topics.version, state.groups.version
        settings = rules.permission, rules.property_filters
        # A table that came with a snapshot may differ from one of the same version: another value says so.
        is_same = topics is self._judged_by[0] and groups is self._judged_by[1]
        if not is_same or settings != self._judged_by[2]:
            self._judged_by = topics, groups, settings
            self._grants.clear()

    def _answer(self, gathered: _Gathered, pull: PullRequest) -> bool:
        """Add the answer to a pull, if it is plain, and return whether it is; runs per pull."""
        answers, turns = self._answers, self._turns
        origin, fields, connection = gathered.origin, pull.fields, gathered.origin.number
        if not turns.may_take(is_backlog=connection in answers.backlog_readers):
            return False
        result = self._found(origin, fields, gathered.log_end)
        if result is None:
            return False
        if fields.sys_flag & PULL_COMMIT_OFFSET and fields.commit_offset >= 0:
            self._commit_offset(origin, fields)
        gathered.pieces.append(answers.head_of_found(connection, pull.opaque, fields, result))
        gathered.pieces += result.records
        turns.taken(is_backlog=result.bytes_behind > BACKLOG_BYTES)
        return True

    def _found(self, origin: Origin, fields: PullFields, log_end: Position) -> GetResult | None:
        """Return what a pull gets, if it may read, and finds messages in memory; nothing is done yet."""
        asked = (
            fields.consumer_group,
            fields.topic,
            fields.queue_id,
            fields.sys_flag,
            fields.subscription,
            fields.expression_type,
        )
        try:
            grant = self._grants.get(asked) or self._grant(asked, fields)
            return grant and self._answers.found_at_once(fields, grant.tags, log_end)
        except NotInMemoryError:
            return None
        except Exception as error:  # the ordinary way meets the same, and answers
            if not self._note_mistake(error, f"a pull of {origin.address}"):
                raise
            return None

    def _grant(self, asked: Asked, fields: PullFields) -> PullGrant | None:
        """Return what a pull may read by tags, None if it has to go the ordinary way; keep what a table decides.

        What a pull says of itself counts as long as the tables and settings stay as they are; what heartbeats said may
        change with each of them.
        """
        grant = self._rules.check(fields)
        if (
            isinstance(grant, Refusal)
            or grant.creation is not NOTHING_NEW
            or grant.property_filter is not None
        ):
            return None
        state = self._state
        is_applied = fields.topic in state.topics and fields.consumer_group in state.groups
        if is_applied and fields.sys_flag & PULL_SUBSCRIPTION:
            if len(self._grants) >= GRANTS_MAX:
                self._grants.clear()
            if sum(len(each) for each in asked if isinstance(each, str)) <= GRANT_CHARACTERS_MAX:
                self._grants[asked] = grant
        return grant
