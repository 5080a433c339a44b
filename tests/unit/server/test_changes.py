"""Settings that change while a broker runs: which can, and what holds then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.server.changes import FIELDS, LiveSettings, overlay, problems, scope_of, unheeded
from broker.server.config import BrokerConfig, read_config
from broker.server.settings.table import BROKER_KEYS
from broker.settings.keys import Scope
from broker.store.group_settings import GroupSettings
from broker.times import time_text
from dledger_mq.message.numbers import StoreTimeMs

BASE, _ = read_config(
    {"brokerName": "broker-a", "storePathRootDir": "/data", "transactionTimeOut": "7000"}, {}
)


def test_what_can_change_by_the_table_is_what_is_adopted() -> None:
    assert {key.name for key in BROKER_KEYS.keys if scope_of(key.name) is not None} == set(FIELDS)


def test_a_change_wins_over_the_file_and_ends_with_nothing() -> None:
    config, wrong = overlay(BASE, {"transactionTimeOut": "9000", "brokerPermission": "4"})
    assert wrong == {}
    assert (config.transaction_timeout_ms, config.permission) == (9_000, 4)
    assert config.texts["transactionTimeOut"] == "9000"
    assert overlay(BASE, {"transactionTimeOut": ""})[0] == BASE


def test_nothing_but_what_was_changed_differs() -> None:
    config, _ = overlay(BASE, {"brokerPermission": "4"})
    differing = {name for name in BASE.__slots__ if getattr(config, name) != getattr(BASE, name)}
    assert differing == {"permission", "texts"}


def test_one_setting_of_retention_leaves_the_others_as_they_were() -> None:
    base, _ = read_config(
        {"brokerName": "a", "storePathRootDir": "/d", "fileReservedTime": "5", "deleteWhen": "03"},
        {},
    )
    config, wrong = overlay(base, {"diskMaxUsedSpaceRatio": "60"})
    assert wrong == {}
    assert config.retention == replace(base.retention, used_percent_max=60)
    assert config.retention.reserved_ms == 5 * 3_600_000
    again, _ = overlay(config, {"deleteWhen": "05"})
    assert again.retention.used_percent_max == 60


def test_a_setting_that_cannot_be_followed_leaves_its_neighbours_as_they_were() -> None:
    base, _ = read_config(
        {"brokerName": "a", "storePathRootDir": "/d", "fileReservedTime": "720"}, {}
    )
    config, wrong = overlay(base, {"fileReservedTime": "99999999", "retentionBytes": "5"})
    assert list(wrong) == ["fileReservedTime"]
    assert config.retention == replace(base.retention, bytes_max=5)


def test_a_reserved_time_that_another_setting_stands_for_is_not_accepted() -> None:
    """Whoever wants to keep messages for longer would be told that it is done, and they go."""
    base, _ = read_config(
        {"brokerName": "a", "storePathRootDir": "/d", "retentionSeconds": "3600"}, {}
    )
    longer = {"fileReservedTime": "100"}
    assert problems(longer) == []
    assert overlay(base, longer)[0].retention.reserved_ms == 3_600_000
    assert [text.partition(",")[0] for text in unheeded(longer, base)] == [
        "fileReservedTime holds only without retentionSeconds"
    ]
    with_both = {**longer, "retentionSeconds": "0"}
    assert unheeded(with_both, base) == []
    assert overlay(base, with_both)[0].retention.reserved_ms == 360_000_000
    assert unheeded(longer, BASE) == []
    assert unheeded({"fileReservedTime": ""}, base) == []
    assert unheeded({"retentionBytes": "5"}, base) == []


def test_what_this_version_does_not_know_is_passed_over() -> None:
    config, wrong = overlay(BASE, {"keyOfTomorrow": "1", "brokerPermission": "64"})
    assert config == BASE
    assert list(wrong) == ["brokerPermission"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"brokerPermision": "4"}, "is brokerPermission meant?"),
        ({"brokerPermission": "9"}, "brokerPermission=9 is not a number from 0 to 7"),
        ({"listenPort": "1"}, "listenPort is read at the start only: change it where it stands"),
        ({"raftLeaseMs": "500"}, "raftLeaseMs is read at the start only"),
        ({"secret": "x"}, "secret is read at the start only"),
        ({"haListenPort": "1"}, "haListenPort is not used: members replicate over the ports"),
        ({"aclEnable": "true"}, "aclEnable is read at the start only: change it where it stands"),
        ({"brokerPermission": "4", "listenPort": ""}, "listenPort is read at the start only"),
        ({"deleteWhen": "04;" * 1366}, "deleteWhen has 4098 characters, at most 4096 may be"),
    ],
)
def test_what_cannot_change_is_refused_with_the_reason(changes: dict[str, str], text: str) -> None:
    (found,) = problems(changes)
    assert text in found


def test_what_the_black_list_protects_cannot_change() -> None:
    config, _ = read_config(
        {"brokerName": "a", "storePathRootDir": "/d", "configBlackList": " brokerPermission ; "}, {}
    )
    assert problems({"brokerPermission": "4"}, config.unchangeable) == [
        "brokerPermission is in configBlackList"
    ]
    assert problems({"configBlackList": ""}, BASE.unchangeable) == [
        "configBlackList is in configBlackList"
    ]


def test_all_reasons_are_given_at_once() -> None:
    found = problems({"listenPort": "1", "nameOfNothing": "1", "highSpeedMode": "true"})
    assert len(found) == 3


def test_what_can_change_has_no_problem() -> None:
    assert problems({"brokerPermission": "4", "stopForwardSec": "", "maxMessageSize": "9"}) == []
    assert scope_of("stopForwardSec") is Scope.NODE
    assert scope_of("brokerPermission") is Scope.GROUP


def test_a_time_that_no_calendar_has_is_shown_all_the_same() -> None:
    assert time_text(0) == "1970-01-01T00:00:00+00:00"
    assert time_text(2**62) == f"{2**62} ms"


def test_a_change_leaves_alone_what_stands_beside_it_and_cannot_change() -> None:
    given = {"brokerName": "a", "storePathRootDir": "/d", "cleanResourceInterval": "500"}
    base, _ = read_config(given, {})
    assert base.retention.round_ms == 500
    config, wrong = overlay(base, {"fileReservedTime": "48"})
    assert (config.retention.reserved_ms, wrong) == (48 * 3_600_000, {})
    assert config.retention.round_ms == 500


class Adopted:
    """A broker's settings, with every configuration that was adopted."""

    def __init__(self) -> None:
        self.group = GroupSettings()
        self.node: dict[str, str] = {}
        self.configs: list[BrokerConfig] = []
        self.live = LiveSettings(BASE, lambda: self.group, lambda: self.node, self.configs.append)

    def change(self, **values: str) -> None:
        self.group.put(values, "1.2.3.4:5", StoreTimeMs(1))
        self.live.look()


def test_changes_are_adopted_once() -> None:
    adopted = Adopted()
    adopted.live.look()
    assert adopted.configs == []
    adopted.change(brokerPermission="4")
    adopted.live.look()
    assert [each.permission for each in adopted.configs] == [4]
    adopted.change(brokerPermission="4")
    adopted.change(brokerPermission="")
    assert [each.permission for each in adopted.configs] == [4, 6]
    assert adopted.live.config == BASE


def test_what_a_node_kept_holds_from_its_start_and_ends() -> None:
    adopted = Adopted()
    adopted.node["stopForwardSec"] = "7"
    adopted.live.look()
    assert adopted.live.config.stop_forward_s == 7
    adopted.node.clear()
    adopted.live.refresh()
    assert adopted.live.config == BASE


def test_a_change_that_a_node_cannot_follow_is_shown() -> None:
    adopted = Adopted()
    adopted.change(brokerPermission="64")
    assert adopted.live.config == BASE
    assert "brokerPermission" in adopted.live.passed_over
