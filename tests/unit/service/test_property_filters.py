"""Pulls by SQL92 filters: rules E5 to E7, G9, H8; and how many compiled filters are kept."""

from __future__ import annotations

from typing import Any

import pytest

from broker.service.catalog import Catalog
from broker.service.clients import ConsumerClient
from broker.service.property_filters import CompiledFilters
from broker.service.pull import PullGrant, PullRules
from broker.service.refusal import Refusal
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import TopicConfig
from dledger_mq.filters import FilterTextError, compile_filter
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.heartbeat import Subscription
from dledger_mq.remoting.requests import PullFields

SQL = "a > 1"
RETRY = "%RETRY%g"


def rules(subscription: Subscription | None = None, *, is_on: bool = True) -> PullRules:
    members = {}
    if subscription is not None:
        members["c"] = ConsumerClient("g", "c", subscriptions=(subscription,))
    return PullRules(
        Catalog(lambda name: TopicConfig(name, 1, 1), lambda name: SubscriptionGroupConfig(name)),
        permission=6,
        auto_create_groups=True,
        property_filters=is_on,
        members=lambda _: members,
        forbidden_bits=lambda _group, _topic: 0,
    )


def reported(text: str = SQL, **changes: Any) -> Subscription:
    return Subscription("T", text, "SQL92", version=100, **changes)


def pull(sys_flag: int = 2, **changes: Any) -> PullFields:
    usual: dict[str, Any] = {
        "consumer_group": "g",
        "topic": "T",
        "queue_id": 0,
        "queue_offset": 0,
        "max_msg_nums": 32,
        "sys_flag": sys_flag,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "sub_version": 100,
    }
    return PullFields(**(usual | changes))


def carried(text: str | None = SQL, **changes: Any) -> PullFields:
    return pull(**({"sys_flag": 6, "subscription": text, "expression_type": "SQL92"} | changes))


@pytest.mark.parametrize(
    ("subscription", "fields"),
    [
        (None, carried()),
        (Subscription("T", "x"), carried()),
        (reported(), pull(expression_type="SQL92")),
        (reported(), pull(expression_type="TAG", sub_version=0)),
        (reported(), pull()),
    ],
    ids=["without a heartbeat", "the header counts", "Java", "Go says TAG", "nothing said"],
)
def test_granted(subscription: Subscription | None, fields: PullFields) -> None:
    grant = rules(subscription).check(fields)
    assert grant == PullGrant(None, property_filter=compile_filter(SQL))


@pytest.mark.parametrize(
    ("subscription", "fields", "code", "said"),
    [
        (None, carried("a >"), ResponseCode.SUBSCRIPTION_PARSE_FAILED, "line 1, column 3"),
        (None, carried(None), ResponseCode.SUBSCRIPTION_PARSE_FAILED, "line 1, column 1"),
        (reported("a >"), pull(), ResponseCode.FILTER_DATA_NOT_EXIST, "line 1, column 3"),
        (reported(), pull(sub_version=101), ResponseCode.SUBSCRIPTION_NOT_LATEST, "101"),
        (
            reported(),
            pull(sub_version=101, expression_type="SQL92"),
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            "not latest",
        ),
        (
            Subscription("T", "x", version=100),
            pull(sub_version=101, expression_type="SQL92"),
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            "not latest",
        ),
        (
            None,
            carried(expression_type="XPATH"),
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "none of the type 'XPATH'",
        ),
        (None, pull(sys_flag=14), ResponseCode.SUBSCRIPTION_PARSE_FAILED, "code of clients"),
        (
            Subscription("T", "org.x.Filter", is_class_filter=True, version=100),
            pull(),
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "code of clients",
        ),
    ],
    ids=[
        "H8 wrong in the pull",
        "nothing in the pull",
        "H8 wrong in the heartbeat",
        "newer than what was told",
        "the same, as Java says it",
        "SQL92 since then",
        "an unknown type",
        "a filter class in the pull",
        "a filter class in the heartbeat",
    ],
)
def test_refused(
    subscription: Subscription | None, fields: PullFields, code: ResponseCode, said: str
) -> None:
    refusal = rules(subscription).check(fields)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, said in refusal.remark) == (code, True), refusal.remark


def test_who_is_back_at_tags_selects_by_itself_until_its_heartbeat_comes() -> None:
    assert rules(reported()).check(pull(sub_version=101, expression_type="TAG")) == PullGrant(None)


@pytest.mark.parametrize("text", [SQL, "a >"])
def test_g9_retry_topics_are_read_without_a_filter(text: str) -> None:
    assert rules().check(carried(text, topic=RETRY)) == PullGrant(None)


def test_e7_h1_switched_off() -> None:
    for fields in (carried(), carried("a >")):
        refusal = rules(is_on=False).check(fields)
        assert isinstance(refusal, Refusal)
        assert refusal.code == ResponseCode.SYSTEM_ERROR
        assert refusal.remark.startswith(
            "The broker does not support consumer to filter message by SQL92"
        )
        assert "enablePropertyFilter" in refusal.remark
    assert rules(is_on=False).check(carried("x", expression_type="TAG")) != refusal


def test_a_subscription_is_judged_as_a_pull_with_it_would_be() -> None:
    assert rules().judge(reported()) is None
    assert rules().judge(Subscription("T", "a || b")) is None
    wrong = rules().judge(reported("a = 1 b"))
    assert wrong is not None
    assert wrong.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "line 1, column 7: unexpected 'b'" in wrong.remark
    assert "T" in wrong.remark
    off = rules(is_on=False).judge(reported())
    assert off is not None
    assert off.code == ResponseCode.SYSTEM_ERROR


def test_compiled_filters_are_kept_and_refusals_too() -> None:
    kept = CompiledFilters()
    assert kept.get(SQL) is kept.get(SQL)
    for _ in range(2):
        with pytest.raises(FilterTextError, match="ends too soon"):
            kept.get("a >")
    assert len(kept) == 2


def test_what_is_kept_is_bounded_and_the_least_used_goes_first() -> None:
    kept = CompiledFilters(characters_max=3 * (64 + len("a = 1")))
    first = kept.get("a = 1")
    for n in (2, 3):
        kept.get(f"a = {n}")
    kept.get("a = 1")
    kept.get("a = 4")
    assert len(kept) == 3
    assert kept.get("a = 1") is first
    kept.get("a = 1 " + "OR b = 2 " * 40)
    assert len(kept) == 3, "one that is longer than all that is kept"
