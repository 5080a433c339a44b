"""Asks a running group how far its log is committed.

A commit index is true of the log of the member that says it: up to there its entries are the group's. Another
member's store may hold, at the same index, an entry of a leader that was cut off and never committed it. So
the bound for a store is what its own node says, or, where it is not known whose store it is, the least of what
all members say.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio

from broker.admin.ask import NobodyAnsweredError, NodeAnswer, addresses_of_group, ask_all
from dledger.raft.ids import Index
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.name_servers import parse_name_servers
from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.scan.plan import CommittedBound


def ask_group(name_server: str, group: str | None) -> list[NodeAnswer]:
    """Ask each node of a group that the name server knows for its status.

    Raises:
        PipelineUsageError: the address is none.
        InconclusiveError: nobody answers, or the group is not known.
    """
    try:
        return trio.run(_ask, name_server, group)
    except ClientUsageError as error:
        raise PipelineUsageError(str(error)) from error
    except NobodyAnsweredError as error:
        raise InconclusiveError(f"the group could not be asked: {error}") from error


async def _ask(name_server: str, group: str | None) -> list[NodeAnswer]:
    addresses = await addresses_of_group(parse_name_servers(name_server), group)
    return await ask_all(addresses)


def committed_by_group(answers: list[NodeAnswer], node: str | None = None) -> CommittedBound:
    """Return how far a store of the group may be read.

    Args:
        answers: of its nodes.
        node: whose store it is; None: not known.

    Raises:
        InconclusiveError: the node, or without one any member, does not answer.
    """
    said = {each.name: each.table for each in answers if each.table.get("raftCommitIndex")}
    if node is not None:
        if node not in said:
            raise InconclusiveError(
                f"node {node} does not say how far its log is committed; these do: {_names(said)}"
            )
        index = int(said[node]["raftCommitIndex"])
        return CommittedBound(Index(index), f"commit index of node {node}", is_exact=False)
    members = {name for table in said.values() for name in table.get("raftMembers", "").split(",")}
    missing = sorted(members - said.keys())
    if missing or not said:
        raise InconclusiveError(
            f"no answer from {', '.join(missing) or 'any node'}, and whose store this is is not known: give "
            f"`node` (answers came from: {_names(said)})"
        )
    index = min(int(table["raftCommitIndex"]) for table in said.values())
    return CommittedBound(Index(index), f"least commit index of {_names(said)}", is_exact=False)


def _names(said: Mapping[str, object]) -> str:
    return ", ".join(sorted(said)) or "nobody"
