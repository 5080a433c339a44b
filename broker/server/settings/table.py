"""The table of all keys of broker.conf. Data only."""

from __future__ import annotations

from typing import Final

from broker.server.settings.honoured import HONOURED
from broker.server.settings.needless_service import NEEDLESS_SERVICE
from broker.server.settings.needless_store import NEEDLESS_STORE
from broker.server.settings.refused import REFUSED
from broker.settings.key_table import KeyTable
from broker.settings.tls import TLS_NEEDLESS

NEEDLESS: Final = (*NEEDLESS_SERVICE, *NEEDLESS_STORE, TLS_NEEDLESS)

BROKER_KEYS: Final = KeyTable(
    "docs/broker-conf.md",
    (*(row for part in HONOURED.values() for row in part), *REFUSED, *NEEDLESS),
)
