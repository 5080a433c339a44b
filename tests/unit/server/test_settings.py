"""The table of broker.conf's keys, and how mistakes in a file are told."""

from __future__ import annotations

import pytest

from broker.server.config import BrokerConfig, Reading, read_settings
from broker.server.settings.honoured import HONOURED
from broker.server.settings.table import BROKER_KEYS
from broker.settings.keys import HonouredKey, NeedlessKeys, RefusedKey
from broker.settings.tls import TlsMode, TlsSettings
from dledger_mq.net.tls_contexts import TlsFiles

LONE = {"brokerName": "broker-a", "storePathRootDir": "/data"}


def read(text: dict[str, str], *, is_lenient: bool = False) -> Reading:
    lines = {key: number for number, key in enumerate(text, start=1)}
    return read_settings({**text, **LONE}, {}, lines=lines, is_lenient=is_lenient)


def test_what_is_honoured_is_what_is_read() -> None:
    honoured = {row.key.name for part in HONOURED.values() for row in part}
    assert set(read({}).asked) == honoured


def test_every_key_has_a_row_and_keys_of_ours_are_honoured_or_refused() -> None:
    assert len(BROKER_KEYS.keys) > 450
    kinds = {
        key.name: type(row)
        for key in BROKER_KEYS.keys
        if (row := (BROKER_KEYS.find(key.name) or [None] * 2)[1])
    }
    assert len(kinds) == len(BROKER_KEYS.keys)
    assert {kinds[key.name] for key in BROKER_KEYS.keys if key.is_ours} == {HonouredKey, RefusedKey}
    assert NeedlessKeys in kinds.values()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("fileReservdTime", "fileReservedTime"),
        ("listenport", "listenPort"),
        ("dLedgerPeers", "dLegerPeers"),
        ("maxMesageSize", "maxMessageSize"),
        ("colourOfTheShed", None),
    ],
)
def test_the_nearest_name(written: str, meant: str | None) -> None:
    assert BROKER_KEYS.nearest(written) == meant


NO_USERS = (
    "line 9: authenticationEnabled=true: users and rights of RocketMQ 5 are not supported, those of 4 are "
    "(aclEnable); remove the line"
)


def test_all_mistakes_of_a_file_are_told_at_once_with_their_lines() -> None:
    reading = read(
        {
            "flushDiskTyp": "SYNC_FLUSH",
            "stopForwardSec": "6s",
            "adminBrokerThreadPoolNums": "many",
            "colourOfTheShed": "blue",
            "namesrvAddr": "here",
            "defaultTopicQueueNums": "0",
            "connectionsMax": "0",
            "messageDelayLevel": "1s 2x",
            "authenticationEnabled": "true",
        }
    )
    assert reading.config is None
    assert list(reading.mistakes) == [
        "line 1: flushDiskTyp is unknown and cannot be used: is flushDiskType meant?",
        "line 2: stopForwardSec=6s is not a number from 0 to 50: it counts seconds, without a unit",
        "line 3: adminBrokerThreadPoolNums=many is not a whole number",
        "line 4: colourOfTheShed is unknown and cannot be used: no key has a name like it (docs/broker-conf.md)",
        "line 5: namesrvAddr: 'here' is not host:port (for example 127.0.0.1:9876)",
        "line 6: defaultTopicQueueNums=0 is not a number from 1 to 1024",
        "line 7: connectionsMax=0 is not a number of at least 1",
        "line 8: messageDelayLevel: delay level '2x' is not a number with a unit s, m, h or d",
        NO_USERS,
    ]


def test_a_lenient_start_passes_over_what_cannot_harm_and_says_so() -> None:
    reading = read(
        {"flushDiskTyp": "SYNC_FLUSH", "transactionTimeOut": "6s", "highSpeedMode": "2"},
        is_lenient=True,
    )
    assert reading.config is not None
    assert reading.config.transaction_timeout_ms == 6_000
    assert reading.passed_over == ("flushDiskTyp", "transactionTimeOut", "highSpeedMode")
    told = [text for text in reading.warnings if text.startswith("passed over: line ")]
    assert len(told) == 3


def test_what_is_passed_over_is_shown_as_it_holds() -> None:
    reading = read({"transactionTimeOut": "6s"}, is_lenient=True)
    assert reading.config is not None
    assert reading.config.texts["transactionTimeOut"] == "6000"
    (shown,) = (each for each in reading.settings if each.key == "transactionTimeOut")
    assert (shown.value, shown.origin) == ("6000", "default")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"brokerName": "b" * 65, "storePathRootDir": "/d"}, "must have 1 to 64 characters"),
        (
            {
                "dLegerGroup": "g",
                "dLegerSelfId": "n0",
                "dLegerPeers": ";".join(f"n{n}-127.0.0.1:{n + 1}" for n in range(10)),
                "storePathRootDir": "/d",
            },
            "10 members are named, at most 9 may be",
        ),
    ],
)
def test_what_the_log_would_refuse_is_told_before_it_starts(
    given: dict[str, str], text: str
) -> None:
    (mistake,) = read_settings(given, {}).mistakes
    assert text in mistake


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("aclEnable", "yes"),
        ("aclEnabel", "true"),
        ("enableAcl", "true"),
        ("tlsEnable", "true"),
        ("tlsEnabled", "true"),
        ("tls.server.mode", "enforcing"),
        ("tls.server.mode", "on"),
        ("authenticationEnabled", "true"),
        ("authorizationEnabled", "true"),
        ("brokerPermission", "4x"),
        ("flushDiskType", "SYNC"),
        ("autoCreateTopicEnable", "no"),
        ("inSyncReplicas", "2"),
        ("brokerRole", "SLAVE"),
        ("listenPort", "x"),
    ],
)
def test_what_protects_is_refused_also_of_a_lenient_start(key: str, value: str) -> None:
    for is_lenient in (False, True):
        reading = read({key: value}, is_lenient=is_lenient)
        assert reading.config is None
        assert reading.mistakes[0].startswith(f"line 1: {key}")


