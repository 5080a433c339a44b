"""docs/requests.md, made from what the services of a broker register."""

from __future__ import annotations

from typing import Any

from broker.refused_codes import REFUSED_CODES
from broker.server.requests.request import Handler, Where
from broker.service.conclusions import RequestKind
from broker.testing.broker_cluster import BrokerCluster
from broker.testing.settings import BrokerSimSettings
from dledger_mq.remoting.codes import REQUESTS, RequestCode

REQUESTS_HEAD = """# Requests that a broker takes

Made from what the services of `broker/server` register, by `make docs`; do not edit. How to add one stands in
[adding-a-code.md](adding-a-code.md). What the nodes of a group say to each other stands in
[formats/broker_link.md](formats/broker_link.md). Codes that have no meaning here, or none yet, are answered with 1 and
the reason, as listed below; all others with 3, REQUEST_CODE_NOT_SUPPORTED.

"""


def handlers() -> tuple[Handler[Any], ...]:
    """What a broker has registered."""
    cluster = BrokerCluster(BrokerSimSettings(1, node_count=1))
    node = cluster.nodes[cluster.voters[0]]
    cluster.start(node)
    return cluster.brokers[node.node_id].controller.handlers


def requests_page() -> str:
    """The whole page."""
    rows = [
        "| code | name | what it is | kind | carried out | handler |",
        "|---|---|---|---|---|---|",
    ]
    known = frozenset(RequestCode)
    for handler in handlers():
        if handler.code in known:
            code = RequestCode(handler.code)
            where = handler.where.name + (", confirmed" if handler.is_confirmed else "")
            method = f"`{handler.serve.__qualname__}`"
            rows.append(
                f"| {code.value} | {code.name} | {REQUESTS[code]} | {handler.kind.name} | {where} | {method} |"
            )
    kinds = [f"- **{kind.name}** {kind.value}." for kind in RequestKind]
    places = [f"- **{where.name}** {where.value}." for where in Where]
    confirmed = (
        "- *confirmed*: once it is confirmed that this node leads: the answer shows what is applied there."
        " 14 and 29 to 32 ask for that themselves, after they have checked their fields,"
        " and so do sends that miss their topic."
    )
    parts = (*rows, "", "Kinds, which say what doing a request twice would do:", "", *kinds)
    parts += ("", "Where they are carried out:", "", *places, confirmed)
    parts += ("", "Refused with a reason:", "", *refusals())
    return REQUESTS_HEAD + "\n".join(parts) + "\n"


def refusals() -> list[str]:
    """The codes that are refused, by reason."""
    by_reason: dict[str, list[int]] = {}
    for code, why in REFUSED_CODES.items():
        by_reason.setdefault(why, []).append(code)
    return [f"- {', '.join(map(str, sorted(codes)))}: {why}." for why, codes in by_reason.items()]
