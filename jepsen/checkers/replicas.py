"""Judges replicas: equal digests at an equal index.

The model. Derived state is a fold over the committed log, so two replicas that have applied the same number of entries
are equal, component by component.

    digest  any type, by the observer or a worker; `node` names the replica
            value {"index": applied index, "digests": {component: digest, ...},
                   "alarm": where a node has found itself that it differed at an earlier index, what it says}

    diverged  two replicas differ in a component at the same index, or one reported two digests of it
    alarm     a node has found a difference by itself; what it holds now may be equal again

Where no index was seen at two replicas, nothing was compared and the verdict is unknown; so it is when fewer than
`replicas` of them took part in a comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
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


def check_replicas(ops: Sequence[Op], *, replicas: int = 2) -> CheckResult:
    """Compare the digests that nodes reported at the same index."""
    seen: dict[Index, list[_Seen]] = defaultdict(list)
    for op in ops:
        if op.f == "digest" and op.value is not None and op.type != "invoke":
            digest = shaped(op.value, Digest)
            seen[digest["index"]].append(_Seen(op.node, op.index, digest))
    compared = {index: row for index, row in seen.items() if len({one.node for one in row}) > 1}
    anomalies = [one for index, row in sorted(seen.items()) for one in _differ(index, row)]
    anomalies += [
        Anomaly("alarm", f"{one.node} differed from the others: {alarm}", (one.op,))
        for row in seen.values()
        for one in row
        if (alarm := one.digest.get("alarm"))
    ]
    nodes = {one.node for row in compared.values() for one in row}
    counts: dict[str, object] = {
        "compared": len(compared),
        "replicas": len(nodes),
        "last_index": max(compared, default=0),
    }
    why = "" if len(nodes) >= replicas else f"{len(nodes)} of {replicas} replicas could be compared"
    return judged(NAME, anomalies, counts, why)


def _differ(index: Index, row: Sequence[_Seen]) -> Iterator[Anomaly]:
    first, *others = sorted(row, key=lambda one: one.node)
    for other in others:
        one, two = first.digest["digests"], other.digest["digests"]
        parts = [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
        if parts:
            text = f"at index {index} {first.node} and {other.node} differ in {', '.join(parts)}"
            yield Anomaly("diverged", text, (first.op, other.op))
