"""A broker whose fold cannot take messages that say BROKEN: run as a script in the place of dledger-broker."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from broker.server.cli import main
from broker.store.state import BrokerState
from dledger import Entry

BROKEN = b"the fold cannot take this"

_apply = BrokerState.apply


def apply(self: BrokerState, entries: Sequence[Entry]) -> None:
    for entry in entries:
        if BROKEN in entry.body:
            raise RuntimeError("planted: the fold has no rule for this")
        _apply(self, [entry])


if __name__ == "__main__":
    BrokerState.apply = apply  # type: ignore[method-assign]  # that is what this is for
    sys.exit(main())
