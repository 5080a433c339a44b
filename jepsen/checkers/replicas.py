"""Judges replicas: equal digests at an equal index.

The model. Derived state is a fold over the committed log, so two replicas that have applied the same number of entries
are equal, component by component.

    digest  any type, by the observer or a worker; `node` names the replica
            value {"index": applied index, "digests": {component: digest, ...},
                   "alarm": where a node has found itself that it differed at an earlier index, what it says,
                   "group": where there are several; each is compared for itself}

    diverged  two replicas differ in a component at the same index, or one reported two digests of it
    alarm     a node has found a difference by itself; what it holds now may be equal again

Where no index was seen at two replicas, nothing was compared and the verdict is unknown; so it is when fewer than
`replicas` of one of the `groups` took part in a comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dledger.raft.ids import Index
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op
from jepsen.history.values import Digest, shaped

NAME = "replicas"


class _Seen(NamedTuple):
    """The digests of a node, and the index of the operation that shows them."""

    node: str
    op: int
    digest: Digest


def check_replicas(ops: Sequence[Op], *, replicas: int = 2, groups: int = 1) -> CheckResult:
    """Compare the digests that nodes of a group reported at the same index."""
    seen: dict[str, dict[Index, list[_Seen]]] = defaultdict(lambda: defaultdict(list))
    for op in ops:
        if op.f == "digest" and op.value is not None and op.type != "invoke":
            digest = shaped(op.value, Digest)
            row = seen[digest.get("group", "")][digest["index"]]
            row.append(_Seen(op.node, op.index, digest))
    anomalies: list[Anomaly] = []
    compared: set[tuple[str, Index]] = set()
    nodes: dict[str, set[str]] = defaultdict(set)
    for group, rows in sorted(seen.items()):
        for index, row in sorted(rows.items()):
            anomalies += _differ(index, row)
            anomalies += _alarms(row)
            names = {one.node for one in row}
            if len(names) > 1:
                compared.add((group, index))
                nodes[group] |= names
    counts: dict[str, object] = {
        "compared": len(compared),
        "replicas": sum(map(len, nodes.values())),
        "last_index": max((index for _, index in compared), default=0),
    }
    return judged(NAME, anomalies, counts, _why_unknown(nodes, replicas, groups))


def _why_unknown(nodes: Mapping[str, set[str]], replicas: int, groups: int) -> str:
    """Say which group could not be compared as a whole; empty when all were."""
    if not nodes and groups == 1:
        return f"0 of {replicas} replicas could be compared"
    if len(nodes) < groups:
        return f"replicas of {len(nodes)} of {groups} groups could be compared"
    few = [
        f"{len(nodes[each])} of {replicas} replicas{f' of {each}' if each else ''}"
        for each in sorted(nodes)
        if len(nodes[each]) < replicas
    ]
    return f"{', '.join(few)} could be compared" if few else ""


def _alarms(row: Sequence[_Seen]) -> Iterator[Anomaly]:
    for one in row:
        if alarm := one.digest.get("alarm"):
            yield Anomaly("alarm", f"{one.node} differed from the others: {alarm}", (one.op,))


def _differ(index: Index, row: Sequence[_Seen]) -> Iterator[Anomaly]:
    first, *others = sorted(row, key=lambda one: one.node)
    for other in others:
        one, two = first.digest["digests"], other.digest["digests"]
        parts = [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
        if parts:
            text = f"at index {index} {first.node} and {other.node} differ in {', '.join(parts)}"
            yield Anomaly("diverged", text, (first.op, other.op))
