"""The story of a message, step by step, on logs that a leader's own handlers have made."""

from __future__ import annotations

from pathlib import Path

from broker.server.handlers.transactions import stage_end, stage_op
from broker.service.transactions import CommitPlan, RollbackPlan
from broker.store.control import (
    AckMessages,
    AdmitToReset,
    ChangeInvisible,
    CheckTransactions,
    CommitOffsets,
    DeleteTopic,
    DropPopped,
    ForgetBefore,
    HideBefore,
    LockQueues,
    OffsetCommit,
    PopMessages,
    PutTopic,
    RemoveOffsets,
    ResetOffsets,
    ResumeTransaction,
)
from broker.store.groups import SubscriptionGroupConfig
from broker.store.recent_sends import AGE_MAX_MS
from broker.store.record_reader import read_message
from broker.store.topics import PERM_WRITE, TopicConfig
from broker.store.transactions import TransactionVerdict
from broker.story.places import StorePlaces
from broker.story.steps import StoryStep
from broker.story.tell import MessageStory, tell
from dledger.raft.ids import Position
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.recall_handle import RecallHandle
from tests.unit.pipeline.stores import write_snapshot, write_store
from tests.unit.server.lone_leader import LoneLeader
from tests.unit.store.lone_broker import LoneBroker
from tests.unit.story.story_stores import KEY, events_of, new_broker, nothing, story_of

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
MINUTE_MS = 60_000


def leaders_story(leader: LoneLeader, folder: Path, message_id: str = KEY) -> MessageStory:
    write_store(folder, leader.log.entries)
    return tell(StorePlaces(folder), message_id, nothing, nothing)


def commit(broker: LoneBroker, offset: int, client: str = "c1", *, is_forced: bool = False) -> None:
    commits = [OffsetCommit("g", "T", QueueId(0), QueueOffset(offset), client)]
    broker.command(CommitOffsets(commits, is_forced))


def half(broker: LoneBroker, **named: str) -> int:
    """Store a half message; return its place."""
    broker.now_ms += 10
    staged = broker.send(
        HALF, 0, UNIQ_KEY=KEY, REAL_TOPIC="T", REAL_QID="1", PGROUP="P", TRAN_MSG="true", **named
    )
    return staged.physical_offset(0)


def step(story: MessageStory, event: str) -> StoryStep:
    (found,) = [each for each in story.steps if each.event.value == event]
    return found


# Received, visible, consumed.


def test_a_message_is_received_visible_and_passed_by_a_group(tmp_path: Path) -> None:
    broker = new_broker("T")
    broker.send(UNIQ_KEY="before")
    broker.now_ms += 5
    broker.send(UNIQ_KEY=KEY)
    commit(broker, 1)
    broker.now_ms += 1000
    commit(broker, 2)
    story = story_of(broker, tmp_path)
    assert events_of(story) == ["stored", "passed"]
    stored, passed = story.steps
    assert (stored.index, stored.term, stored.at_ms) == (4, 1, broker.now_ms - 1000)
    assert stored.facts["born_host"] == "127.0.0.1:50000"
    assert stored.facts["store_host"] == "127.0.0.1:10911"
    assert (stored.facts["queue"], stored.facts["offset"]) == (0, 1)
    assert (passed.group, passed.at_ms) == ("g", broker.now_ms)
    assert (passed.facts["from"], passed.facts["to"]) == (1, 2)
    assert "c1" in passed.text
    assert story.is_visible
    (standing,) = story.standings
    ((group),) = standing.groups
    assert (group.group, group.offset, group.is_passed) == ("g", 2, True)


def test_both_kinds_of_ids_give_the_same(tmp_path: Path) -> None:
    broker = new_broker("T")
    broker.send(UNIQ_KEY=KEY)
    broker.send(UNIQ_KEY="other", KEYS=KEY, body=KEY.encode())
    story = story_of(broker, tmp_path)
    (copy,) = story.found.copies
    again = tell(StorePlaces(tmp_path), copy.message_id, nothing, nothing)
    assert again.steps == story.steps
    assert again.verdict == story.verdict
    lower = tell(StorePlaces(tmp_path), copy.message_id.lower(), nothing, nothing)
    assert lower.steps == story.steps


def test_what_is_not_in_the_log_is_said_to_be_in_no_entry(tmp_path: Path) -> None:
    broker = new_broker("T")
    broker.send(UNIQ_KEY="other")
    story = story_of(broker, tmp_path)
    assert story.verdict == "no record of it stands in the entries 1 to 3"
    assert story.is_visible is False
    place = f"7F00000100002A9F{10**9:016X}"
    assert not tell(StorePlaces(tmp_path), place, nothing, nothing).found.copies


