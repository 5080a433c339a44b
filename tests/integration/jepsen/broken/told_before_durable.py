"""Members confirm entries when their sync begins, and not when it has ended."""

from dledger.engine import Engine, PersistJob
from dledger.raft.events import Persisted

_begin_persist = Engine.begin_persist


def begin_persist(self: Engine) -> PersistJob | None:
    job = _begin_persist(self)
    if job is not None and self.log.last_id.index:
        self._outbox += self._held.release(job.save_count)
        for effect in self.node.step(Persisted(self.log.last_id), 0):
            self._carry_out(effect)
    return job


Engine.begin_persist = begin_persist  # type: ignore[method-assign]
