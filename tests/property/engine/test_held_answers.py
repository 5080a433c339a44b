"""Whatever is queued, removed and written in whatever parts: no message leaves before what it confirms is durable."""

from __future__ import annotations

from random import Random

import pytest

from dledger.raft.effects import AppendEntries, Effect, SaveHardState, Send, TruncateLog
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.testing.sim_disk import SimDisk
from tests.unit.engine.scripted import N1, give, scripted, word


class Life:
    """An engine whose core says anything, and the log that each of its messages confirms."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.engine = scripted(SimDisk(self.random))
        self.term = 1
        self.log: list[Entry] = []
        self.confirms: dict[int, list[Entry]] = {}
        self.sent_count = 0

    def effect(self) -> Effect:
        """Something that a core may want."""
        what = self.random.choices(("append", "truncate", "save", "send"), (45, 15, 10, 30))[0]
        if what == "append":
            made = [self._append() for _ in range(self.random.choice((1, 1, 3, 6)))]
            return AppendEntries(tuple(made))
        if what == "truncate" and self.log:
            keep = self.random.randrange(len(self.log))
            del self.log[keep:]
            self.term += 1
            return TruncateLog(Index(keep + 1))
        if what == "save":
            return SaveHardState(Term(self.term), None)
        self.sent_count += 1
        self.confirms[self.sent_count] = list(self.log)
        return Send(N1, word(self.sent_count))

    def _append(self) -> Entry:
        position = Position(self.log[-1].end_position if self.log else 0)
        body = bytes(self.random.choice((0, 10, 500, 2500)))
        index = Index(len(self.log) + 1)
        self.log.append(Entry(index, Term(self.term), position, EntryKind.NORMAL, body))
        return self.log[-1]

    def check_what_leaves(self) -> None:
        """Of what a message confirms, all that is still in the log must be durable."""
        for _, message in self.engine.take_outbox():
            confirmed = self.confirms.pop(message.term)  # type: ignore[union-attr]  # no repairs here
            pairs = zip(confirmed, self.log, strict=False)
            kept = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
            if kept is None:
                kept = min(len(confirmed), len(self.log))
            assert kept <= self.engine.log.durable_index

    def run(self) -> None:
        """Effects come while jobs run; in the end everything is written and everything has left."""
        engine, random = self.engine, self.random
        job = None
        for _ in range(60):
            give(engine, *(self.effect() for _ in range(random.choice((1, 1, 2, 4)))))
            self.check_what_leaves()
            if job is None and random.random() < 0.5:
                job = engine.begin_persist()
            if job is not None and random.random() < 0.6:
                job.run()
                engine.end_persist(job, 0)
                job = None
                self.check_what_leaves()
        while (job := job or engine.begin_persist()) is not None:
            job.run()
            engine.end_persist(job, 0)
            job = None
            self.check_what_leaves()
        assert not self.confirms


@pytest.mark.slow
def test_what_a_message_confirms_is_durable_when_it_leaves() -> None:
    for seed in range(200):
        Life(seed).run()
