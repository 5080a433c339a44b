"""The name server of the broker group in memory: what it answers, given what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand, make_response
from dledger_mq.remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRoute,
    encode_cluster_info,
    encode_route,
    encode_topic_list,
)

CLUSTER = "DefaultCluster"
_READ_AND_WRITE = 6


def answer_name_request(
    request: RemotingCommand,
    queues: Mapping[str, Sequence[object]],
    brokers: Sequence[BrokerData],
    *,
    default_queues: int | None,
) -> RemotingCommand:
    """Answer one request to the name server.

    Args:
        request: any.
        queues: the queues of each topic.
        brokers: the registered broker group; none while no node is up.
        default_queues: of a topic that its first message would make; None: messages make no topics.
    """
    match request.code:
        case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            body = encode_topic_list(queues)
        case RequestCode.DELETE_TOPIC_IN_NAMESRV:
            body = b""
        case RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {broker.broker_name: broker for broker in brokers}
            body = encode_cluster_info(ClusterInfo(table, {CLUSTER: tuple(table)}))
        case RequestCode.GET_ROUTEINFO_BY_TOPIC:
            topic = request.ext.get("topic", "")
            count = len(queues[topic]) if topic in queues else None
            if topic == AUTO_CREATE_TOPIC and count is None:
                count = default_queues
            if count is None or not brokers:
                remark = f"No topic route info in name server for the topic: {topic}"
                return make_response(request.opaque, ResponseCode.TOPIC_NOT_EXIST, remark)
            served = tuple(
                QueueData(broker.broker_name, _READ_AND_WRITE, count, 0, count)
                for broker in brokers
            )
            body = encode_route(TopicRoute(served, tuple(brokers)), quote_numbers=True)
        case _:
            return make_response(request.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    return make_response(request.opaque, ResponseCode.SUCCESS, body=body)
