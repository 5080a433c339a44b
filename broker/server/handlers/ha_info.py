"""Replication and terms as RocketMQ's tools show them: `haStatus` (907) and `getBrokerEpoch` (1007).

RocketMQ has another name for the terms of a log; its other brokers are the followers here, and what one has
acknowledged is the place up to which its log is known to equal the leader's. Any node answers for itself; of others
only a leader knows something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.server.config import BrokerConfig, follower_id
from broker.server.links.private_codes import SERVICE_ADDRESS
from broker.server.requests.request import Handler, PendingRequest, Where
from broker.service.conclusions import RequestKind
from dledger import DLedgerError, Index, LogServer, NodeId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import write_json

TERMS_MAX: Final = 64
"""Terms of one answer, the newest ones."""

LEADER_ID: Final = 0
"""The leader's id in routes."""


class HaInfo:
    """Answers for this node."""

    def __init__(self, config: BrokerConfig, log: LogServer) -> None:
        """Set up the answers.

        Args:
            config: names of cluster and group.
            log: role, terms and members.
        """
        self._config = config
        self._log = log

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, read, here = RequestCode, RequestKind.READ, Where.HERE
        return (
            Handler(code.GET_BROKER_HA_STATUS, self.status, read, here),
            Handler(code.GET_BROKER_EPOCH_CACHE, self.terms, read, here),
        )

    def status(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_BROKER_HA_STATUS: at a leader how far the others are, elsewhere how far this node is."""
        _answer(request, self._status)

    def _status(self) -> dict[str, object]:
        is_leader = self._log.is_serving
        rows = self._followers() if is_leader else []
        return {
            "haClientRuntimeInfo": {} if is_leader else self._following(),
            "haConnectionInfo": rows,
            "inSyncSlaveNums": sum(bool(row["inSync"]) for row in rows),
            "master": is_leader,
            "masterCommitLogMaxOffset": self._log.reader.committed_position,
        }

    def _followers(self) -> list[dict[str, object]]:
        """Return the other members, with the place up to which each has the log as it is here."""
        statistics = self._log.status.statistics()
        end = self._log.reader.committed_position
        return [
            {
                "addr": self._address(node_id),
                "diff": end - (acknowledged := self._place_behind(index)),
                "inSync": node_id in statistics.peers_connected
                and index >= statistics.commit_index,
                "slaveAckOffset": acknowledged,
                "transferFromWhere": acknowledged,
            }
            for node_id, index in sorted(statistics.match_indexes.items())
        ]

    def _place_behind(self, index: Index) -> int:
        """Return where an entry ends that may be committed; of one that is kept no more, where the log begins."""
        reader = self._log.reader
        known = min(index, reader.commit_index)
        if known < self._log.status.statistics().first_index:
            return reader.first_position
        return reader.position_of(Index(known + 1))

    def _following(self) -> dict[str, object]:
        """Return what this node knows of its leader, and how far it is itself."""
        leader_id = self._log.leader_id
        return {
            "activated": leader_id is not None and leader_id in self._log.status.peers_connected(),
            "masterAddr": "" if leader_id is None else self._address(leader_id),
            "maxOffset": self._log.reader.applied_position,
        }

    def _address(self, node_id: NodeId) -> str:
        """Return where a member serves clients, or its own address as long as that was not heard."""
        status = self._log.status
        return status.attributes(node_id).get(SERVICE_ADDRESS) or status.address_of(node_id)

    def terms(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_BROKER_EPOCH_CACHE: the terms of the log that is kept here."""
        _answer(request, self._terms)

    def _terms(self) -> dict[str, object]:
        """Return the terms of the log that is kept here, each with its bytes."""
        reader = self._log.reader
        runs = reader.term_runs(TERMS_MAX)
        ends = [*(run.position for run in runs[1:]), reader.committed_position]
        own_id = follower_id(str(self._log.node_id))
        return {
            "brokerId": LEADER_ID if self._log.is_serving else own_id,
            "brokerName": self._config.broker_name,
            "clusterName": self._config.cluster,
            "epochList": [
                {"endOffset": end, "epoch": run.term, "startOffset": run.position}
                for run, end in zip(runs, ends, strict=True)
            ],
            "maxOffset": reader.committed_position,
        }


def _answer(request: PendingRequest, make: Callable[[], dict[str, object]]) -> None:
    """Answer with a body that is made from the log, or say that its index cannot be read now."""
    try:
        body = make()
    except (DLedgerError, OSError) as error:
        request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
    else:
        request.answer(ResponseCode.SUCCESS, body=write_json(body))
