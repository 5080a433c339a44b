"""The versions that this member speaks and writes, as text for `dledger-admin upgrade-check` (in the answer to 28).

Members of neighbouring versions run in one group (docs/upgrades.md). What one may write and another does not carry out
would part their states, so each names the control records that it knows.
"""

from __future__ import annotations

import json

from broker.store import control, saved
from broker.store.state import BrokerState
from dledger.codec import hello, snapshot


def version_table(state: BrokerState) -> dict[str, str]:
    """Return names and values: wire, formats and control records, and since which entry this process folds itself."""
    formats = {"control": control.VERSION, "state": saved.VERSION, "snapshot": snapshot.VERSION}
    return {
        "raftWireVersion": str(hello.PROTOCOL_VERSION),
        "raftFormats": json.dumps(formats),
        "raftControlCommands": ",".join(sorted(control.COMMAND_NAMES)),
        "digestBeganAt": str(state.restored_index),
    }