def test_a_late_commit_and_that_of_a_client_without_the_lock_pass_nothing(tmp_path: Path) -> None:
    broker = new_broker("T")
    broker.send(UNIQ_KEY=KEY)
    broker.command(LockQueues("g", "holder", [("T", QueueId(0))]))
    commit(broker, 1, "stranger")
    commit(broker, 1, "holder")
    commit(broker, 0, "holder")
    story = story_of(broker, tmp_path)
    assert events_of(story) == ["stored", "passed"]
    assert "holder" in step(story, "passed").text
    assert story.standings[0].groups[0].locked_by == "holder"


def test_a_reset_goes_back_and_the_next_client_passes_again(tmp_path: Path) -> None:
    broker = new_broker("T")
    broker.send(UNIQ_KEY=KEY)
    commit(broker, 1)
    since = broker.command(ResetOffsets("g", "T", [(QueueId(0), QueueOffset(0))]))
    commit(broker, 1, "not-yet")
    broker.command(AdmitToReset("g", "T", QueueId(0), PhysicalOffset(since), "c2"))
    commit(broker, 1, "c2")
    broker.command(RemoveOffsets("g"))
    story = story_of(broker, tmp_path)
    assert events_of(story) == ["stored", "passed", "moved_back", "passed", "offsets_removed"]
    assert "by a reset" in step(story, "moved_back").text
    assert story.steps[3].text.endswith("committed by c2")
    assert story.standings[0].groups == []


# Transactions.


def test_a_half_message_is_open_until_it_is_committed(tmp_path: Path) -> None:
    broker = new_broker("T")
    place = half(broker)
    broker.command(CheckTransactions([QueueOffset(0)], broker.now_ms))
    broker.command(ResumeTransaction(QueueOffset(0), broker.now_ms))
    broker.command(CheckTransactions([QueueOffset(0)], broker.now_ms))
    story = story_of(broker, tmp_path / "open")
    assert events_of(story) == ["half_stored", "checked", "checks_anew", "checked"]
    assert "its transaction is open" in story.verdict
    assert "no producer of P" in story.verdict
    assert "1 checks so far" in story.verdict
    plan = CommitPlan(
        read_message(broker.log, PhysicalOffset(place)),
        b"T",
        QueueId(1),
        encode_properties({"UNIQ_KEY": KEY}),
        8,
    )
    broker.now_ms += 500
    stage_end(broker.staging, plan, broker.now_ms)
    broker.commit()
    story = story_of(broker, tmp_path / "committed")
    assert events_of(story)[4:] == ["stored", "committed"]
    assert step(story, "committed").facts == {"producer_group": "P", "leader": "127.0.0.1:10911"}
    assert step(story, "stored").index == step(story, "committed").index
    assert [each.is_visible for each in story.standings] == [False, True]
    assert story.verdict == "visible in queue 1 of T at offset 0"
    half_id = story.found.copies[0].message_id
    assert tell(StorePlaces(tmp_path / "committed"), half_id, nothing, nothing).steps == story.steps


def test_a_half_message_is_rolled_back_or_given_up(tmp_path: Path) -> None:
    broker = new_broker("T", "TRANS_CHECK_MAX_TIME_TOPIC")
    place = half(broker)
    plan = RollbackPlan(read_message(broker.log, PhysicalOffset(place)))
    stage_end(broker.staging, plan, broker.now_ms)
    broker.commit()
    story = story_of(broker, tmp_path / "back")
    assert events_of(story) == ["half_stored", "rolled_back"]
    assert story.verdict == "not visible: its transaction was rolled back"
    broker = new_broker("T", "TRANS_CHECK_MAX_TIME_TOPIC")
    half(broker)
    broker.stage("TRANS_CHECK_MAX_TIME_TOPIC", UNIQ_KEY=KEY)
    stage_op(broker.staging, [QueueOffset(0)], TransactionVerdict.GIVEN_UP, broker.now_ms)
    broker.commit()
    story = story_of(broker, tmp_path / "given-up")
    assert events_of(story) == ["half_stored", "stored", "given_up"]
    assert "no producer of P answered" in step(story, "given_up").text


# What waits for its time.


def test_a_delayed_message_waits_and_is_delivered(tmp_path: Path) -> None:
    leader = LoneLeader()
    leader.send(UNIQ_KEY=KEY, DELAY="1")
    leader.commit()
    story = leaders_story(leader, tmp_path / "waits")
    assert events_of(story) == ["delayed"]
    assert story.steps[0].facts["due_ms"] == leader.now_ms + 1000
    assert story.steps[0].facts["for_topic"] == "T"
    assert story.verdict.startswith("not visible: it waits at delay level 1 until 2023-")
    leader.pass_until(leader.now_ms + 1100)
    story = leaders_story(leader, tmp_path / "delivered")
    assert events_of(story) == ["delayed", "delivered"]
    assert story.verdict == "visible in queue 0 of T at offset 0"


