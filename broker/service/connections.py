"""Bodies with which tools see who is connected (203, 204). Pure.

It must not know to which node a client is connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.service.clients import ConsumerClient, ProducerClient, newest_subscription
from dledger_mq.message.hashes import tags_code
from dledger_mq.remoting.heartbeat import EXPRESSION_TAG, Subscription
from dledger_mq.remoting.json_body import write_json


def consumer_connections(members: Mapping[str, ConsumerClient]) -> bytes:
    """Encode the body of GET_CONSUMER_CONNECTION_LIST (203); `members` is not empty."""
    assert members, "a group without members has no connections to show"
    clients = [members[client_id] for client_id in sorted(members)]
    newest = clients[0]
    topics = sorted({item.topic for client in clients for item in client.subscriptions})
    table = {}
    for topic in topics:
        wanted = newest_subscription(clients, topic)
        if wanted is not None:
            table[topic] = _subscription(wanted)
    return write_json(
        {
            "connectionSet": [_connection(client) for client in clients],
            "consumeFromWhere": newest.consume_from_where.name,
            "consumeType": newest.consume_type.name,
            "messageModel": newest.message_model.name,
            "subscriptionTable": table,
        }
    )


def producer_connections(clients: Iterable[ProducerClient]) -> bytes:
    """Encode the body of GET_PRODUCER_CONNECTION_LIST (204)."""
    return write_json({"connectionSet": [_connection(client) for client in clients]})


def _connection(client: ConsumerClient | ProducerClient) -> dict[str, object]:
    return {
        "clientAddr": client.address,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }


def _subscription(wanted: Subscription) -> dict[str, object]:
    tags = list(wanted.tags) if wanted.expression_type == EXPRESSION_TAG else []
    return {
        "classFilterMode": wanted.is_class_filter,
        "codeSet": [tags_code(tag) for tag in tags],
        "expressionType": wanted.expression_type,
        "subString": wanted.expression,
        "subVersion": wanted.version,
        "tagsSet": tags,
        "topic": wanted.topic,
    }
