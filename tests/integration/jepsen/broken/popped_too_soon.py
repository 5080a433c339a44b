"""What is popped is due at once: somebody else gets it while its holder works on it."""

from collections.abc import Iterable, Sequence

from broker.store.pops import PopKey, PopOutcome, Pops
from dledger_mq.message.numbers import QueueOffset

_hand_out = Pops.hand_out


def hand_out(
    self: Pops,
    key: PopKey,
    offsets: Sequence[QueueOffset],
    again: Iterable[tuple[QueueOffset, int]],
    *,
    now_ms: int,
    skipped_ms: int,
    invisible_ms: int,
    is_repeat: bool = False,
) -> PopOutcome:
    return _hand_out(
        self,
        key,
        offsets,
        again,
        now_ms=now_ms,
        skipped_ms=skipped_ms,
        invisible_ms=1,
        is_repeat=is_repeat,
    )


Pops.hand_out = hand_out  # type: ignore[method-assign]
