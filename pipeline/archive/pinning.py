"""Pins of an archive: the group is asked to keep what is not archived yet (docs/retention.md).

A pin is put before the store is looked at, and moved when a stretch is in the archive for good; it stays when the run
ends, so that retention waits for the next run, within its bounds. So what the log loses is archived, or a pin had
run out of its bounds, which the next run says.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from broker.admin.ask import NobodyAnsweredError, addresses_of_group
from broker.admin.pins import PinBounds, PinRefusedError, pin_log
from dledger.raft.ids import Position
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.name_servers import parse_name_servers
from pipeline.errors import InconclusiveError, PipelineUsageError

PutPin = Callable[[Position | None], int]
"""Puts the pin at a position, or where the log begins; returns where it stands."""


class ArchivePin:
    """The pin of one archive.

    Attributes:
        position: where it was put last; -1 before that.
    """

    def __init__(self, put: PutPin) -> None:
        self.position = -1
        self._put = put

    def begin(self, end_position: Position | None) -> None:
        """Keep what comes after the archive's end; None: the archive is empty, and all is kept.

        Where that is forgotten already, what there is still is kept: whether a gap lies between, the store shows.

        Raises:
            InconclusiveError: the group does not take it, or cannot be asked.
        """
        if end_position is not None:
            try:
                self.position = self._put(end_position)
            except PinRefusedError:
                end_position = None
        if end_position is None:
            self._move(None)

    def move(self, end_position: Position) -> None:
        """Release what is archived now.

        Raises:
            InconclusiveError: the group does not take it, or cannot be asked; what was pinned stays so.
        """
        self._move(end_position)

    def _move(self, position: Position | None) -> None:
        try:
            self.position = self._put(position)
        except PinRefusedError as error:
            raise InconclusiveError(f"the group does not take the pin: {error}") from error


def pin_at_group(name_server: str, group: str | None, name: str, bounds: PinBounds) -> PutPin:
    """Return what puts a pin of that name at a running group.

    Raises:
        PipelineUsageError: the address is none.
    """
    try:
        name_servers = parse_name_servers(name_server)
    except ClientUsageError as error:
        raise PipelineUsageError(str(error)) from error

    async def run(position: Position | None) -> int:
        return await pin_log(await addresses_of_group(name_servers, group), name, bounds, position)

    def put(position: Position | None) -> int:
        try:
            return trio.run(run, position)
        except NobodyAnsweredError as error:
            raise InconclusiveError(f"the pin {name!r} could not be put: {error}") from error

    return put
