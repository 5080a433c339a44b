"""RocketMQ's own files start a broker without edits, or are refused for what they ask."""

from __future__ import annotations

import pytest

from broker.properties import read_property_lines
from broker.server.config import BrokerConfig, Reading, read_config, read_settings
from broker.server.settings.table import BROKER_KEYS
from dledger_mq.net.address import Address
from tests.unit.server.stock_files import (
    CONTAINER,
    CONTROLLER,
    DLEDGER,
    MASTER,
    SLAVE,
    SYNC_MASTER,
)

BY_THE_MACHINE = ("the host's name", "the host's address", "by cores", "$HOME/store")
"""Defaults that RocketMQ works out."""


def read(text: str) -> Reading:
    found = read_property_lines(text)
    return read_settings(
        {each.key: each.value for each in found}, {}, lines={each.key: each.line for each in found}
    )


def config_of(text: str) -> BrokerConfig:
    reading = read(text)
    assert reading.mistakes == ()
    assert reading.config is not None
    return reading.config


@pytest.mark.parametrize(("text", "name"), [(MASTER, "broker-a"), (SYNC_MASTER, "broker-b")])
def test_a_masters_file_makes_a_group_of_one_node(
    text: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/operator")
    config = config_of(text)
    assert (config.group, config.broker_name, config.node_id) == (name, name, "n0")
    assert [str(peer) for peer in config.peers] == ["n0-127.0.0.1:20911"]
    assert config.listen == Address("127.0.0.1", 10911)
    assert config.store_path == f"/home/operator/dledger-store/{name}"
    assert not config.fsync


def test_a_start_with_a_masters_file_says_what_holds() -> None:
    lone, *unused, risk = read(MASTER).warnings
    assert lone.startswith("no members are named (dLegerPeers): this is a group of one node")
    assert "n0-127.0.0.1:20911" in lone
    assert "broker-a" in lone
    assert [line.split()[0] for line in unused] == [
        "brokerId",
        "brokerRole",
    ]
    assert "a send is acknowledged once a majority" in unused[1]
    assert risk.startswith("flushDiskType=ASYNC_FLUSH: sends are acknowledged before fsync")


def test_a_file_of_dledger_is_a_member_of_its_group() -> None:
    config = config_of(DLEDGER)
    assert (config.group, config.node_id, len(config.peers)) == ("RaftNode00", "n0", 3)
    assert (config.store_path, config.listen.port) == ("/tmp/rmqstore/node00", 30911)


def test_a_file_of_the_role_slave_is_refused_for_it_would_be_a_second_group_of_its_masters_name() -> (
    None
):
    (mistake,) = read(SLAVE).mistakes
    assert mistake.startswith("line 6: brokerRole=SLAVE: the group elects its leader")


def test_files_that_ask_for_more_copies_than_there_are_members_are_refused() -> None:
    (mistake,) = read(CONTAINER).mistakes
    assert mistake.startswith("line 11: inSyncReplicas=2: an acknowledged send is on a majority")


def test_a_controllers_file_is_told_all_that_is_wrong_with_it() -> None:
    assert [text.split("=")[0] for text in read(CONTROLLER).mistakes] == [
        "line 4: brokerRole",
        "line 7: enableControllerMode",
        "line 10: allAckInSyncStateSet",
    ]


@pytest.mark.parametrize("release", ["in_49", "in_53"])
def test_rocketmqs_own_defaults_never_make_a_start_fail(release: str) -> None:
    defaults = {key.name: getattr(key, release) for key in BROKER_KEYS.keys}
    given = {key: value for key, value in defaults.items() if value and value not in BY_THE_MACHINE}
    assert len(given) > 100
    config, _ = read_config({"brokerName": "broker-a", **given}, {})
    assert config.group == "broker-a"


@pytest.mark.parametrize(
    "given",
    [
        {"enableDLegerCommitLog": "true"},
        {"dLegerGroup": "broker-a"},
        {"dLegerSelfId": "n0"},
        {"brokerName": ""},
    ],
)
def test_a_member_that_lacks_a_line_is_not_taken_for_a_group_of_its_own(
    given: dict[str, str],
) -> None:
    values = {"brokerName": "broker-a", "storePathRootDir": "/data", **given}
    mistakes = read_settings(values, {}).mistakes
    assert "dLegerPeers is missing: give --peers or set it in broker.conf" in mistakes


@pytest.mark.parametrize(
    ("listen", "member"), [("10911", 20911), ("60000", 50000), ("0", 20911), ("55535", 65535)]
)
def test_the_members_port_of_a_group_of_one_node(listen: str, member: int) -> None:
    config, _ = read_config({"brokerName": "broker-a", "listenPort": listen}, {})
    assert config.own_peer.port == member


def test_a_name_that_is_no_folder_needs_a_store() -> None:
    mistakes = read_settings({"brokerName": "../elsewhere"}, {}).mistakes
    assert mistakes == ("storePathRootDir is missing: give --store or set it in broker.conf",)
