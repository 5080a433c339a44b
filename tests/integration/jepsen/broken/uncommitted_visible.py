"""A leader folds its entries as soon as it has appended them: consumers read what may never be committed.

What the engine asserts of commits, and the key index of its order, would find that; here nothing but the run itself
is to.
"""

from collections.abc import Sequence

from broker.store.key_index import KeyIndex
from dledger.engine import Engine
from dledger.raft.effects import AppendEntries, Commit, Effect, Role, TruncateLog
from dledger.raft.ids import Index
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs

_carry_out = Engine._carry_out
_add = KeyIndex.add


def carry_out(self: Engine, effect: Effect) -> None:
    if isinstance(effect, Commit) and effect.index <= self._committed_index:
        return
    if isinstance(effect, TruncateLog):
        self._committed_index = min(self._committed_index, Index(effect.first - 1))
    _carry_out(self, effect)
    if isinstance(effect, AppendEntries) and self.node.role is Role.LEADER:
        self._committed_index = max(self._committed_index, effect.entries[-1].index)


Engine._carry_out = carry_out  # type: ignore[method-assign]


def add(
    self: KeyIndex,
    texts: Sequence[bytes],
    seeds: Sequence[int],
    offsets: Sequence[PhysicalOffset],
    times: Sequence[StoreTimeMs],
) -> None:
    """Keys of entries that were cut stay in the index; what comes in their place would stop the member."""
    if texts:
        self.last_physical_offset = min(self.last_physical_offset, offsets[0])
        self.last_store_ms = min(self.last_store_ms, times[0])
    _add(self, texts, seeds, offsets, times)


KeyIndex.add = add  # type: ignore[method-assign]