def test_a_timed_message_is_delivered_or_recalled(tmp_path: Path) -> None:
    leader = LoneLeader()
    leader.send(UNIQ_KEY=KEY, TIMER_DELAY_MS="500")
    leader.send(UNIQ_KEY="recalled", TIMER_DELAY_MS="700")
    leader.commit()
    due_ms = leader.now_ms + 700
    waits = leaders_story(leader, tmp_path / "waits")
    assert waits.verdict.startswith("not visible: it waits until 2023-")
    leader.recall(RecallHandle("T", "broker-a", due_ms, "recalled").encode())
    leader.commit()
    leader.pass_until(leader.now_ms + 1000)
    story = leaders_story(leader, tmp_path / "ended")
    assert events_of(story) == ["timed", "delivered"]
    assert story.is_visible
    recalled = tell(StorePlaces(tmp_path / "ended"), "recalled", nothing, nothing)
    assert events_of(recalled) == ["timed", "recalled"]
    assert recalled.verdict == "not visible: it was recalled before its time"


def test_a_message_that_nobody_can_consume_is_sent_back_until_it_is_dead_and_sent_again(
    tmp_path: Path,
) -> None:
    leader = LoneLeader()
    leader.create(SubscriptionGroupConfig("g", retry_times_max=2))
    leader.send(UNIQ_KEY=KEY)
    leader.commit()
    (message,) = leader.stored()
    for _ in range(2):
        leader.give_back(message, "g")
        leader.commit()
        leader.pass_until(leader.now_ms + MINUTE_MS, step_ms=1000)
        message = leader.stored("%RETRY%g")[-1]
    leader.give_back(message, "g")
    leader.commit()
    leader.send(UNIQ_KEY=KEY, ORIGIN_MESSAGE_ID=step_id(leader))
    leader.commit()
    story = leaders_story(leader, tmp_path)
    assert events_of(story) == [
        "stored",
        "sent_back",
        "delivered",
        "sent_back",
        "delivered",
        "dead_lettered",
        "resent",
    ]
    assert [each.facts["reconsume_times"] for each in story.steps] == [0, 1, 1, 2, 2, 3, 0]
    assert "sent back 2 times before" in step(story, "dead_lettered").text
    roles = [each.copy.role.value for each in story.standings if each.is_visible]
    assert roles == ["message", "retry", "retry", "dead letter", "message"]
    dead_id = story.found.copies[5].message_id
    assert tell(StorePlaces(tmp_path), dead_id, nothing, nothing).steps == story.steps


def step_id(leader: LoneLeader) -> str:
    """Return where the dead letter says that it came from."""
    (dead,) = leader.stored("%DLQ%g")
    return (dead.find(b"ORIGIN_MESSAGE_ID") or b"").decode()


# Pops.


def pop(broker: LoneBroker, *, at: int | None, again: list[tuple[int, int]] | None = None) -> int:
    """Pop what is new, or again; return the pop time."""
    place = broker.command(
        PopMessages(
            "g",
            "T",
            QueueId(0),
            None if at is None else QueueOffset(at),
            QueueOffset(0),
            QueueOffset(0 if again else 1),
            [] if again else [QueueOffset(0)],
            [(QueueOffset(offset), popped) for offset, popped in again or []],
            5000,
        )
    )
    outcome = broker.state.pops.outcome(PhysicalOffset(place))
    assert outcome is not None
    return outcome.popped_ms


def test_a_message_is_popped_again_and_acknowledged(tmp_path: Path) -> None:
    broker = new_broker("T")
    broker.send(UNIQ_KEY=KEY)
    first = pop(broker, at=None)
    story = story_of(broker, tmp_path / "in-flight")
    assert events_of(story) == ["stored", "popped", "passed"]
    assert story.standings[0].groups[0].until_ms == first + 5000
    broker.command(ChangeInvisible("g", "T", QueueId(0), QueueOffset(0), first, 1000))
    changed = broker.now_ms + 1
    broker.now_ms += 2000
    broker.command(AckMessages("g", "T", QueueId(0), [(QueueOffset(0), first)]))  # an old handle
    second = pop(broker, at=1, again=[(0, changed)])
    broker.command(AckMessages("g", "T", QueueId(0), [(QueueOffset(0), second)]))
    story = story_of(broker, tmp_path / "acknowledged")
    assert events_of(story)[3:] == ["invisible_time_changed", "popped", "acknowledged"]
    assert [each.facts["times"] for each in story.steps if each.event.value == "popped"] == [1, 2]
    assert story.standings[0].groups[0].until_ms is None


