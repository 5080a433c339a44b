"""Acknowledgements are answered with success, and those of every fifth message are not carried out."""

from broker.store.pops import PopKey, Pops
from dledger_mq.message.numbers import QueueOffset

_acknowledge = Pops.acknowledge


def acknowledge(self: Pops, key: PopKey, offset: QueueOffset, popped_ms: int) -> bool:
    queue = self.queue(key)
    if offset % 5 == 4 and queue is not None and queue.find(offset, popped_ms):
        return True
    return _acknowledge(self, key, offset, popped_ms)


Pops.acknowledge = acknowledge  # type: ignore[method-assign]
