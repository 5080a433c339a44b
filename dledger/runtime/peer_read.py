"""A committed entry that the own disk does not give, read from another member while the caller waits.

Reads of the log are synchronous: whoever pulls, queries or delivers wants the bytes now. Damage is rare, so
the loop is held up for it, for a few milliseconds and at most `TIMEOUT_S`; in a thread, over the port for
log clients, as any client would read it. What comes is believed for its chain CRC only.
"""

from __future__ import annotations

import threading
from typing import Final

from dledger.config import LogConfig
from dledger.errors import DLedgerError
from dledger.raft.entry import Entry
from dledger.raft.ids import Index
from dledger.runtime.sync_client import SyncClient

TIMEOUT_S: Final = 0.4
"""For all members together: less than a leader may be silent."""


def read_from_peers(config: LogConfig, index: Index) -> list[Entry]:
    """What the other members have at this index, as many as answer in time; the caller verifies."""
    found: list[Entry] = []

    def read() -> None:
        others = [peer for peer in config.peers if peer.node_id != config.raft.node_id]
        timeout_s = TIMEOUT_S / len(others)
        for other in others:
            try:
                with SyncClient(
                    (other,), group=config.group, secret=config.secret, timeout_s=timeout_s
                ) as client:
                    found.extend(client.get(index, 1, local=other.node_id))
            except DLedgerError:
                continue
            return

    if len(config.peers) > 1:
        thread = threading.Thread(target=read, name="read from peers", daemon=True)
        thread.start()
        thread.join(TIMEOUT_S)
    return list(found)
