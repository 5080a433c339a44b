"""Appending to the log through the member that leads. Knows bodies; what they mean is the caller's business."""

from __future__ import annotations

from collections.abc import Callable

from dledger.raft.effects import Committed
from dledger.raft.ids import EntryId, Position
from dledger.runtime.callers import Answered, Done, wait_outcome
from dledger.runtime.standing import Standing


class LogAppender:
    """Takes entries while its member serves. Only `append` waits; the other methods return at once.

    All methods belong to the trio thread.

    Attributes:
        gatherers: called, once the member runs, after `gather_soon` and by `gather_now`; they propose what has gathered
            until then, and one sync is made for all of it.
    """

    def __init__(self, standing: Standing) -> None:
        self.gatherers: list[Callable[[], None]] = []
        self._standing = standing

    def gather_soon(self) -> None:
        """Let the gatherers propose, once all tasks that are ready now had their turn."""
        if self._standing.driver is not None:
            self._standing.driver.wake()

    def gather_now(self) -> None:
        """Let the gatherers propose at once, and write that: for who knows that nobody else is about to gather.

        It takes as long as a pass of the driver. Nothing is raised: if the member fails, `run` says so.
        """
        if self._standing.driver is not None:
            self._standing.driver.gather_now()

    @property
    def end_position(self) -> Position:
        """The byte place of the next proposed entry's header."""
        return self._standing.running.engine.node.log.end_position

    @property
    def pending_count(self) -> int:
        """Proposals that are not decided."""
        driver = self._standing.driver
        return driver.callers.pending_count if driver else 0

    def propose(self, body: bytes, done: Done) -> EntryId:
        """Append an entry at `end_position`. Its request may leave before this returns.

        `done` is called once, from a pass, in log order: after the entry was applied here, or with
        the failure. It must not raise.

        Raises:
            RefusedError: it was not taken and `done` is not called.
        """
        return self._standing.check_serving().propose(body, done)

    def append_soon(self, body: bytes, done: Done) -> None:
        """Append an entry together with all others that come before the next pass.

        For callers that need not know index and position beforehand. `done` as in `propose`.

        Raises:
            RefusedError: it was not taken and `done` is not called.
        """
        self._standing.check_serving().append_soon(body, done)

    async def append(self, body: bytes, *, timeout_s: float) -> EntryId:
        """Append an entry and wait until it is applied here.

        Raises:
            RefusedError: it surely did not happen.
            OutcomeUnknownError: it may have happened, or may yet. Cancelling means the same.
        """

        def ask(answered: Answered) -> None:
            self.append_soon(body, answered)

        outcome = await wait_outcome(ask, timeout_s)
        assert isinstance(outcome, Committed), f"an append ended as {outcome}"
        return outcome.last
