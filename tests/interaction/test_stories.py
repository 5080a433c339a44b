"""Stories of whole brokers, told as scripts. `REWRITE=1 pytest tests/interaction` makes them true: read the diff."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from broker.server.requests import router
from broker.service.conclusions import AskNext, RequestKind, unanswered, unconfirmed
from broker.service.refusal import Refusal
from broker.store.locks import QueueLockTable
from broker.store.offsets import ConsumerOffsets
from broker.store.recent_sends import RecentSends
from broker.store.schedule import Schedule
from broker.store.timers import Timers
from broker.store.transactions import Transactions
from broker.testing.broker_simulation import silence
from broker.testing.stories import Story
from dledger import DLedgerError, RefusedError
from dledger.testing.datadriven import ScriptError, run_script
from dledger_mq.remoting.codes import ResponseCode
from tests.interaction.checking import check_script

COMMIT = ConsumerOffsets.commit
STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    with silence():
        check_script(path, Story().run)


def test_there_are_stories() -> None:
    assert len(STORIES) >= 4


def _forget_locks(self: QueueLockTable) -> None:
    self.awaits_time = True
    self._table.clear()


MISTAKES: list[tuple[str, object, str, Any]] = [
    ("locks", QueueLockTable, "begin_term", _forget_locks),
    ("locks", QueueLockTable, "keeps_out", lambda *_: False),
    (
        "consumer_that_returns",
        ConsumerOffsets,
        "commit",
        lambda *place, **_: COMMIT(*place, is_forced=True),
    ),
    ("repeated_send", RecentSends, "offsets", lambda *_: ()),
    ("transaction", Transactions, "verdict", lambda *_: None),
    ("transaction_that_nobody_ends", Transactions, "check", lambda *_: None),
    ("retries_to_the_dead_letters", Schedule, "delay_ms", lambda *_: 0),
    ("due_times", Timers, "recall", lambda *_, **__: None),
    (
        "send_of_unknown_outcome",
        router,
        "unconfirmed",
        lambda *_: Refusal(ResponseCode.MESSAGE_ILLEGAL, "the message was not stored"),
    ),
    ("send_of_unknown_outcome", router, "unanswered", lambda *_: AskNext(may_be_done=False)),
    (
        "deposed_leader",
        router,
        "unconfirmed",
        lambda *_: Refusal(ResponseCode.SYSTEM_ERROR, "outcome unknown"),
    ),
]
"""Story, and a mistake that it must show."""


@pytest.mark.parametrize(
    ("story", "owner", "name", "mistake"),
    MISTAKES,
    ids=[f"{story}-{name}" for story, _, name, _ in MISTAKES],
)
def test_a_story_goes_otherwise_when_its_promise_is_broken(
    story: str, owner: object, name: str, mistake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = next(path for path in STORIES if path.stem == story).read_text()
    monkeypatch.setattr(owner, name, mistake)
    with silence():
        try:
            told = run_script(text, Story().run)
        except (ScriptError, AssertionError):
            return  # it does not even come to its end
    assert told != text


NO_TOOLS = "stories have no tools"
HELD_BY_ALL = "what stories read is on every member"
BETWEEN_EVENTS = "only a leader that is deposed within one pass refuses: tests/unit/service"
UNSHOWN: dict[tuple[RequestKind, str], str] = {
    **{(RequestKind.ADMIN, cause): NO_TOOLS for cause in ("refused", "unknown", "broken")},
    **{(RequestKind.READ, cause): HELD_BY_ALL for cause in ("refused", "unknown", "broken")},
    **{
        (kind, "refused"): BETWEEN_EVENTS
        for kind in RequestKind
        if kind not in {RequestKind.ADMIN, RequestKind.READ}
    },
    (RequestKind.SEND_BACK, "unknown"): "as that of a send",
    (RequestKind.QUESTION, "unknown"): "a question waits before it is tried",
}
"""Rows of the table in broker/service/conclusions.py that no story shows, with the reason."""


def test_every_conclusion_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: set[tuple[RequestKind, str]] = set()

    def noted_unconfirmed(kind: RequestKind, error: DLedgerError) -> AskNext | Refusal:
        shown.add((kind, "refused" if isinstance(error, RefusedError) else "unknown"))
        return unconfirmed(kind, error)

    def noted_unanswered(kind: RequestKind, reason: str) -> AskNext | Refusal:
        shown.add((kind, "broken"))
        return unanswered(kind, reason)

    monkeypatch.setattr("broker.server.requests.router.unconfirmed", noted_unconfirmed)
    monkeypatch.setattr("broker.server.requests.router.unanswered", noted_unanswered)
    with silence():
        for path in STORIES:
            run_script(path.read_text(), Story().run)
    assert set(product(RequestKind, ("refused", "unknown", "broken"))) - shown == UNSHOWN.keys()


def test_a_story_begins_with_a_group() -> None:
    with pytest.raises(ScriptError, match="begin with `group"):
        Story().run("heal")


def test_what_a_client_cannot_do_is_refused() -> None:
    story = Story()
    story.run("group n0 n1 n2")
    story.run("c at n0")
    with pytest.raises(ScriptError, match="do not know how to fly"):
        story.run("c fly T/0")
    with pytest.raises(ScriptError, match="no such command, nor client"):
        story.run("d pull T/0 from=0 group=G")
