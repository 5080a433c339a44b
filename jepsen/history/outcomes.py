"""The outcome of a client's operation: definite or not, as the project's own error registries say.

A history is only as good as its `fail`s: one `fail` too many condemns a broker that did nothing wrong, one
too few lets a lost message pass. So nothing is decided here that the registries decide:

- errors of the broker's clients and of the log carry `definite` themselves, those with a response code as its
  row in `dledger_mq.remoting.codes` says;
- of an operation that changes nothing, no error leaves a doubt: it is `fail`;
- whatever is unknown here (a socket error, a timeout of ours) is `info`.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger import DLedgerError
from dledger_mq.client.errors import ClientError
from jepsen.history.ops import OpType


@dataclass(frozen=True, slots=True)
class Outcome:
    """The completion of an operation; see `Op` for the fields."""

    type: OpType
    value: object = None
    error: str = ""
    node: str = ""


def is_definite(error: BaseException) -> bool:
    """Return whether the error says that the operation surely did not happen, and never will."""
    if isinstance(error, ClientError | DLedgerError):
        return error.definite
    return False


def ended(
    error: Exception, value: object = None, *, changes_nothing: bool = False, node: str = ""
) -> Outcome:
    """Return the outcome of an operation that raised.

    Args:
        error: what was raised.
        value: as in the invocation, or with what is known beyond it.
        changes_nothing: the operation only reads: no answer means that it failed.
        node: who answered.
    """
    is_fail = changes_nothing or is_definite(error)
    text = f"{type(error).__name__}: {error}"
    return Outcome("fail" if is_fail else "info", value, text, node)
