"""The rule by which a leader counts a member: a table of what its answers show, within one term.

A member that lost what it had promised must not be counted for it: not for commit, lease, reads or check
quorum. Two kinds of it are known. One says so itself: its store began empty, or is known to be an older copy,
and its answers carry a number drawn for that store (docs/adr/0061, 0103). The other does not know: its log is
shorter than what it has confirmed in this very term (docs/adr/0101). Both are counted again once they hold an
entry, younger than what was lost, that the others committed without them: whoever was elected, or has committed
anything, with the help of the lost store is known to the majority that confirmed this entry, so the entry's
leader would have been deposed.

Knows rounds, store numbers and indexes; nothing of what is sent, nor of how the log is brought along.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dledger.raft.ids import Index


class AdmissionState(Enum):
    """The degree to which the leader trusts a member's answers."""

    COUNTED = "counted"
    NO_VOTE = "without a vote"
    GONE_BACK = "gone back"


class Sign(Enum):
    """The evidence that the leader sees; the value is the sentence that docs/protocol.md prints."""

    OTHER_STORE = "it answers without a vote, for a store that the leader did not know"
    SAME_STORE = "it answers without a vote, for the store that the leader knows"
    OLD_ANSWER = "it answers as a voter a request from before the leader heard of the loss"
    NEW_ANSWER = "it answers as a voter a later request"
    SHORT_LOG = "its log ends before what it has confirmed in this term"
    CAUGHT_UP = "it holds an entry that the others committed without it"


@dataclass(frozen=True, slots=True)
class Ruling:
    """The consequence of a sign.

    Attributes:
        after: what its answers are worth from here.
        is_taken: whether the answer says anything about the store that the member has now.
        is_void: whether all that it confirmed before is void.
    """

    after: AdmissionState
    is_taken: bool = True
    is_void: bool = False


_TAKEN = Ruling(AdmissionState.COUNTED)

RULINGS: dict[tuple[AdmissionState, Sign], Ruling] = {
    (AdmissionState.COUNTED, Sign.NEW_ANSWER): _TAKEN,
    (AdmissionState.COUNTED, Sign.OLD_ANSWER): _TAKEN,
    # From before it was admitted.
    (AdmissionState.COUNTED, Sign.SAME_STORE): Ruling(AdmissionState.COUNTED, is_taken=False),
    (AdmissionState.COUNTED, Sign.OTHER_STORE): Ruling(AdmissionState.NO_VOTE, is_void=True),
    (AdmissionState.COUNTED, Sign.SHORT_LOG): Ruling(AdmissionState.GONE_BACK, is_void=True),
    # Only an admitted member answers as a voter: the request reached this store, or one after it.
    (AdmissionState.NO_VOTE, Sign.NEW_ANSWER): Ruling(AdmissionState.COUNTED),
    # What the lost store had answered.
    (AdmissionState.NO_VOTE, Sign.OLD_ANSWER): Ruling(AdmissionState.NO_VOTE, is_taken=False),
    (AdmissionState.NO_VOTE, Sign.SAME_STORE): Ruling(AdmissionState.NO_VOTE),
    (AdmissionState.NO_VOTE, Sign.OTHER_STORE): Ruling(AdmissionState.NO_VOTE, is_void=True),
    # It takes itself for a voter all the while.
    (AdmissionState.GONE_BACK, Sign.NEW_ANSWER): Ruling(AdmissionState.GONE_BACK),
    (AdmissionState.GONE_BACK, Sign.OLD_ANSWER): Ruling(AdmissionState.GONE_BACK, is_taken=False),
    # From before it was admitted, and so from before it went back.
    (AdmissionState.GONE_BACK, Sign.SAME_STORE): Ruling(AdmissionState.GONE_BACK, is_taken=False),
    (AdmissionState.GONE_BACK, Sign.OTHER_STORE): Ruling(AdmissionState.NO_VOTE, is_void=True),
    (AdmissionState.GONE_BACK, Sign.CAUGHT_UP): Ruling(AdmissionState.COUNTED),
}
"""A pair without a row cannot be: only a counted member can be seen to go back, and only it comes back by
itself."""


def ruling(state: AdmissionState, sign: Sign) -> Ruling:
    """Return the consequence of a sign; a pair without a row is a bug of ours."""
    assert (state, sign) in RULINGS, (
        f"a member that is {state.value} cannot be seen so: {sign.value}"
    )
    return RULINGS[state, sign]


