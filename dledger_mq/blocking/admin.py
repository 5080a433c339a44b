"""Topics, groups and offsets, administered by code without async."""

from __future__ import annotations

import ssl

from dledger_mq.blocking.runner import Runner, blocking
from dledger_mq.client import admin
from dledger_mq.client.credentials import Credentials
from dledger_mq.client.pull_consumer import PULL_TIMEOUT_S


class Admin(Runner[admin.Admin]):
    """Administers the broker groups that some name servers know; arguments as `dledger_mq.Admin`."""

    def __init__(
        self,
        namesrv: str,
        *,
        timeout_s: float = PULL_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(
            admin.Admin(namesrv, timeout_s=timeout_s, tls=tls, credentials=credentials)
        )

    create_topic = blocking(admin.Admin.create_topic)
    list_topics = blocking(admin.Admin.list_topics)
    describe_topic = blocking(admin.Admin.describe_topic)
    delete_topic = blocking(admin.Admin.delete_topic)
    create_group = blocking(admin.Admin.create_group)
    list_groups = blocking(admin.Admin.list_groups)
    describe_group = blocking(admin.Admin.describe_group)
    delete_group = blocking(admin.Admin.delete_group)
    reset_offsets = blocking(admin.Admin.reset_offsets)
