"""Bodies with which tools see who is connected, and who subscribes to what (203, 204, 328, 345). Pure.

It must not know to which node a client is connected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.service.clients import ConsumerClient, ProducerClient, newest_subscription
from dledger_mq.message.hashes import tags_code
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.heartbeat import EXPRESSION_TAG, Subscription
from dledger_mq.remoting.json_body import read_object, write_json
from dledger_mq.remoting.message_queue import WireQueue


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
            table[topic] = wire_subscription(wanted)
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


def all_producers(seen: Iterable[tuple[ProducerClient, int]]) -> bytes:
    """Encode the body of GET_ALL_PRODUCER_INFO (328).

    Args:
        seen: producers, and when each was last heard of, in ms since 1970.
    """
    groups: dict[str, list[object]] = {}
    for client, seen_ms in seen:
        groups.setdefault(client.group, []).append(
            {
                "clientId": client.client_id,
                "language": client.language,
                "lastUpdateTimestamp": seen_ms,
                "remoteIP": client.address,
                "version": client.version,
            }
        )
    return write_json({"data": groups})


def subscription_answer(group: str, topic: str, wanted: Subscription | None) -> bytes:
    """Encode the body of QUERY_SUBSCRIPTION_BY_CONSUMER (345); None: nobody of the group subscribes to the topic."""
    body: dict[str, object] = {"group": group, "topic": topic}
    if wanted is not None:
        body["subscriptionData"] = wire_subscription(wanted)
    return write_json(body)


def consumer_status(bodies: Mapping[str, bytes]) -> bytes:
    """Encode the body of INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223).

    Args:
        bodies: of the answers that the clients have given (221), by client id; what cannot be read shows no offsets.
    """
    table: dict[str, dict[WireQueue, int]] = {}
    for client_id, body in bodies.items():
        try:
            found = read_object(body).get("messageQueueTable")
        except BodyError:
            found = None
        rows = found.items() if isinstance(found, dict) else ()
        table[client_id] = {
            queue: offset
            for queue, offset in rows
            if isinstance(queue, WireQueue) and isinstance(offset, int)
        }
    return write_json({"consumerTable": table, "messageQueueTable": {}})


def _connection(client: ConsumerClient | ProducerClient) -> dict[str, object]:
    return {
        "clientAddr": client.address,
        "clientId": client.client_id,
        "language": client.language,
        "version": client.version,
    }


def wire_subscription(wanted: Subscription) -> dict[str, object]:
    """Return a subscription in the protocol's words."""
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
