"""A planned stop that costs clients no request: who led hands over, and serves on until clients have moved.

RocketMQ's clients ask for routes every 30 s. Until then they send to the node that they know, whoever leads. So a node
that has led goes on as a follower, which passes requests on, until every client has asked again; it leaves the
name servers last. So does one that has not led and that clients send to: it led before it was killed, or stood in for
the leader in routes. A node to which nobody has sent for so long stops at once; but if consumers read backlogs
here, they are first sent back to the leader, which takes no longer than their next pull. The last thing is to answer
the pulls that wait for a message: some clients (Java 4.9, C++) wait 30 s for the answer of a connection that has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from broker.server.registrar import Registrar
from dledger import LogServer, NodeId

_log = logging.getLogger(__name__)

LOOK_S: Final = 0.05
LEADERLESS_S: Final = 3.0
"""Nobody leads, or takes the lead, for so long: the others are stopping as well, or gone. An election takes less."""

HAND_OVER_AGAIN_S: Final = 0.25
"""A leader that was just elected hands over to nobody, since nobody has answered it yet."""

READERS_S: Final = 1.0
"""The time in which a reader of a backlog pulls once more, and hears that it is to pull from the leader."""

DRAIN_S: Final = 3.0
"""The longest time that the end takes: answers on their way, leaving the name servers."""


class OrderlyStop:
    """The end of one node, from the wish to stop until nothing is left to do."""

    def __init__(
        self,
        log: LogServer,
        registrar: Registrar,
        *,
        forward_s: float,
        passed_on_s: Callable[[], float | None],
        has_clients: Callable[[], bool],
        is_quiet: Callable[[], bool],
        send_readers_away: Callable[[], bool],
        answer_held_pulls: Callable[[], None],
        now_s: Callable[[], float],
    ) -> None:
        """Set up the orderly stop; `run` does it.

        Args:
            log: of this node.
            registrar: what keeps this node in the routes.
            forward_s: for how long after it has led, or was taken for the leader, clients may send to this node.
            passed_on_s: when a client's request was passed on last, by the clock; None: never.
            has_clients: whether a client is connected.
            is_quiet: whether nobody waits for an answer.
            send_readers_away: names this node to readers of backlogs no more; returns whether there are any.
            answer_held_pulls: answers the pulls that wait for a message.
            now_s: a clock that never goes back.
        """
        self._log = log
        self._registrar = registrar
        self.forward_s = forward_s
        self._passed_on_s = passed_on_s
        self._has_clients = has_clients
        self._is_quiet = is_quiet
        self._send_readers_away = send_readers_away
        self._answer_held_pulls = answer_held_pulls
        self._now_s = now_s
        self._led_s: float | None = None
        self._hurry = trio.Event()
        self._stage = ""
        self._serves_until_s: float | None = None

    @property
    def stage(self) -> str:
        """The progress of the stop in words; empty: none is wanted."""
        if self._serves_until_s is None:
            return self._stage
        left_s = max(0.0, self._serves_until_s - self._now_s())
        leader_id = self._log.leader_id
        to = f" to {leader_id}" if leader_id not in (None, self._log.node_id) else ""
        return f"passes requests on{to} for up to {left_s:.0f} s"

    def note_led(self) -> None:
        """Note that this node leads, or led until now."""
        self._led_s = self._now_s()

    def hurry(self) -> None:
        """Serve clients no longer than what was begun takes."""
        self._hurry.set()

    async def run(self) -> None:
        """Hand over, serve on while clients need it, answer what is on its way, leave the name servers."""
        _log.info("stopping: handing over, and answering what is on its way")
        self._stage = "hands over"
        if self._log.is_leader:
            self.note_led()
            await self._log.hand_over()
        has_readers = self._send_readers_away()
        await self._serve_on()
        if has_readers and self._has_clients():
            with trio.move_on_after(READERS_S):
                await self._hurry.wait()
        self._stage, self._serves_until_s = "leaves", None
        with trio.move_on_after(DRAIN_S):
            await self._registrar.leave(timeout_s=1.0)
            await self._log.drain()
            while not self._is_quiet():  # noqa: ASYNC110  looked at by the loop's tick as well, never for long
                await trio.sleep(LOOK_S)
        self._answer_held_pulls()

    async def _serve_on(self) -> None:
        """Pass requests on for clients that have yet to learn of the new leader, as long as there is one."""
        used_s = [each for each in (self._led_s, self._passed_on_s()) if each is not None]
        if not used_s or self._log.roster.is_alone:
            return
        end_s = self._serves_until_s = max(used_s) + self.forward_s
        leader_seen_s = self._now_s()
        announced: NodeId | None = None
        while not self._hurry.is_set() and self._has_clients():
            now_s = self._now_s()
            leader_id = self._log.leader_id
            if self._log.is_leader:
                await self._log.hand_over()
            elif leader_id is not None:
                leader_seen_s = now_s
            if now_s >= end_s or now_s - leader_seen_s >= LEADERLESS_S:
                return
            if leader_id not in (None, self._log.node_id, announced):
                announced = leader_id
                _log.info(
                    "%s leads; requests of clients that do not know it yet are passed on for up to %.0f s "
                    "(another signal ends that)",
                    leader_id,
                    end_s - now_s,
                )
            with trio.move_on_after(HAND_OVER_AGAIN_S if self._log.is_leader else LOOK_S):
                await self._hurry.wait()
