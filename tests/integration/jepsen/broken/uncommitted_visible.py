"""A leader folds its entries as soon as it has appended them: consumers read what may never be committed."""

from dledger.engine import Engine
from dledger.raft.effects import AppendEntries, Effect, Role

_carry_out = Engine._carry_out


def carry_out(self: Engine, effect: Effect) -> None:
    _carry_out(self, effect)
    if isinstance(effect, AppendEntries) and self.node.role is Role.LEADER:
        self._committed_index = max(self._committed_index, effect.entries[-1].index)


Engine._carry_out = carry_out  # type: ignore[method-assign]