def test_a_pop_that_gets_nothing_is_no_step_and_a_reset_forgets_one(tmp_path: Path) -> None:
    broker = new_broker("T")
    broker.send(UNIQ_KEY=KEY)
    pop(broker, at=None)
    assert pop(broker, at=None) == 0, "the group stands elsewhere now"
    broker.command(ResetOffsets("g", "T", [(QueueId(0), QueueOffset(0))]))
    again = pop(broker, at=0)
    broker.now_ms += 6000
    broker.command(DropPopped("g", "T", QueueId(0), [(QueueOffset(0), again)]))
    story = story_of(broker, tmp_path)
    assert events_of(story) == [
        "stored",
        "popped",
        "passed",
        "pop_forgotten",
        "moved_back",
        "popped",
        "passed",
        "handed_on",
    ]


# Gone.


def test_retention_forgets_hides_and_a_topic_is_deleted(tmp_path: Path) -> None:
    broker = new_broker("T", "U")
    broker.send(UNIQ_KEY=KEY)
    end = broker.log.end_position
    broker.command(HideBefore([("T", Position(end))]))
    story = story_of(broker, tmp_path / "hidden")
    assert events_of(story) == ["stored", "hidden"]
    assert story.verdict.startswith("not visible: its topic keeps")
    broker.now_ms += AGE_MAX_MS + 1  # what was sent lately is needed
    broker.send("U", UNIQ_KEY="second")
    last = broker.log.entries[-1]
    broker.command(ForgetBefore(last.index, last.position, "size"))
    story = story_of(broker, tmp_path / "forgotten")
    assert events_of(story) == ["stored", "hidden", "expired"]
    broker.send("U", UNIQ_KEY="third")
    broker.command(DeleteTopic("U"))
    broker.command(PutTopic(TopicConfig("U", 4, 4)))
    broker.send("U", UNIQ_KEY="fourth")
    write_store(tmp_path / "deleted", broker.log.entries)
    story = tell(StorePlaces(tmp_path / "deleted"), "third", nothing, nothing)
    assert events_of(story) == ["stored", "topic_deleted"]
    assert story.verdict == "not visible: its topic was deleted after it was stored"


def test_a_topic_may_not_be_readable_or_have_fewer_queues_to_read(tmp_path: Path) -> None:
    broker = new_broker("T")
    broker.send("T", 3, UNIQ_KEY=KEY)
    broker.command(PutTopic(TopicConfig("T", 2, 4)))
    assert "clients do not ask for queue 3" in story_of(broker, tmp_path / "fewer").verdict
    broker.command(PutTopic(TopicConfig("T", 4, 4, PERM_WRITE)))
    assert "is not readable" in story_of(broker, tmp_path / "unreadable").verdict


def test_a_record_that_the_fold_refuses_is_told_with_its_reason(tmp_path: Path) -> None:
    broker = new_broker("T")
    other = new_broker("T")
    other.send(UNIQ_KEY="first")
    other.log.entries[-1] = broker.log.append(
        b""
    )  # its queue goes on from an entry that is not there
    del broker.log.entries[-1]
    other.stage(UNIQ_KEY=KEY)
    staged = other.staging.build_entry(broker.log.end_position, other.now_ms)
    broker.log.append(staged.body)
    story = story_of(broker, tmp_path)
    assert events_of(story) == ["stored", "refused"]
    assert story.verdict == "not visible: the fold did not carry out its record"


# Where the state comes from.


def test_a_story_is_the_same_from_a_snapshot_on(tmp_path: Path) -> None:
    broker = new_broker("T")
    for number in range(20):
        broker.send(UNIQ_KEY=f"{number}")
    commit(broker, 3)
    broker.send(UNIQ_KEY=KEY)
    commit(broker, 21)
    plain = story_of(broker, tmp_path / "plain")
    sealed = write_store(tmp_path / "snapshot", broker.log.entries)
    write_snapshot(tmp_path / "snapshot", sealed, 20)
    from_snapshot = tell(StorePlaces(tmp_path / "snapshot"), KEY, nothing, nothing)
    assert (plain.state_from, from_snapshot.state_from) == (0, 20)
    assert from_snapshot.steps == plain.steps
    assert from_snapshot.standings == plain.standings
    assert from_snapshot.found.proven_index == 20


def test_damaged_snapshots_and_those_of_another_log_are_passed_over(tmp_path: Path) -> None:
    broker = new_broker("T")
    for number in range(10):
        broker.send(UNIQ_KEY=f"{number}")
    broker.send(UNIQ_KEY=KEY)
    sealed = write_store(tmp_path, broker.log.entries)
    write_snapshot(tmp_path, sealed, 5)
    write_snapshot(tmp_path, sealed, 8)
    newest = tmp_path / "snapshots" / f"{8:020}"
    data = bytearray(newest.read_bytes())
    data[-20] ^= 1
    newest.write_bytes(data)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    story = tell(StorePlaces(tmp_path), KEY, nothing, nothing)
    assert story.state_from == 5
    assert events_of(story) == ["stored"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
