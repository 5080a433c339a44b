"""broker.conf and the command line (docs/configuration.md)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from broker.properties import read_properties
from broker.server.config import (
    BrokerConfig,
    read_config,
    read_settings,
    why_same_follower_id,
)
from broker.server.settings.raft_times import RaftTimes
from broker.service.retention import RetentionRules
from broker.store.reading import GetLimits
from dledger import NodeId, RaftConfig
from dledger.errors import ConfigError
from dledger_mq.net.address import Address

IDENTITY = {
    "dLegerGroup": "broker-a",
    "dLegerSelfId": "n1",
    "dLegerPeers": "n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911",
    "storePathRootDir": "/data/n1",
    "secret": "s",
}


CLIENTS_SHOW_CERTIFICATES = {
    "tls.server.mode": "enforcing",
    "tls.server.certPath": "c",
    "tls.server.trustCertPath": "t",
    "tls.server.need.client.auth": "require",
}
MEMBERS_SHOW_CERTIFICATES = {
    "tls.peer.mode": "enforcing",
    "tls.peer.certPath": "c",
    "tls.peer.trustCertPath": "t",
}


def build(**changes: str) -> tuple[BrokerConfig, list[str]]:
    """Settings of a member, and what is said of them but that everybody may do everything."""
    config, warnings = read_config({**IDENTITY, **changes}, {})
    return config, [text for text in warnings if not text.startswith("EVERYBODY")]


def test_how_much_one_pull_is_given_goes_by_rocketmqs_keys() -> None:
    config, said = build()
    assert replace(config.reads, memory_span_bytes=GetLimits().memory_span_bytes) == GetLimits()
    config, said = build(
        maxTransferCountOnMessageInMemory="64",
        maxTransferBytesOnMessageInMemory="500000",
        maxTransferCountOnMessageInDisk="16",
        maxTransferBytesOnMessageInDisk="200000",
        accessMessageInMemoryMaxRatio="0",
    )
    assert config.reads == GetLimits(
        count_max_in_memory=64,
        bytes_max_in_memory=500_000,
        count_max_on_disk=16,
        bytes_max_on_disk=200_000,
        memory_span_bytes=0,
    )
    assert said == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("maxTransferCountOnMessageInMemory", "0"),
        ("maxTransferCountOnMessageInDisk", "1025"),
        ("maxTransferBytesOnMessageInMemory", "8388609"),
        ("maxTransferBytesOnMessageInDisk", "64k"),
    ],
)
def test_a_pull_is_not_given_more_than_an_answer_may_have(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build(**{key: value})


def test_a_rocketmq_broker_conf_is_read_as_it_is() -> None:
    text = """
    # a usual file of a DLedger group
    brokerClusterName = RaftCluster
    brokerName=RaftNode00
    listenPort=30911
    namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
    storePathRootDir=/tmp/rmqstore/node00
    storePathCommitLog=/tmp/rmqstore/node00/commitlog
    enableDLegerCommitLog=true
    dLegerGroup=RaftNode00
    dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
    ## must be unique
    dLegerSelfId=n0
    sendMessageThreadPoolNums=16
    """
    config, warnings = read_config(read_properties(text), {})
    assert (config.cluster, config.broker_name, config.group) == (
        "RaftCluster",
        "RaftNode00",
        "RaftNode00",
    )
    assert config.listen == Address("127.0.0.1", 30911)
    assert config.namesrvs == (Address("127.0.0.1", 9876), Address("127.0.0.1", 9877))
    assert config.fsync
    assert [line.split()[0] for line in warnings] == [
        "storePathCommitLog",
        "sendMessageThreadPoolNums",
    ]


def test_the_command_line_beats_the_file() -> None:
    config, _ = read_config({**IDENTITY, "listenPort": "1111"}, {"listenPort": "2222"})
    assert config.listen.port == 2222


@pytest.mark.parametrize(
    ("given", "listen", "advertised"),
    [
        ({}, "10.0.0.2", "10.0.0.2"),
        ({"brokerIP1": "192.168.0.9"}, "192.168.0.9", "192.168.0.9"),
        ({"bindAddress": "0.0.0.0"}, "0.0.0.0", "10.0.0.2"),
        ({"bindAddress": "127.0.0.1"}, "127.0.0.1", "127.0.0.1"),
        ({"bindAddress": "0.0.0.0", "brokerIP1": "192.168.0.9"}, "0.0.0.0", "192.168.0.9"),
    ],
)
def test_where_to_listen_and_what_clients_are_told(
    given: dict[str, str], listen: str, advertised: str
) -> None:
    config, _ = build(**given)
    assert (config.listen.host, config.advertised_host) == (listen, advertised)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"dLegerSelfId": "n7"}, "--id n7 is not among the members n0, n1, n2"),
        ({"dLegerGroup": ""}, "dLegerGroup is missing: give --group or set it in broker.conf"),
        ({"listenPort": "20911"}, "is also the port of n1-10.0.0.2:20911"),
        ({"listenPort": "seven"}, "listenPort=seven is not a number from 0 to 65535"),
        ({"listenPort": "1²"}, "listenPort=1² is not a number from 0 to 65535"),
        ({"listenPort": "--1"}, "listenPort=--1 is not a number from 0 to 65535"),
        ({"namesrvAddr": "127.0.0.1:²"}, "namesrvAddr: '127.0.0.1:²' is not host:port"),
        ({"dLegerPeers": "n0-127.0.0.1:²"}, "peers: 'n0-127.0.0.1:²' is not of the form"),
        ({"namesrvAddr": "127.0.0.1"}, "namesrvAddr: '127.0.0.1' is not host:port"),
        ({"flushDiskType": "SOMETIMES"}, "is not one of SYNC_FLUSH, ASYNC_FLUSH"),
        ({"autoCreateTopicEnable": "yes"}, "autoCreateTopicEnable=yes is not one of true, false"),
        ({"enableDLegerCommitLog": "false"}, "every node is a member of a Raft group"),
        ({"brokerRole": "SLAVE"}, "the group elects its leader"),
        ({"filterServerNums": "1"}, "code of clients is not run here"),
        ({"messageDelayLevel": "1s 2x"}, "'2x' is not a number with a unit"),
        ({"vipListenEnable": "true", "listenPort": "20913"}, "needs port 20911 (listenPort - 2)"),
    ],
)
def test_what_is_refused_and_why(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(**given)
    assert text in str(refused.value)


def test_what_risks_something_is_said() -> None:
    config, warnings = build(flushDiskType="ASYNC_FLUSH")
    assert not config.fsync
    assert "may lose acknowledged messages" in warnings[0]


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ({}, True),
        ({"bindAddress": "0.0.0.0"}, True),
        ({"bindAddress": "127.0.0.1"}, False),
        ({"aclEnable": "true"}, False),
        ({"tls.server.mode": "enforcing", "tls.server.certPath": "c"}, True),
        (CLIENTS_SHOW_CERTIFICATES, False),
        (CLIENTS_SHOW_CERTIFICATES | {"tls.server.mode": "permissive"}, True),
    ],
)
def test_a_port_for_everybody_is_named_once(given: dict[str, str], *, is_said: bool) -> None:
    _, warnings = read_config(IDENTITY | given, {})
    told = [text for text in warnings if text.startswith("EVERYBODY who reaches ")]
    assert len(told) == is_said


@pytest.mark.parametrize("host", ["10.0.0.2", "0.0.0.0", "some-machine", "::"])
def test_members_that_others_reach_have_a_secret_or_certificates(host: str) -> None:
    """A mode that takes plain text, too, keeps nobody out."""
    given = IDENTITY | {"dLegerPeers": f"n1-{host}:20911", "bindAddress": "127.0.0.1"}
    assert read_settings(given, {}).mistakes == ()
    bare = given | {"secret": ""}
    assert read_settings(bare | MEMBERS_SHOW_CERTIFICATES, {}).mistakes == ()
    for more in ({}, MEMBERS_SHOW_CERTIFICATES | {"tls.peer.mode": "permissive"}):
        (mistake,) = read_settings(bare | more, {}).mistakes
        assert mistake.startswith(f"n1-{host}:20911 can be reached from other machines")
        assert "--secret-file FILE" in mistake
        assert "tls.peer.mode=enforcing" in mistake


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_on_one_machine_members_need_no_secret(host: str) -> None:
    given = IDENTITY | {"dLegerPeers": f"n1-{host}:20911", "secret": ""}
    assert read_settings(given, {}).mistakes == ()


def test_a_preferred_leader_may_be_a_member_that_is_added_later() -> None:
    config, warnings = build(preferredLeaderId="n9; n0")
    assert config.preferred_leaders == ("n9", "n0")
    assert "preferredLeaderId=n9 is not among the members n0, n1, n2 of dLegerPeers" in warnings[0]
    assert "preferredLeaderId" not in "".join(build(preferredLeaderId="n0")[1])


def test_delay_levels_m1() -> None:
    config, _ = build()
    assert (config.delay_levels_ms[0], config.delay_levels_ms[2], config.delay_levels_ms[17]) == (
        1_000,
        10_000,
        7_200_000,
    )
    assert len(config.delay_levels_ms) == 18


@pytest.mark.parametrize(("node", "broker_id"), [("n0", 1), ("n1", 2), ("n12", 13), ("blue", 1)])
def test_a_followers_id_is_the_number_in_its_name_plus_one(node: str, broker_id: int) -> None:
    config, _ = read_config(
        {**IDENTITY, "dLegerSelfId": node, "dLegerPeers": f"{node}-127.0.0.1:1"}, {}
    )
    assert config.broker_id_as_follower == broker_id


def test_properties_as_java_reads_them() -> None:
    text = "a=1\n! no\n b : 2  \nc 3\nlong=x\\\n   y\nd=\\u0041\\t\\=\nempty\na=last\npath=C:\\\\x"
    assert read_properties(text) == {
        "a": "last",
        "b": "2",
        "c": "3",
        "long": "xy",
        "d": "A\t=",
        "empty": "",
        "path": "C:\\x",
    }


def test_a_broken_escape_names_its_line() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        read_properties("a=1\nb=\\u12")


def test_a_character_in_two_escapes_is_one_and_half_of_one_is_refused() -> None:
    assert read_properties("a=\\ud83d\\ude00") == {"a": "\U0001f600"}
    with pytest.raises(ConfigError, match="line 2"):
        read_properties("a=1\nb=\\ud800")


def test_o15_settings_of_transactions() -> None:
    usual, _ = build()
    assert (usual.transaction_timeout_ms, usual.transaction_check_interval_ms) == (6_000, 30_000)
    assert (usual.transaction_check_max, usual.limits.open_transactions_max) == (15, 200_000)
    config, warnings = build(
        transactionTimeOut="1000",
        transactionCheckInterval="500",
        transactionCheckMax="3",
        transactionOpenMax="7",
        rejectTransactionMessage="true",
    )
    assert (config.transaction_timeout_ms, config.transaction_check_interval_ms) == (1000, 500)
    assert (config.transaction_check_max, config.limits.open_transactions_max) == (3, 7)
    assert config.reject_transactions
    assert warnings == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("transactionCheckInterval", "99"),
        ("transactionCheckMax", "0"),
        ("transactionTimeOut", "86400001"),
        ("transactionOpenMax", "0"),
    ],
)
def test_settings_of_transactions_that_cannot_be(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build(**{key: value})


def test_settings_of_reading_and_catching_up() -> None:
    config, warnings = build(
        readCacheBytesMax="0",
        catchUpBytesMax="1",
        snapshotFetchBytesPerSecond="2",
        catchUpBytesPerSecond="3",
    )
    assert (config.read_cache_bytes_max, config.catch_up_bytes_max) == (0, 1)
    assert (config.snapshot_fetch_bytes_per_s, config.catch_up_bytes_per_s) == (2, 3)
    assert warnings == []


def test_times_of_elections_reach_the_log() -> None:
    config, _ = build(
        raftHeartbeatIntervalMs="100",
        raftLeaseMs="500",
        raftElectionTimeoutMinMs="500",
        raftElectionTimeoutMaxMs="600",
        raftTransferTimeoutMs="2000",
        raftSlowDiskMs="50",
    )
    assert config.times == RaftTimes(100, 500, 500, 600, 2000, 50)
    raft = config.raft_config()
    raft.validate()
    found = (raft.heartbeat_interval_ms, raft.lease_ms, raft.transfer_timeout_ms, raft.slow_disk_ms)
    assert found == (100, 500, 2000, 50)
    assert (raft.election_timeout_min_ms, raft.election_timeout_max_ms) == (500, 600)


def test_usual_times_of_elections_are_the_logs_own() -> None:
    config, _ = build()
    usual = RaftConfig(NodeId("n1"), (NodeId("n0"), NodeId("n1"), NodeId("n2")))
    assert config.raft_config() == usual


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        (
            {"raftHeartbeatIntervalMs": "151"},
            "raftHeartbeatIntervalMs=151 must be at most half of raftLeaseMs=300",
        ),
        (
            {"raftLeaseMs": "451"},
            "raftLeaseMs=451 must be at most raftElectionTimeoutMinMs=450",
        ),
        (
            {"raftElectionTimeoutMaxMs": "509"},
            "must be below raftElectionTimeoutMaxMs=509 by at least raftHeartbeatIntervalMs=60",
        ),
        (
            {"raftLeaseMs": "0.3s"},
            "raftLeaseMs=0.3s is not a number from 20 to 10000: it counts ms",
        ),
    ],
)
def test_rules_between_the_times_of_elections(given: dict[str, str], rule: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(**given)
    assert rule.replace("counts ms", "counts milliseconds") in str(refused.value)


def test_what_the_rules_let_pass_the_log_takes_too() -> None:
    for beat, lease, least, most in product((10, 60), (20, 120, 300), (120, 300), (180, 400)):
        times = RaftTimes(beat, lease, least, most)
        values = {
            "raftHeartbeatIntervalMs": str(times.heartbeat_ms),
            "raftLeaseMs": str(times.lease_ms),
            "raftElectionTimeoutMinMs": str(times.election_min_ms),
            "raftElectionTimeoutMaxMs": str(times.election_max_ms),
        }
        reading = read_settings({**IDENTITY, **values}, {})
        if reading.config is not None:
            reading.config.raft_config().validate()
        else:
            assert reading.mistakes


def test_retention_is_rocketmqs_unless_something_else_is_said() -> None:
    config, _ = build()
    rules = config.retention
    assert (rules.reserved_ms, rules.delete_hours, rules.is_any_hour) == (
        72 * 3_600_000,
        frozenset({4}),
        False,
    )
    assert (rules.bytes_max, rules.used_percent_max) == (0, 75)
    assert (rules.forcibly_percent, rules.warning_percent) == (85, 90)


def test_settings_of_retention() -> None:
    config, warnings = build(
        fileReservedTime="48",
        deleteWhen="02;14",
        retentionBytes="1000000",
        diskMaxUsedSpaceRatio="60",
        diskSpaceCleanForciblyRatio="70",
        diskSpaceWarningLevelRatio="80",
    )
    assert warnings == []
    assert config.retention == RetentionRules(
        reserved_ms=48 * 3_600_000,
        delete_hours=frozenset({2, 14}),
        bytes_max=1_000_000,
        used_percent_max=60,
        forcibly_percent=70,
        warning_percent=80,
    )
    at_once, _ = build(fileReservedTime="48", retentionSeconds="90")
    assert (at_once.retention.reserved_ms, at_once.retention.is_any_hour) == (90_000, True)


def test_ratios_are_held_to_rocketmqs_bounds() -> None:
    config, _ = build(
        diskMaxUsedSpaceRatio="100",
        diskSpaceCleanForciblyRatio="99",
        diskSpaceWarningLevelRatio="100",
    )
    rules = config.retention
    assert (rules.used_percent_max, rules.forcibly_percent, rules.warning_percent) == (95, 85, 90)
    low, _ = build(diskSpaceCleanForciblyRatio="0", diskSpaceWarningLevelRatio="0")
    assert (low.retention.forcibly_percent, low.retention.warning_percent) == (30, 35)
    off, _ = build(cleanFileForciblyEnable="false")
    assert off.retention.forcibly_percent == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("fileReservedTime", "0"),
        ("deleteWhen", "25"),
        ("deleteWhen", ";"),
        ("retentionBytes", "1G"),
        ("diskMaxUsedSpaceRatio", "0.75"),
    ],
)
def test_settings_of_retention_that_cannot_be(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        build(**{key: value})


def test_members_whose_ids_have_the_same_number_are_told_apart_by_nobody() -> None:
    assert why_same_follower_id("n1", ["n0", "n1", "n2"]) is None
    reason = why_same_follower_id("b1", ["n0", "n1", "n2"])
    assert reason is not None
    assert reason.startswith(
        "b1 and n1 have the same number in their ids, so both would be broker 2"
    )


@pytest.mark.parametrize(
    ("changes", "listen"),
    [
        ({}, None),
        ({"metricsExporterType": "DISABLE", "metricsPromExporterPort": "1"}, None),
        ({"metricsExporterType": "PROM"}, Address("127.0.0.1", 5557)),
        ({"metricsExporterType": "2", "metricsPromExporterHost": ""}, Address("127.0.0.1", 5557)),
        (
            {
                "metricsExporterType": "prom",
                "metricsPromExporterHost": "10.0.0.2",
                "metricsPromExporterPort": "9100",
            },
            Address("10.0.0.2", 9100),
        ),
    ],
)
def test_figures_are_given_where_it_is_asked_for_and_to_this_machine_only_if_not_told_otherwise(
    changes: dict[str, str], listen: Address | None
) -> None:
    config, warnings = build(**changes)
    assert config.metrics.listen == listen
    told = [line for line in warnings if "everybody who reaches port" in line]
    assert len(told) == (listen is not None and listen.host == "10.0.0.2")


@pytest.mark.parametrize(
    "changes",
    [
        {"metricsExporterType": "OTLP_GRPC"},
        {"metricsExporterType": "PROM", "metricsPromExporterPort": "10911"},
        {"metricsExporterType": "PROM", "metricsPromExporterPort": "20911"},
        {"metricsExporterType": "PROM", "metricsPromExporterPort": "65536"},
        {"metricsOtelCardinalityLimit": "0"},
    ],
)
def test_figures_that_cannot_be_given_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="metrics"):
        build(**changes)


def test_the_trace_topic_is_off_or_has_a_name() -> None:
    assert build(msgTraceTopicName="Traces")[0].trace_topic == ""
    assert build(traceTopicEnable="true")[0].trace_topic == "RMQ_SYS_TRACE_TOPIC"
    named, _ = build(traceTopicEnable="true", msgTraceTopicName="Traces")
    assert named.trace_topic == "Traces"
    assert named.texts["msgTraceTopicName"] == "Traces"
    for wrong in ("no name", "SCHEDULE_TOPIC_XXXX"):
        with pytest.raises(ConfigError, match="msgTraceTopicName"):
            build(msgTraceTopicName=wrong)
