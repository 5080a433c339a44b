"""Members confirm entries when their sync begins, and not when it has ended."""

from dledger.engine import Engine, PersistJob
from dledger.raft.events import Persisted
from dledger.runtime import sync_pace

_begin_persist = Engine.begin_persist


def begin_persist(self: Engine) -> PersistJob | None:
    job = _begin_persist(self)
    if job is not None and self.log.last_id.index:
        self._outbox += self._held.release(job.save_count)
        for effect in self.node.step(Persisted(self.log.last_id), 0):
            self._carry_out(effect)
    return job


# In a thread, as with a disk that is slow: on the loop a sync ends before anything else can leave.
sync_pace.SLOW_MS = sync_pace.FAST_MS = -1.0  # type: ignore[misc]
Engine.begin_persist = begin_persist  # type: ignore[method-assign]
