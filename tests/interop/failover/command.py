"""What the commands of this folder and `consumer_failover` share: whom they measure, how they end, what they return."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Final

from jepsen.nemeses.namespaces import lacking_namespaces
from tests.interop.conftest import JAVAS, lacking

CLIENTS: Final = (*JAVAS, "go", "cpp", "node", "ours")

NOTHING_LOST: Final = 0
LOST: Final = 1
NOT_MEASURED: Final = 2


class NotMeasuredError(Exception):
    """There is nothing to say of what was asked for."""


def status_of(measure: Callable[[], int]) -> int:
    """Measure, and return the exit status: the number of lost messages decides it.

    However it is ended, the measurement leaves its `with` statements, so that no process is left.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        return LOST if measure() else NOTHING_LOST
    except KeyboardInterrupt:
        sys.stderr.write("not measured: it was ended\n")
    except NotMeasuredError as error:
        sys.stderr.write(f"not measured: {error}\n")
    except Exception:
        logging.getLogger(__name__).exception("not measured")
    return NOT_MEASURED


def clients_here(asked_for: Sequence[str]) -> list[str]:
    """Return the clients that this machine can run, and name the others.

    Raises:
        NotMeasuredError: there are none.
    """
    reasons = {kind: lacking(kind) for kind in asked_for}
    for kind, reason in reasons.items():
        if reason is not None:
            sys.stderr.write(f"{kind}: {reason}\n")
    found = [kind for kind, reason in reasons.items() if reason is None]
    if not found:
        raise NotMeasuredError("no client can be run here")
    return found


def require_namespaces() -> None:
    """Refuse to measure machines that fall silent where no network namespaces can be had.

    Raises:
        NotMeasuredError: they cannot.
    """
    if reason := lacking_namespaces():
        raise NotMeasuredError(f"network namespaces: {reason}")
