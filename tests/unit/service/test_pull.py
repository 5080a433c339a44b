"""Who may pull what, and what the result is called: rules E, F9, G, worked examples AC."""

from __future__ import annotations

from typing import Any

import pytest

from broker.service.catalog import Catalog
from broker.service.clients import ConsumerClient
from broker.service.pull import PullGrant, PullRules, outcome_of
from broker.service.refusal import Refusal
from broker.service.tags import EXPRESSION_CHARACTERS_MAX, TagExpressionError, tag_hashes
from broker.store.groups import SubscriptionGroupConfig
from broker.store.reading import GetResult, GetStatus
from broker.store.topics import TopicConfig
from dledger_mq.message.hashes import tags_code
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.heartbeat import MessageModel, Subscription
from dledger_mq.remoting.requests import PullFields

TOPICS = {"T": TopicConfig("T", 4, 8), "WriteOnly": TopicConfig("WriteOnly", 4, 4, 2)}
GROUPS = {
    "g": SubscriptionGroupConfig("g"),
    "off": SubscriptionGroupConfig("off", consume_enable=False),
    "nobroadcast": SubscriptionGroupConfig("nobroadcast", consume_broadcast_enable=False),
    "forbidden": SubscriptionGroupConfig("forbidden"),
    "offline": SubscriptionGroupConfig("offline"),
}


def member(group: str, **changes: Any) -> dict[str, ConsumerClient]:
    usual: dict[str, Any] = {"subscriptions": (Subscription("T", "A", version=100),)}
    return {"c": ConsumerClient(group, "c", **(usual | changes))}


MEMBERS = {
    "g": member("g"),
    "nobroadcast": member("nobroadcast", message_model=MessageModel.BROADCASTING),
    "forbidden": member("forbidden"),
}


def rules(permission: int = 6, *, auto: bool = True) -> PullRules:
    return PullRules(
        Catalog(TOPICS.get, GROUPS.get),
        permission=permission,
        auto_create_groups=auto,
        members=lambda group: MEMBERS.get(group, {}),
        forbidden_bits=lambda group, _: int(group == "forbidden"),
    )


def header(**changes: Any) -> PullFields:
    usual: dict[str, Any] = {
        "consumer_group": "g",
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "max_msg_nums": 32,
        "sys_flag": 2,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "sub_version": 100,
    }
    return PullFields(**(usual | changes))


R = ResponseCode
REFUSED = [
    ("E1 broker not readable", {}, 2, True, R.NO_PERMISSION),
    ("E2 unknown group", {"consumer_group": "new"}, 6, False, R.SUBSCRIPTION_GROUP_NOT_EXIST),
    ("E2 invalid group", {"consumer_group": "a b"}, 6, True, R.SUBSCRIPTION_GROUP_NOT_EXIST),
    ("E2 disabled group", {"consumer_group": "off"}, 6, True, R.NO_PERMISSION),
    ("E3 unknown topic", {"topic": "X"}, 6, True, R.TOPIC_NOT_EXIST),
    ("E3 topic not readable", {"topic": "WriteOnly"}, 6, True, R.NO_PERMISSION),
    ("E3 queue too high", {"queue_id": 4}, 6, True, R.SYSTEM_ERROR),
    ("E3 queue below 0", {"queue_id": -1}, 6, True, R.SYSTEM_ERROR),
    ("E5 bad expression", {"sys_flag": 4, "subscription": "||"}, 6, True, R.SUBSCRIPTION_PARSE_FAILED),
    ("E6 not connected", {"consumer_group": "offline"}, 6, True, R.SUBSCRIPTION_NOT_EXIST),
    ("E6 broadcast", {"consumer_group": "nobroadcast"}, 6, True, R.NO_PERMISSION),
    ("E6 forbidden", {"consumer_group": "forbidden"}, 6, True, R.NO_PERMISSION),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "permission", "auto", "code"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
def test_refused(fields: dict[str, Any], permission: int, auto: bool, code: ResponseCode) -> None:
    refusal = rules(permission, auto=auto).check(header(**fields))
    assert isinstance(refusal, Refusal)
    assert refusal.code == code
    assert refusal.remark


@pytest.mark.parametrize(
    ("fields", "tags"),
    [
        ({}, {"A"}),
        ({"sys_flag": 6, "subscription": "B||C"}, {"B", "C"}),
        ({"sys_flag": 6, "subscription": "*"}, None),
        ({"sys_flag": 6, "subscription": None}, None),
        ({"sub_version": 0}, {"A"}),
        ({"sub_version": 101}, None),
        ({"sub_version": 101, "expression_type": "TAG"}, None),
    ],
    ids=[
        "from the heartbeat",
        "from the header",
        "everything",
        "nothing said",
        "Go says version 0",
        "newer than what was told here: the client selects",
        "the same, as Java says it",
    ],
)
def test_granted_with_a_filter(fields: dict[str, Any], tags: set[str] | None) -> None:
    grant = rules().check(header(**fields))
    assert grant == PullGrant(None if tags is None else frozenset(map(tags_code, tags)))


def test_b10_a_new_group_is_created() -> None:
    grant = rules().check(header(consumer_group="new", sys_flag=6))
    assert isinstance(grant, PullGrant)
    assert [group.name for group in grant.creation.groups] == ["new"]


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("", None),
        ("*", None),
        ("A", {"A"}),
        (" A || B|| ", {"A", "B"}),
        ("A B", {"A B"}),
        ("A||*", None),
    ],
)
def test_g1_g2_expressions(expression: str, tags: set[str] | None) -> None:
    assert tag_hashes(expression) == (None if tags is None else frozenset(map(tags_code, tags)))


