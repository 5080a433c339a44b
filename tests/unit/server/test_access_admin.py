"""What tools are shown of access rules is what holds."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

from broker.access.plain_acl import parse_file
from broker.server.handlers.access_admin import AccessAdmin
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker
from tests.unit.server.pending import pending

RULES = """
accounts:
- {accessKey: operators, secretKey: secret-of-o, admin: True}
- {accessKey: producer, secretKey: secret-of-p}
"""


def test_an_administrator_is_shown_as_one_however_that_is_written() -> None:
    keeper = SimpleNamespace(files=[parse_file("plain_acl.yml", RULES)])
    admin = AccessAdmin(
        cast("Any", keeper), cluster="C", broker_name="broker-a", service_address="x:1"
    )
    asker, command = Asker(), RemotingCommand(code=54)
    admin.show(pending(asker, 54, command=command), command)
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (frame,) = decoder.frames()
    rows = json.loads(decode_command(frame).body)["plainAccessConfigs"]
    assert [(row["accessKey"], row["secretKey"], row["admin"]) for row in rows] == [
        ("operators", "******", True),
        ("producer", "******", False),
    ]