@pytest.mark.parametrize("key", ["tlsEnable", "aclEnable", "authenticationEnabled", "tls.enable"])
def test_a_protection_that_is_switched_off_asks_for_nothing(key: str) -> None:
    reading = read({key: "false"})
    assert reading.config is not None
    assert not [text for text in reading.warnings if key in text]


def test_where_settings_come_from() -> None:
    reading = read_settings(
        {**LONE, "listenPort": "1111", "connectionsMax": "7", "brokerId": "0"},
        {"listenPort": "2222"},
        lines={"brokerName": 3, "connectionsMax": 4},
    )
    found = {each.key: (each.value, each.origin) for each in reading.settings}
    assert found["listenPort"] == ("2222", "command line")
    assert found["connectionsMax"] == ("7", "line 4")
    assert found["storePathRootDir"] == ("/data", "file")
    assert found["dLegerPeers"] == ("n0-127.0.0.1:12222", "group of one node")
    assert found["maxMessageSize"] == ("4194304", "default")
    unused = next(each for each in reading.settings if each.key == "brokerId")
    assert unused.effect.startswith("not used: ")


def test_secrets_are_shown_to_nobody() -> None:
    reading = read_settings(LONE, {"secret": "hush"})
    assert "hush" not in str(reading.settings)
    assert [each.value for each in reading.settings if each.key == "secret"] == ["(hidden)"]


def held(given: dict[str, str]) -> BrokerConfig:
    """The settings that hold; there is no mistake."""
    reading = read(given)
    assert reading.config is not None, reading.mistakes
    return reading.config


def test_tls_is_off_without_a_certificate_and_takes_both_with_one() -> None:
    assert held({}).tls == TlsSettings()
    found = read({"tls.server.certPath": "/cert", "tls.server.keyPassword": "hush"})
    assert found.config is not None
    assert found.config.tls == TlsSettings(
        mode=TlsMode.PERMISSIVE, server=TlsFiles("/cert", key_password="hush")
    )
    assert "tls.server.keyPassword" not in found.config.texts
    shown = {each.key: each.value for each in found.settings}
    assert shown["tls.server.keyPassword"] == "(hidden)"
    assert shown["tls.server.mode"] == "permissive"
    assert "hush" not in repr(found.config)


def test_who_takes_tls_only_speaks_it_too() -> None:
    enforcing = {"tls.server.mode": "enforcing", "tls.server.certPath": "/cert"}
    assert held(enforcing).tls.dials
    assert held({"useTLS": "true"}).tls.dials
    (mistake,) = read({**enforcing, "tls.enable": "false"}).mistakes
    assert mistake.startswith("tls.enable=false: with tls.server.mode=enforcing")


def test_members_show_what_the_port_shows_unless_told_otherwise() -> None:
    given = {
        "tls.server.certPath": "/cert",
        "tls.server.keyPath": "/key",
        "tls.peer.mode": "enforcing",
        "tls.peer.trustCertPath": "/ca",
    }
    assert held(given).tls.peer == TlsFiles("/cert", "/key", trust="/ca")
    own = read({**given, "tls.peer.certPath": "/own", "tls.peer.keyPassword": "hush"})
    assert own.config is not None
    assert own.config.tls.peer == TlsFiles("/own", key_password="hush", trust="/ca")
    assert "hush" not in repr(own)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls.peer.mode": "permissive"}, "tls.peer.certPath is missing"),
        (
            {"tls.peer.mode": "enforcing", "tls.server.certPath": "/cert"},
            "tls.peer.trustCertPath is missing",
        ),
        ({"tls.server.mode": "enforcing"}, "name a certificate in tls.server.certPath"),
        ({"tls.server.keyPath": "/key"}, "tls.server.certPath, its certificate, is missing"),
        (
            {"tls.server.certPath": "/cert", "tls.server.need.client.auth": "require"},
            "name in tls.server.trustCertPath who signs certificates of clients",
        ),
    ],
)
def test_half_of_what_tls_needs_is_refused(given: dict[str, str], words: str) -> None:
    assert any(words in mistake for mistake in read(given).mistakes)


THREE_MEMBERS = {
    "dLegerGroup": "g",
    "dLegerSelfId": "n0",
    "dLegerPeers": "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3",
    "storePathRootDir": "/d",
}


def test_access_control_needs_a_secret_where_there_are_several_members() -> None:
    given = THREE_MEMBERS | {"aclEnable": "true", "aclFile": "rules.yml"}
    (mistake,) = read_settings(given, {}).mistakes
    assert mistake.startswith("aclEnable=true needs the group's secret (--secret-file)")
    with_secret = read_settings(given, {"secret": "s"}).config
    assert with_secret is not None
    assert with_secret.acl_file == "rules.yml"


@pytest.mark.parametrize(
    ("value", "file"), [("true", "plain_acl.yml"), ("false", None), ("", None)]
)
def test_access_control_of_a_lone_node(value: str, file: str | None) -> None:
    reading = read({"aclEnable": value})
    assert reading.config is not None
    assert reading.config.acl_file == file
