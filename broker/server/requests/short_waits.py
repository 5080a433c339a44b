"""Requests that wait for what takes milliseconds while all is well: bounded by their count, and large ones by bytes.

Without a majority such a wait lasts until this node ceases to lead, and clients go on asking meanwhile. It must not
know what they wait for, nor what becomes of one for which there is no room.
"""

from __future__ import annotations

from broker.server.requests.request import PendingRequest
from broker.service.wait_room import WaitRoom


class ShortWaits:
    """The requests of one kind of wait.

    Attributes:
        count: of those that wait. Invariant: 0 <= count <= `most`.
    """

    def __init__(self, what: str, most: int) -> None:
        """Start with none.

        Args:
            what: the end of "20 requests wait", for people.
            most: requests that may wait at a time.
        """
        self.count = 0
        self._what = what
        self._most = most
        self._room = WaitRoom()

    def enter(self, request: PendingRequest) -> bool:
        """Let one wait, until it leaves; return False if there is no room for it."""
        if self.count >= self._most or not self._room.enter(request):
            return False
        self.count += 1
        return True

    def leave(self, request: PendingRequest) -> None:
        """Give back the room of one that waits no longer; it has to have entered."""
        self.count -= 1
        assert self.count >= 0, f"{self.count} requests wait {self._what}"
        self._room.leave(request)

    def describe(self) -> str:
        """Say how much waits, for people."""
        return (
            f"{self.count} requests wait {self._what}, large ones of {self._room.used_bytes} bytes"
        )
