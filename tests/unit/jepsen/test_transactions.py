"""The judgement over transactions finds what it is there to find."""

from __future__ import annotations

import pytest

from broker.client import TransactionState
from jepsen.transactions import judge

C, R = TransactionState.COMMIT, TransactionState.ROLLBACK


def test_kept_promises() -> None:
    findings = judge({"a": C, "b": R, "c": C}, {"a": 1, "c": 1})
    assert findings.is_valid
    assert (findings.committed, findings.rolled_back) == (2, 1)


@pytest.mark.parametrize(
    ("decided", "seen", "contradictions"),
    [
        ({"a": C}, {}, 0),
        ({"a": C}, {"a": 2}, 0),
        ({"a": R}, {"a": 1}, 0),
        ({}, {"never ran": 1}, 0),
        ({"a": C}, {"a": 1}, 1),
    ],
    ids=["lost", "twice", "rolled back and seen", "never ran and seen", "contradicted"],
)
def test_broken_promises(
    decided: dict[str, TransactionState], seen: dict[str, int], contradictions: int
) -> None:
    assert not judge(decided, seen, contradictions).is_valid
