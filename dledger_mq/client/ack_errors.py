"""How an acknowledgement of popped messages, or a change of their time, can fail: for good, for now, or nobody knows.

The distinctions are those of sends (errors.py), for each message of a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from dledger_mq.client.errors import ClientError
from dledger_mq.client.popped_messages import PoppedMessage


class AckError(ClientError):
    """Not every popped message of a call was acknowledged, or given its new time. What is in no list here, was.

    Attributes:
        expired: nothing was in flight under their handles: they were acknowledged before, their time was changed, or
            it was over and somebody else has them, or they were moved to a retry or dead letter topic.
        unknown: they were acknowledged, or they were not and come again.
        undone: surely nothing was done; the handles are as good as before, so the call may be repeated with them.
    """

    def __init__(
        self,
        text: str,
        *,
        expired: Sequence[PoppedMessage] = (),
        unknown: Sequence[PoppedMessage] = (),
        undone: Sequence[PoppedMessage] = (),
    ) -> None:
        self.expired = tuple(expired)
        self.unknown = tuple(unknown)
        self.undone = tuple(undone)
        super().__init__(text)


class HandleExpiredError(AckError):
    """Nothing was in flight under some handles (`expired`); for these the call has changed nothing."""


class AckRefusedError(AckError):
    """Some messages (`undone`) are surely as they were: nobody took the request in time, or it was refused."""

    retriable = True


class AckOutcomeUnknownError(AckError):
    """Of some messages (`unknown`) nobody can say whether it was done: the answer was lost, as when a leader dies.

    At worst they come again after their time; trying again would not tell.
    """

    definite = False
