"""Comparison of replicas of one log: their first difference, by the chain CRCs in the headers.

The chain CRC of an entry identifies the whole log up to it. So replicas whose chain CRC is the same at one index
have the same headers, and in them the checksums that their bodies should have; where they differ, a search by
halves finds the first entry that does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from dledger.raft.ids import NO_INDEX, Index, Position
from pipeline.errors import InconclusiveError
from pipeline.scan.entries import Chain
from pipeline.scan.plan import CommittedBound, plan_scan
from pipeline.scan.stores import Store


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between replicas, or damage of one.

    Attributes:
        replica: which one is not as the others; several joined by commas when there is no majority.
        position: place in the log; -1 where it is about derived state.
        what: in words: segment file, byte, index; topic, queue and offset where it is a record.
    """

    replica: str
    position: Position
    what: str


def outliers(said: Mapping[str, Hashable]) -> str:
    """Return the replicas that differ from the majority; all of them if there is no majority."""
    value, count = Counter(said.values()).most_common(1)[0]
    if count * 2 <= len(said):
        return ", ".join(said)
    return ", ".join(name for name, each in said.items() if each != value)


def common_bound(
    stores: Mapping[str, Store], bounds: Mapping[str, CommittedBound]
) -> CommittedBound:
    """Return the lowest of the replicas' committed indexes.

    Raises:
        InconclusiveError: a replica has nothing committed.
    """
    ends = {
        name: plan_scan(store, bounds[name], split_bytes=1 << 60, fails=False).end.index
        for name, store in stores.items()
    }
    name = min(ends, key=lambda each: ends[each])
    if not ends[name]:
        raise InconclusiveError(f"replica {name}: nothing is known to be committed")
    return CommittedBound(ends[name], f"{bounds[name].known_by}; {name} reaches least far")


def entry(store: Store, index: Index) -> Chain:
    """Return an entry of a replica, damage passed over."""
    return plan_scan(store, CommittedBound(index, "audit"), split_bytes=1 << 60, fails=False).end


def chain_difference(stores: Mapping[str, Store], last_index: Index) -> Finding | None:
    """Return the first entry that is not the same on all replicas; None when all are, up to `last_index`."""
    if _is_same(stores, last_index):
        return None
    low, high = last_lost_index(stores), last_index
    while high - low > 1:
        middle = Index((low + high) // 2)
        low, high = (middle, high) if _is_same(stores, middle) else (low, middle)
    chains = {name: entry(store, high) for name, store in stores.items()}
    odd = outliers({name: (each.crc, each.term) for name, each in chains.items()})
    first = odd.split(", ", maxsplit=1)[0]
    start = entry(stores[first], Index(high - 1)).position
    each_crc = ", ".join(
        f"{name}: term {each.term}, chain crc {each.crc or 0:#010x}"
        for name, each in chains.items()
    )
    what = f"entry {high} is another one ({each_crc}): {file_place(stores[first], start)}"
    if high == 1:
        what += "; the logs have nothing in common: is this a store of another group?"
    return Finding(odd, start, what)


def last_lost_index(stores: Mapping[str, Store]) -> Index:
    """Return the last entry that some replica keeps no more; 0 when all have whole logs."""
    return max((store.start.index for store in stores.values()), default=NO_INDEX)


def file_place(store: Store, position: Position) -> str:
    """Describe a position in the log as segment file and byte."""
    before = [each for each in store.segments if each.first_position <= position]
    return f"{before[-1].path}, byte {position - before[-1].first_position}"


def _is_same(stores: Mapping[str, Store], index: Index) -> bool:
    return len({entry(store, index).crc for store in stores.values()}) == 1