def test_g6_colliding_tags_pass_together() -> None:
    assert tag_hashes("Aa") == tag_hashes("BB")


def test_long_expressions_are_not_remembered() -> None:
    short, long = ("||".join(f"tag{number}" for number in range(count)) for count in (20, 2000))
    assert tag_hashes(short) is tag_hashes(short)
    assert tag_hashes(long) == tag_hashes(long)
    assert tag_hashes(long) is not tag_hashes(long)


@pytest.mark.parametrize("expression", ["||", " ", "|| ||"])
def test_g1_an_expression_without_tags(expression: str) -> None:
    with pytest.raises(TagExpressionError):
        tag_hashes(expression)


def test_the_length_of_an_expression_is_bounded() -> None:
    most = "A||" + "B" * (EXPRESSION_CHARACTERS_MAX - 3)
    assert tag_hashes(most) == {tags_code("A"), tags_code(most[3:])}
    with pytest.raises(TagExpressionError, match="65537 characters, at most 65536"):
        tag_hashes(most + "B")


S = GetStatus
OUTCOMES = [
    ("AC1", S.NO_MESSAGE_IN_QUEUE, 0, (0, 0, 0), True, ResponseCode.PULL_NOT_FOUND, 0),
    ("AC2", S.NO_MESSAGE_IN_QUEUE, 5, (0, 0, 0), True, ResponseCode.PULL_OFFSET_MOVED, 0),
    ("AC3", S.OFFSET_OVERFLOW_ONE, 10, (10, 0, 10), True, ResponseCode.PULL_NOT_FOUND, 10),
    ("AC4", S.OFFSET_OVERFLOW_BADLY, 11, (10, 0, 10), True, ResponseCode.PULL_OFFSET_MOVED, 10),
    ("AC5", S.OFFSET_TOO_SMALL, 0, (4, 4, 10), True, ResponseCode.PULL_OFFSET_MOVED, 4),
    (
        "AC6",
        S.NO_MATCHED_MESSAGE,
        0,
        (800, 0, 2000),
        True,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        800,
    ),
    ("AC7", S.FOUND, 0, (32, 0, 100), True, ResponseCode.SUCCESS, 32),
    ("D9", S.MESSAGE_WAS_REMOVING, 0, (7, 0, 100), True, ResponseCode.PULL_RETRY_IMMEDIATELY, 7),
    ("behind, empty", S.NO_MESSAGE_IN_QUEUE, 5, (0, 0, 0), False, ResponseCode.PULL_NOT_FOUND, 5),
    ("behind", S.OFFSET_OVERFLOW_BADLY, 11, (10, 0, 10), False, ResponseCode.PULL_NOT_FOUND, 11),
    (
        "deleted everywhere",
        S.OFFSET_TOO_SMALL,
        0,
        (4, 4, 10),
        False,
        ResponseCode.PULL_OFFSET_MOVED,
        4,
    ),
]


@pytest.mark.parametrize(
    ("status", "offset", "bounds", "leads", "code", "following"),
    [row[1:] for row in OUTCOMES],
    ids=[row[0] for row in OUTCOMES],
)
def test_e9_codes(
    status: GetStatus,
    offset: int,
    bounds: tuple[int, int, int],
    leads: bool,
    code: ResponseCode,
    following: int,
) -> None:
    outcome = outcome_of(GetResult(status, *bounds), offset, is_authoritative=leads)
    assert (outcome.code, outcome.next_offset) == (code, following)
    assert outcome.max_offset >= outcome.next_offset or code == ResponseCode.SUCCESS
