"""The waiting callers: proposals until their entries are applied, reads and hand-overs until their answers.

Knows the engine only as tokens and outcomes. A proposal's callback comes when its entry was applied
at this node, so what the caller reads next includes it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

import trio

from dledger.errors import AckTimeoutError, DLedgerError
from dledger.raft.effects import Committed, Failed, Outcome
from dledger.raft.ids import EntryId, Index

Done = Callable[[Committed | Failed], None]
Answered = Callable[[Outcome], None]


class Callers:
    """The callers that wait for an outcome or for an entry to be applied.

    Invariants: every callback is called once; those of proposals in log order; pending_count >= 0.

    Attributes:
        pending_count: entries that were taken from callers and are not yet decided.
    """

    def __init__(self) -> None:
        self.pending_count = 0
        self._tokens = count(1)
        self._answers: dict[int, Answered] = {}
        self._staged: list[tuple[bytes, Done]] = []
        self._early: list[tuple[int, Outcome]] = []
        self._committed: deque[tuple[Index, Done, Committed]] = deque()
        self._applied: list[tuple[Index, int, trio.Event]] = []

    @property
    def are_idle(self) -> bool:
        """True while nobody waits for the engine."""
        return not self._answers and not self._staged

    @property
    def has_staged(self) -> bool:
        """True while bodies wait to be proposed."""
        return bool(self._staged)

    @property
    def has_outcomes(self) -> bool:
        """True while somebody's outcome is known and has not been handed over."""
        return bool(self._committed or self._early)

    def add(self, answered: Answered) -> int:
        """Return a token for a question to the engine."""
        token = next(self._tokens)
        self._answers[token] = answered
        return token

    def remove(self, token: int) -> None:
        """Forget a question that was not taken: `answered` is not called."""
        del self._answers[token]

    def add_proposal(self, done: Done) -> int:
        """Return a token for one entry."""
        self.pending_count += 1

        def decided(outcome: Outcome) -> None:
            self.pending_count -= 1
            assert self.pending_count >= 0, "more proposals are decided than were made"
            if isinstance(outcome, Committed):
                index, committed = outcome.last.index, self._committed
                assert not committed or committed[-1][0] < index, (
                    f"entry {index} is committed after entry {committed[-1][0]}"
                )
                committed.append((index, done, outcome))
            else:
                assert isinstance(outcome, Failed), f"a proposal ended as {outcome}"
                done(outcome)

        return self.add(decided)

    def remove_proposal(self, token: int) -> None:
        """Forget a proposal that was not taken: `done` is not called."""
        self.pending_count -= 1
        self.remove(token)

    def stage(self, body: bytes, done: Done) -> None:
        """Keep an entry that shares the next proposal."""
        self.pending_count += 1
        self._staged.append((body, done))

    def take_staged(self) -> tuple[int, tuple[bytes, ...]]:
        """Return one token for all staged bodies, one entry each, in order."""
        staged, self._staged = self._staged, []

        def decided(outcome: Outcome) -> None:
            """Give each staged body its own outcome: the entries are consecutive, in the order of staging."""
            self.pending_count -= len(staged)
            assert self.pending_count >= 0, "more proposals are decided than were made"
            assert isinstance(outcome, Committed | Failed), f"a proposal ended as {outcome}"
            if isinstance(outcome, Failed):
                for _, done in staged:
                    done(outcome)
                return
            term, first = outcome.first.term, outcome.first.index
            assert outcome.last.index == first + len(staged) - 1, (
                f"{len(staged)} bodies are committed as entries {first} to {outcome.last.index}"
            )
            for index, (_, done) in enumerate(staged, first):
                entry_id = EntryId(term, Index(index))
                self._committed.append((entry_id.index, done, Committed(entry_id, entry_id)))

        return self.add(decided), tuple(body for body, _ in staged)

    def keep_early(self, token: int, outcome: Outcome) -> None:
        """Keep an outcome that came in the middle of another caller's question."""
        self._early.append((token, outcome))

    def answer(self, resolved: Iterable[tuple[int, Outcome]], applied_index: Index) -> None:
        """Hand over outcomes, then call those whose entries are applied."""
        early, self._early = self._early, []
        for token, outcome in early:
            self._answers.pop(token)(outcome)
        for token, outcome in resolved:
            self._answers.pop(token)(outcome)
        committed = self._committed
        while committed and committed[0][0] <= applied_index:
            _, done, outcome = committed.popleft()
            done(outcome)

    def wake_applied(self, applied_index: Index) -> None:
        """Wake the callers that wait for the state machine to contain an index."""
        waiting = self._applied
        while waiting and waiting[0][0] <= applied_index:
            heapq.heappop(waiting)[2].set()

    async def wait_applied(self, index: Index) -> None:
        """Wait until `wake_applied` was called with `index` or more, or the node stopped."""
        event = trio.Event()
        heapq.heappush(self._applied, (index, next(self._tokens), event))
        await event.wait()

    def fail_all(self, error: DLedgerError) -> None:
        """Answer everybody: the node has stopped."""
        if self._staged:
            self.take_staged()
        failed = Failed(error)
        self._early.clear()
        answers, self._answers = self._answers, {}
        for answered in answers.values():
            answered(failed)
        while self._committed:
            # Committed, but not known to be applied here: the caller must not read on.
            self._committed.popleft()[1](failed)
        for _, _, event in self._applied:
            event.set()
        self._applied.clear()


async def wait_outcome(ask: Callable[[Answered], None], timeout_s: float) -> Outcome:
    """Put a question to the engine and wait for the outcome; raises its error if it failed.

    Raises:
        DLedgerError: what the question failed with; AckTimeoutError when no answer came in time.
    """
    event = trio.Event()
    outcome: Outcome | None = None

    def answered(given: Outcome) -> None:
        nonlocal outcome
        outcome = given
        event.set()

    ask(answered)
    with trio.move_on_after(timeout_s):
        await event.wait()
    # The answer may have come in the same moment as the timeout.
    given = outcome
    if given is None:
        raise AckTimeoutError(f"not decided within {timeout_s} s")
    if isinstance(given, Failed):
        raise given.error
    return given
