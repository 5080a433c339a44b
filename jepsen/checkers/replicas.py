"""All replicas hold the same: equal digests at an equal index.

The model. Derived state is a fold over the committed log, so two replicas that have applied the same number of entries
are equal, component by component.

    digest  any type, by the observer or a worker; `node` names the replica
            value {"index": applied index, "digests": {component: digest, ...}}

    diverged  two replicas differ in a component at the same index

Where no index was seen at two replicas, nothing was compared and the verdict is unknown; so it is when fewer than
`replicas` of them took part in a comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.ops import Op

NAME = "replicas"


def check_replicas(ops: Sequence[Op], *, replicas: int = 2) -> CheckResult:
    """Compare digests; see the module's text."""
    seen: dict[int, dict[str, Op]] = defaultdict(dict)
    for op in ops:
        if op.f == "digest" and op.value is not None and op.type != "invoke":
            seen[op.value["index"]].setdefault(op.node, op)
    compared = {index: by_node for index, by_node in seen.items() if len(by_node) > 1}
    anomalies = [
        one for index, by_node in sorted(compared.items()) for one in _differ(index, by_node)
    ]
    nodes = {node for by_node in compared.values() for node in by_node}
    counts: dict[str, object] = {
        "compared": len(compared),
        "replicas": len(nodes),
        "last_index": max(compared, default=0),
    }
    why = "" if len(nodes) >= replicas else f"{len(nodes)} of {replicas} replicas could be compared"
    return judged(NAME, anomalies, counts, why)


def _differ(index: int, by_node: dict[str, Op]) -> Iterator[Anomaly]:
    (first, op), *others = sorted(by_node.items())
    for node, other in others:
        one, two = op.value["digests"], other.value["digests"]
        parts = [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
        if parts:
            text = f"at index {index} {first} and {node} differ in {', '.join(parts)}"
            yield Anomaly("diverged", text, (op.index, other.index))
