"""Whether a send is stored, and as what: one row for each of rules C and L14 to L16."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.service.catalog import Catalog
from broker.service.key_bounds import BATCH_KEYS_MAX, KEYS_MAX
from broker.service.refusal import Refusal
from broker.service.send import PlainTopic, SendPlan, SendRules, SendSettings
from broker.service.timers import TimerRules
from broker.store.groups import SubscriptionGroupConfig
from broker.store.schedule import level_of
from broker.store.topics import TopicConfig
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.properties import decode_properties
from dledger_mq.message.sys_flags import MULTI_TAGS
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.requests import SendFields

pytestmark = pytest.mark.usefixtures("each_stage")

TOPICS = {
    "TBW102": TopicConfig("TBW102", 8, 8, 7),
    "NoModel": TopicConfig("NoModel", 8, 8, 6),
    "T": TopicConfig("T", 4, 4),
    "ReadOnly": TopicConfig("ReadOnly", 4, 4, 4),
    "%RETRY%g": TopicConfig("%RETRY%g", 1, 1),
    "%RETRY%unknown": TopicConfig("%RETRY%unknown", 1, 1),
}
GROUPS = {"g": SubscriptionGroupConfig("g", retry_times_max=3)}
STAMP = SendSettings.make_stamp(region="DefaultRegion", trace_on=True, cluster="C")


NOW_MS = 1_000_000


def rules(*, timers: bool = True, has_live_lock: bool = False, **changes: Any) -> SendRules:
    settings: dict[str, Any] = {
        "message_bytes_max": 100,
        "auto_create_topics": True,
        "auto_create_groups": True,
        "permission": 6,
        "delay_level_max": 18,
        "stamp": STAMP,
    }
    return SendRules(
        Catalog(TOPICS.get, GROUPS.get),
        SendSettings(**(settings | changes)),
        pick=lambda below: below - 1,
        new_key=lambda: "NEWKEY",
        timers=TimerRules(10_000, lambda: NOW_MS) if timers else None,
        has_live_lock=lambda group: has_live_lock,
    )


def header(**changes: Any) -> SendFields:
    usual: dict[str, Any] = {
        "producer_group": "p",
        "topic": "T",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp_ms": 1,
        "flag": 0,
        "properties": "UNIQ_KEY\x01u\x02",
    }
    return SendFields(**(usual | changes))


def accepted(
    fields: SendFields, body: bytes = b"x", version: int = 409, **changes: Any
) -> SendPlan:
    plan = rules(**changes).decide(fields, body, version)
    assert isinstance(plan, SendPlan), plan
    return plan


def properties_of(plan: SendPlan, place: int = 0) -> dict[str, str]:
    return decode_properties(plan.messages[place].properties)


R = ResponseCode
LONG = "k\x01" + "v" * 32_760 + "\x02"
TRAN = "TRAN_MSG\x01true\x02"
MANY_KEYS = "KEYS\x01" + " ".join(["k"] * (KEYS_MAX + 1)) + "\x02"
UNIQUE = "UNIQ_KEY\x01u\x02"
NO_GROUPS = {"auto_create_groups": False}
REFUSED = [
    ("C6 broker not writable", {}, b"x", {"permission": 4}, R.NO_PERMISSION, "brokerPermission"),
    ("C7 blank topic", {"topic": " "}, b"x", {}, R.SYSTEM_ERROR, "blank"),
    ("C7 illegal letters", {"topic": "a/b"}, b"x", {}, R.SYSTEM_ERROR, "illegal characters"),
    ("C7 too long", {"topic": "a" * 128}, b"x", {}, R.SYSTEM_ERROR, "longer than"),
    ("C8 system topic", {"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", {}, R.NO_PERMISSION, "forbidden"),
    ("C8 control topic", {"topic": "rmq_sys_dledger_offsets"}, b"x", {}, R.NO_PERMISSION, "forbidden"),
    ("C9 no auto creation", {"topic": "New"}, b"x", {"auto_create_topics": False}, R.TOPIC_NOT_EXIST, "not exist"),
    ("C9 model not inheritable", {"topic": "New", "default_topic": "NoModel"}, b"x", {}, R.TOPIC_NOT_EXIST, "NoModel"),
    ("C10 queue too high", {"queue_id": 4}, b"x", {}, R.SYSTEM_ERROR, "queueId[4] is illegal"),
    ("C11 topic not writable", {"topic": "ReadOnly"}, b"x", {}, R.NO_PERMISSION, "ReadOnly"),
    ("C15 half message", {"properties": TRAN}, b"x", {"reject_transactions": True}, R.NO_PERMISSION, "rejectTr"),
    ("C17 empty body", {}, b"", {}, R.MESSAGE_ILLEGAL, "empty"),
    ("C18 body too large", {}, b"x" * 101, {}, R.MESSAGE_ILLEGAL, "101 bytes, at most 100"),
    ("C18 properties too large", {"properties": LONG}, b"x", {}, R.MESSAGE_ILLEGAL, "properties of"),
    ("C18 keys", {"properties": UNIQUE + MANY_KEYS}, b"x", {}, R.MESSAGE_ILLEGAL, "KEYS has 4097 keys, at most 4096"),
    ("C18 keys of no shape", {"properties": MANY_KEYS}, b"x", {}, R.MESSAGE_ILLEGAL, "4097 keys"),
    ("C18 keys of a half message", {"properties": TRAN + MANY_KEYS}, b"x", {}, R.MESSAGE_ILLEGAL, "4097 keys"),
    ("C18 keys, delayed", {"properties": "DELAY\x013\x02" + MANY_KEYS}, b"x", {}, R.MESSAGE_ILLEGAL, "4097 keys"),
    ("C18 keys, timed", {"properties": "TIMER_DELAY_SEC\x015\x02" + MANY_KEYS}, b"x", {}, R.MESSAGE_ILLEGAL, "4097"),
    ("C18 spaces", {"properties": "KEYS\x01" + " " * KEYS_MAX}, b"x", {}, R.MESSAGE_ILLEGAL, "4097 keys"),
    ("C23 batch too large", {"is_batch": True}, b"x" * 101, {}, R.MESSAGE_ILLEGAL, "101 bytes"),
    ("C23 batch to a retry topic", {"is_batch": True, "topic": "%RETRY%g"}, b"x", {}, R.MESSAGE_ILLEGAL, "retry group"),
    ("C23 no batch at all", {"is_batch": True}, b"xyz", {}, R.MESSAGE_ILLEGAL, "cannot be read"),
    ("N1 no number", {"properties": "TIMER_DELAY_SEC\x015s\x02"}, b"x", {}, R.MESSAGE_ILLEGAL, "TIMER_DELAY_SEC"),
    ("N2 off", {"properties": "TIMER_DELAY_SEC\x015\x02"}, b"x", {"timers": False}, R.SYSTEM_ERROR, "switched"),
    ("N4 too far ahead", {"properties": "TIMER_DELAY_SEC\x0111\x02"}, b"x", {}, R.MESSAGE_ILLEGAL, "timerMaxDelaySec"),
    ("C8 timer topic", {"topic": "rmq_sys_wheel_timer"}, b"x", {}, R.NO_PERMISSION, "forbidden"),
    ("L14 unknown group", {"topic": "%RETRY%unknown"}, b"x", NO_GROUPS, R.SUBSCRIPTION_GROUP_NOT_EXIST, "g"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "body", "settings", "code", "text"),
    [row[1:] for row in REFUSED],
    ids=[r[0] for r in REFUSED],
)
def test_refused(
    fields: dict[str, Any], body: bytes, settings: dict[str, Any], code: ResponseCode, text: str
) -> None:
    refusal = rules(**settings).decide(header(**fields), body, 409)
    assert isinstance(refusal, Refusal)
    assert refusal.code == code
    assert text in refusal.remark


def keys(count: int) -> bytes:
    return b"KEYS\x01" + b" ".join([b"k"] * count) + b"\x02"


def test_c18_as_many_keys_as_may_be_are_taken() -> None:
    for before in ("", UNIQUE, TRAN, "DELAY\x013\x02"):
        accepted(header(properties=before + keys(KEYS_MAX).decode()))


def test_c18_what_is_given_back_by_sending_it_keeps_its_keys() -> None:
    for times in (0, 99):
        asked = header(topic="%RETRY%g", properties=UNIQUE + MANY_KEYS, reconsume_times=times)
        assert MANY_KEYS.encode() in accepted(asked).messages[0].properties


@pytest.mark.parametrize("unique", [b"UNIQ_KEY\x01u\x02", b""])
def test_c18_no_message_of_a_batch_has_too_many_keys(unique: bytes) -> None:
    items = [BatchItem(0, b"x", unique + keys(count)) for count in (1, KEYS_MAX + 1, 1)]
    refusal = rules(message_bytes_max=10**6).decide(header(is_batch=True), encode_batch(items), 409)
    assert isinstance(refusal, Refusal)
    assert refusal.code == ResponseCode.MESSAGE_ILLEGAL
    assert "KEYS has 4097 keys, at most 4096" in refusal.remark


@pytest.mark.parametrize("unique", [b"UNIQ_KEY\x01u\x02", b""])
def test_c23_the_keys_of_a_batch_are_bounded_in_all(unique: bytes) -> None:
    count = BATCH_KEYS_MAX // KEYS_MAX
    full = [BatchItem(0, b"x", unique + keys(KEYS_MAX))] * count
    asked = header(is_batch=True)
    assert len(accepted(asked, encode_batch(full), message_bytes_max=10**6).messages) == count
    more = encode_batch([*full, BatchItem(0, b"x", unique), BatchItem(0, b"x", unique + keys(1))])
    refusal = rules(message_bytes_max=10**6).decide(asked, more, 409)
    assert isinstance(refusal, Refusal)
    assert refusal.code == ResponseCode.MESSAGE_ILLEGAL
    assert "262145 keys in all, at most 262144" in refusal.remark


@pytest.mark.parametrize(
    ("wanted", "model", "queues"),
    [(4, "TBW102", 4), (100, "TBW102", 8), (0, "TBW102", 0), (-3, "TBW102", 0), (4, "", 4)],
)
def test_b8_a_topic_is_created_after_its_model(wanted: int, model: str, queues: int) -> None:
    plan = rules().decide(
        header(topic="New", default_topic=model, default_topic_queue_nums=wanted, queue_id=-1),
        b"x",
        409,
    )
    assert isinstance(plan, SendPlan), plan
    (created,) = plan.creation.topics
    assert (created.read_queue_count, created.write_queue_count, created.perm) == (
        queues,
        queues,
        6,
    )


def test_b9_a_retry_topic_is_created_without_a_model() -> None:
    plan = accepted(header(topic="%RETRY%new"), auto_create_topics=False)
    assert plan.creation.topics == (TopicConfig("%RETRY%new", 1, 1, 6),)
    assert [group.name for group in plan.creation.groups] == ["new"]


def test_c10_the_broker_picks_a_queue() -> None:
    assert accepted(header(queue_id=-1)).queue_id == 3


def test_c13_what_the_broker_adds() -> None:
    plan = accepted(header(properties="TAGS\x01A\x02POP_CK\x01x\x02CLUSTER\x01other"))
    assert properties_of(plan) == {
        "TAGS": "A",
        "UNIQ_KEY": "NEWKEY",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "C",
    }


def test_c13_a_unique_key_is_kept() -> None:
    plan = accepted(header())
    assert plan.messages[0].uniq_key == b"u"
    assert properties_of(plan)["UNIQ_KEY"] == "u"


def test_the_client_cannot_set_transaction_or_inner_batch_flags() -> None:
    assert accepted(header(sys_flag=0xC | 0x40 | 0x80 | 0x1)).sys_flag == 0x1


def test_c15_a_retry_of_a_half_message_is_an_ordinary_one() -> None:
    plan = accepted(
        header(topic="%RETRY%g", reconsume_times=1, properties="TRAN_MSG\x01true\x02DELAY\x013\x02")
    )
    assert plan.delay_level == 3


def test_c23_a_batch_becomes_single_messages() -> None:
    body = encode_batch([BatchItem(1, b"a", b"UNIQ_KEY\x01k1\x02"), BatchItem(2, b"b", b"")])
    plan = accepted(header(is_batch=True), body)
    assert [(m.flag, m.body, m.uniq_key) for m in plan.messages] == [
        (1, b"a", b"k1"),
        (2, b"b", b"NEWKEY"),
    ]
    assert properties_of(plan, 1)["CLUSTER"] == "C"


@pytest.mark.parametrize(
    ("text", "level"),
    [("3", 3), ("99", 18), ("9" * 9, 18), ("9" * 10, 0), ("0", 0), ("x", 0), ("-1", 0)],
)
def test_m2_delay_levels_are_clamped(text: str, level: int) -> None:
    properties = f"DELAY\x01{text}\x02"
    assert accepted(header(properties=properties)).delay_level == level
    read_by_the_fold = level_of(properties.encode())
    assert bool(read_by_the_fold) == bool(level)  # else it is due when its tag's hash says


@pytest.mark.parametrize(
    ("times", "limit", "version", "target"),
    [
        (3, None, 409, "%RETRY%g"),
        (4, None, 409, "%DLQ%g"),
        (4, 16, 409, "%RETRY%g"),
        (17, 16, 409, "%DLQ%g"),
        (4, 16, 120, "%DLQ%g"),
    ],
    ids=[
        "within the group's limit",
        "beyond",
        "the client's limit",
        "beyond that",
        "client too old",
    ],
)
def test_l15_after_the_last_retry_the_dead_letter_topic(
    times: int, limit: int | None, version: int, target: str
) -> None:
    fields = header(
        topic="%RETRY%g",
        reconsume_times=times,
        max_reconsume_times=limit,
        properties="DELAY\x013\x02",
    )
    plan = accepted(fields, version=version)
    assert plan.topic == target
    assert plan.delay_level == (3 if target.startswith("%RETRY") else 0)
    assert [topic.name for topic in plan.creation.topics] == (["%DLQ%g"] if "DLQ" in target else [])


def test_a_topic_that_changes_is_checked_again() -> None:
    topics = dict(TOPICS)
    decide = SendRules(
        Catalog(topics.get, GROUPS.get),
        SendSettings(100, True, True, 6, 18, STAMP),
        pick=lambda _: 0,
        new_key=lambda: "K",
    ).decide
    assert isinstance(decide(header(), b"x", 409), SendPlan)
    topics["T"] = TopicConfig("T", 4, 4, 4)
    assert isinstance(decide(header(), b"x", 409), Refusal)


def test_a_topic_that_passed_is_checked_again_under_other_settings() -> None:
    sends = rules()
    assert isinstance(sends.decide(header(), b"x", 409), SendPlan)
    assert sends.plain_topic("T") is not None
    sends.settings = replace(sends.settings, permission=4, stamp=b"CLUSTER\x01other\x02")
    assert sends.plain_topic("T") is None
    assert isinstance(sends.decide(header(), b"x", 409), Refusal)
    plain = sends.plain_properties(b"UNIQ_KEY\x01k\x02")
    assert plain is not None
    assert plain[1] == b"UNIQ_KEY\x01k\x02CLUSTER\x01other\x02"


def test_a_topic_is_plain_once_it_passed_and_while_it_stays_as_it_is() -> None:
    topics = {
        "T": TopicConfig("T", 4, 8, filter_type="MULTI_TAG"),
        "%RETRY%g": TopicConfig("%RETRY%g"),
    }
    sends = SendRules(
        Catalog(topics.get, GROUPS.get),
        SendSettings(100, True, True, 6, 18, STAMP),
        pick=lambda _: 0,
        new_key=lambda: "K",
    )
    assert sends.plain_topic("T") is None
    for name in topics:
        assert isinstance(sends.decide(header(topic=name, queue_id=0), b"x", 409), SendPlan)
    assert sends.plain_topic("T") == PlainTopic(b"T", 8, MULTI_TAGS)
    assert sends.plain_topic("%RETRY%g") is None
    topics["T"] = TopicConfig("T", 1, 1)
    assert sends.plain_topic("T") is None


@pytest.mark.parametrize(
    ("properties", "times", "is_half"),
    [
        (TRAN, 0, True),
        ("TRAN_MSG\x01TRUE\x02", 0, True),
        (TRAN + "DELAY\x013\x02", 0, True),
        (TRAN, 1, True),
        (TRAN + "DELAY\x013\x02", 1, False),
        ("TRAN_MSG\x01false\x02", 0, False),
        ("XTRAN_MSG\x01true\x02", 0, False),
    ],
)
def test_c15_what_is_a_half_message(properties: str, times: int, is_half: bool) -> None:
    plan = accepted(header(properties=properties, reconsume_times=times, sys_flag=4 | 1))
    assert plan.is_half is is_half
    assert plan.sys_flag == 1
    assert plan.delay_level == (3 if times and "DELAY" in properties else 0)
    assert (plan.topic, plan.queue_id) == ("T", 0)


def test_a_half_message_waits_for_its_commit_before_its_due_time() -> None:
    wish = header(properties=TRAN + "TIMER_DELAY_SEC\x015\x02")
    plan = rules().decide(wish, b"x", 409)
    assert isinstance(plan, SendPlan), plan
    assert (plan.is_half, plan.due_ms) == (True, 0)
    too_far = header(properties=TRAN + "TIMER_DELAY_SEC\x0150\x02")
    refusal = rules().decide(too_far, b"x", 409)
    assert isinstance(refusal, Refusal)
    assert refusal.code == R.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("text", "due_ms", "level"),
    [
        ("TIMER_DELAY_SEC\x015\x02", NOW_MS + 5000, 0),
        ("TIMER_DELAY_MS\x015\x02", NOW_MS + 5, 0),
        ("TIMER_DELIVER_MS\x011000007\x02", 1_000_007, 0),
        ("TIMER_DELIVER_MS\x01999999\x02", 0, 0),
        ("TIMER_DELAY_SEC\x015\x02DELAY\x013\x02", 0, 3),
        ("TIMER_DELAY_SEC\x01nonsense\x02DELAY\x013\x02", 0, 3),
        ("TIMER_DELAY_SEC\x015\x02TIMER_OUT_MS\x015\x02", 0, 0),
    ],
)
def test_n1_to_n3_due_times(text: str, due_ms: int, level: int) -> None:
    plan = accepted(header(properties=text))
    assert (plan.due_ms, plan.delay_level) == (due_ms, level)


def test_m2_n2_a_level_removes_the_timer_properties() -> None:
    text = "DELAY\x013\x02TIMER_DELAY_SEC\x015\x02TIMER_DELIVER_MS\x015\x02TIMER_OUT_MS\x019\x02"
    names = properties_of(accepted(header(properties=text))).keys()
    assert "DELAY" in names
    assert not [name for name in names if name.startswith("TIMER_")]


@pytest.mark.parametrize("text", [b"DELAY\x011\x02", b"TIMER_DELAY_MS\x01500\x02"])
def test_c23_no_message_of_a_batch_is_delayed(text: bytes) -> None:
    body = encode_batch([BatchItem(0, b"a", b""), BatchItem(0, b"b", text)])
    refusal = rules().decide(header(is_batch=True), body, 409)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.remark) == (
        R.MESSAGE_ILLEGAL,
        "a message of a batch cannot be delayed",
    )


def test_l15_a_dead_letter_waits_for_nothing() -> None:
    text = "TIMER_DELAY_SEC\x015\x02DELAY\x013\x02"
    plan = accepted(header(topic="%RETRY%g", reconsume_times=4, properties=text))
    assert (plan.topic, plan.delay_level, plan.due_ms) == ("%DLQ%g", 0, 0)


def test_l16_while_a_group_holds_an_orderly_lock_a_retry_is_a_dead_letter() -> None:
    retry = header(topic="%RETRY%g", reconsume_times=1, properties="DELAY\x013\x02")
    plan = accepted(retry, has_live_lock=True)
    assert (plan.topic, plan.delay_level) == ("%DLQ%g", 0)
    assert accepted(retry).topic == "%RETRY%g"
    assert accepted(header(), has_live_lock=True).topic == "T"
