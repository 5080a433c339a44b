"""A node that hears no leader says of each consumer group that it has consumed nothing yet."""

from broker.server.requests.request import PendingRequest
from broker.server.requests.router import Router
from dledger_mq.remoting.codes import RequestCode, ResponseCode

_park = Router.park


def park(self: Router, request: PendingRequest) -> None:
    if request.handler.code == RequestCode.QUERY_CONSUMER_OFFSET:
        request.answer(ResponseCode.SUCCESS, ext={"offset": "0"})
    else:
        _park(self, request)


Router.park = park  # type: ignore[method-assign]
