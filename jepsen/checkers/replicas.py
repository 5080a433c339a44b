"""All replicas hold the same: equal digests at an equal index.

The model. Derived state is a fold over the committed log, so two replicas that have applied the same number of entries
are equal, component by component.

    digest  any type, by the observer or a worker; `node` names the replica
            value {"index": applied index, "digests": {component: digest, ...},
                   "alarm": where a node has found itself that it differed at an earlier index, what it says}

    diverged  two replicas differ in a component at the same index, or one told two digests of it
    alarm     a node has found a difference by itself; what it holds now may be equal again

Where no index was seen at two replicas, nothing was compared and the verdict is unknown; so it is when fewer than
`replicas` of them took part in a comparison.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op

NAME = "replicas"


def check_replicas(ops: Sequence[Op], *, replicas: int = 2) -> CheckResult:
    """Compare digests; see the module's text."""
    told = [op for op in ops if op.f == "digest" and op.value is not None and op.type != "invoke"]
    seen: dict[int, list[Op]] = defaultdict(list)
    for op in told:
        seen[op.value["index"]].append(op)
    compared = {index: row for index, row in seen.items() if len({op.node for op in row}) > 1}
    anomalies = [one for index, row in sorted(seen.items()) for one in _differ(index, row)]
    anomalies += [
        Anomaly("alarm", f"{op.node} differed from the others: {op.value['alarm']}", (op.index,))
        for op in told
        if op.value.get("alarm")
    ]
    nodes = {op.node for row in compared.values() for op in row}
    counts: dict[str, object] = {
        "compared": len(compared),
        "replicas": len(nodes),
        "last_index": max(compared, default=0),
    }
    why = "" if len(nodes) >= replicas else f"{len(nodes)} of {replicas} replicas could be compared"
    return judged(NAME, anomalies, counts, why)


def _differ(index: int, row: Sequence[Op]) -> Iterator[Anomaly]:
    first, *others = sorted(row, key=lambda op: op.node)
    for other in others:
        one, two = first.value["digests"], other.value["digests"]
        parts = [name for name in sorted(one.keys() | two.keys()) if one.get(name) != two.get(name)]
        if parts:
            text = f"at index {index} {first.node} and {other.node} differ in {', '.join(parts)}"
            yield Anomaly("diverged", text, (first.index, other.index))