@dataclass(slots=True)
class Admission:
    """The leader's judgement of one member's answers, within one term.

    Invariant: is_counted is what `state` says.

    Attributes:
        state: what its answers are worth. Changed in here only.
        is_counted: whether that is COUNTED; an attribute, since it is asked for with every request and answer.
        store: number of its latest store without a vote; kept when it is admitted, so that late answers are
            known. 0: there was none.
        loss_round: the latest request that had been sent to anybody when the loss was heard of.
        confirmed_round: the same for when its match index last grew; set by whoever sees that.
        rejoin_index: the entry that must be committed without it, and be held by it, before it is counted
            again; None until that entry exists. It says nothing while the member is counted.
    """

    state: AdmissionState = AdmissionState.COUNTED
    is_counted: bool = True
    store: int = 0
    loss_round: int = 0
    confirmed_round: int = 0
    rejoin_index: Index | None = None

    @property
    def needs_entry(self) -> bool:
        """True while the entry has yet to be appended that it must hold to be counted again."""
        return not self.is_counted and self.rejoin_index is None

    def take_answer(self, answered_round: int, store: int, *, last_round: int) -> Ruling:
        """Take an answer, and rule on what it is worth.

        A request that was sent after a number was heard reaches only what came after the store of that
        number, or that store itself: whoever answers it as a voter was admitted. So a number that comes
        late, of a store before, does no harm for long.

        Args:
            answered_round: the request that it answers.
            store: what the answer says of the store; 0: the member takes itself for a voter.
            last_round: the latest request that was sent to anybody.
        """
        if self.is_counted and not store:
            return _TAKEN  # nearly all of them
        if store:
            sign = Sign.SAME_STORE if store == self.store else Sign.OTHER_STORE
        else:
            sign = Sign.OLD_ANSWER if answered_round <= self.loss_round else Sign.NEW_ANSWER
        if sign is Sign.OTHER_STORE:
            self.store = store
        return self._follow(sign, last_round=last_round)

    def shows_loss(self, answered_round: int, *, last_index: Index, match_index: Index) -> bool:
        """Return whether a rejection shows that a counted member lost what it had confirmed in this very term.

        The request was sent after the leader had heard of `match_index`, so the member had it then.
        """
        return (
            self.is_counted and answered_round > self.confirmed_round and last_index < match_index
        )

    def went_back(self, *, last_round: int) -> None:
        """Void everything that the member confirmed: a rejection has shown that it lost entries."""
        self._follow(Sign.SHORT_LOG, last_round=last_round)

    def holds_enough(self, *, match_index: Index, commit_index: Index) -> bool:
        """Return whether the member holds the entry that was committed without it, if it must hold one."""
        rejoin_index = self.rejoin_index
        return rejoin_index is not None and min(match_index, commit_index) >= rejoin_index

    def count_again(self, *, match_index: Index, commit_index: Index) -> None:
        """Count a member that went back as soon as it has caught up far enough.

        A member that knows of its lost vote is counted only once a request has admitted it, by number (`admits`).
        """
        if self.state is AdmissionState.GONE_BACK and self.holds_enough(
            match_index=match_index, commit_index=commit_index
        ):
            self._follow(Sign.CAUGHT_UP, last_round=self.loss_round)

    def admits(self, *, match_index: Index, commit_index: Index) -> int:
        """Return the store that the next request may admit; 0: none."""
        if self.is_counted or not self.holds_enough(
            match_index=match_index, commit_index=commit_index
        ):
            return 0
        return self.store

    def _follow(self, sign: Sign, *, last_round: int) -> Ruling:
        assert self.is_counted is (self.state is AdmissionState.COUNTED), (
            f"a member that is {self.state.value} has is_counted={self.is_counted}"
        )
        follows = ruling(self.state, sign)
        self.state = follows.after
        self.is_counted = follows.after is AdmissionState.COUNTED
        if follows.is_void:
            assert last_round >= self.loss_round, f"round {last_round} after {self.loss_round}"
            self.loss_round = last_round
            self.rejoin_index = None
        return follows


def admission_table() -> str:
    """Return the table as Markdown, for docs/protocol.md."""
    rows = ["| a member that is | when | becomes | its answer | what it confirmed |"]
    rows += ["|---|---|---|---|---|"]
    rows += [
        f"| {state.value} | {sign.value} | {each.after.value} | {'is taken' if each.is_taken else 'says nothing'} "
        f"| {'is void' if each.is_void else 'stays'} |"
        for (state, sign), each in RULINGS.items()
    ]
    return "\n".join(rows)
