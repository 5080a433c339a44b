"""Brokers that ask how a transaction ended: passed on to a producer of its topic, which answers by EndTransaction.

A broker asks again about what nobody has answered.
"""

from __future__ import annotations

import logging
from typing import Any

from broker.proxy.clients import ProxyClients
from broker.proxy.handles import OpenTransaction
from broker.proxy.incoming import incoming
from broker.proxy.protocol import TelemetryCommand
from dledger_mq.client.link import Link
from dledger_mq.client.messages import received
from dledger_mq.message.errors import RecordError
from dledger_mq.message.record import decode_record
from dledger_mq.remoting.header import RemotingCommand

_log = logging.getLogger(__name__)


class Checking:
    """Passes on the questions of brokers (CHECK_TRANSACTION_STATE)."""

    def __init__(self, clients: ProxyClients) -> None:
        self._clients = clients

    def on_check(self, link: Link, command: RemotingCommand) -> None:
        """Pass on one question; one that cannot be read is logged."""
        said = command.ext
        broker_name = said.get("bname", "")
        offset, position = said.get("tranStateTableOffset", ""), said.get("commitLogOffset", "")
        try:
            message = received(decode_record(command.body), broker_name)
            place = OpenTransaction(message.unique_key, broker_name, int(offset), int(position))
        except (RecordError, ValueError) as error:
            _log.warning(
                "%s asks about a transaction, and it cannot be read: %s", link.address, error
            )
            return

        def question(namespace: str) -> Any:
            ask = TelemetryCommand()
            found = ask.recover_orphaned_transaction_command
            found.transaction_id = place.encode()
            found.message.CopyFrom(incoming(message, namespace=namespace))
            return ask

        if not self._clients.send_to_producer(message.topic, question):
            _log.info("no producer of %s can be asked about %s", message.topic, message.unique_key)
