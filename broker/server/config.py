"""The settings of a broker: from broker.conf and the command line, checked before anything starts.

A RocketMQ broker.conf is read as it is: keys that mean nothing here give one warning each; unknown keys, wrong
values, values that contradict each other or ask for what this broker does not do are refused, all at once
(docs/broker-conf.md lists every key; the table is broker/server/settings). The command line beats the file.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from broker.server.settings.lone_node import complete, names_members
from broker.server.settings.raft_times import RaftTimes, contradicting_times, read_times
from broker.server.settings.reading import HIDDEN, Given, Setting, list_settings
from broker.server.settings.table import BROKER_KEYS
from broker.server.settings.values import ReadKey, Values
from broker.service.retention import (
    FORCIBLY_PERCENTS,
    RESERVED_HOURS,
    ROUND_MS,
    WARNING_PERCENTS,
    RetentionRules,
    parse_delete_hours,
)
from broker.service.timers import DELAY_MAX_SEC_DEFAULT
from broker.settings.judging import join_mistakes, judge
from broker.settings.keys import ANY_HOSTS
from broker.settings.tls import TlsMode, TlsSettings, read_peer_tls, read_tls
from broker.store.reading import GetLimits
from broker.store.schedule import DELAY_LEVELS_TEXT, parse_delay_levels
from dledger import ConfigError, LogConfig, MemberTls, NodeId, Peer, RaftConfig, parse_peers
from dledger.config import is_loopback, voters_of
from dledger_mq.message.names import TRACE_TOPIC, send_problem, topic_problem
from dledger_mq.net.address import Address

STOP_FORWARD_S: Final = 35
"""RocketMQ's clients ask for routes every 30 s."""

METRICS_PORT: Final = 5557
"""RocketMQ's port for figures."""

MEMORY_PERCENT: Final = 40
"""RocketMQ's share of memory for the end of the log."""

TRANSFER_COUNT_MAX: Final = 1024
"""Messages in one answer, whatever a client asks for."""

TRANSFER_BYTES_MAX: Final = 8 << 20
"""Half of the largest frame that clients take."""

STOP_FORWARD_S_MAX: Final = 50
"""For a minute after a hand-over the new leader does not give the lead back to who may be about to stop."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a broker holds in memory; over each the answer is the protocol's own busy code.

    Attributes:
        connections_max: client connections; more are closed at once.
        staged_messages_max, staged_bytes_max: sends that wait for their commit; over it code 2.
        held_pulls_max: pulls that wait for a message; more are answered at once with 19.
        output_bytes_max: unsent answers of one connection; a reader that is slower is cut. Of all: four times as many.
        frame_bytes_max: one request frame.
        unfinished_bytes_max: request frames of all connections that have begun and not ended; more
            wait, and are not read on.
        forwards_max: requests of clients that wait for an answer of the leader.
        open_transactions_max: half messages without an end; more are refused with code 2.
        requests_max: requests that wait for something else (a commit, a leader, a read point).
    """

    connections_max: int = 10_000
    staged_messages_max: int = 10_000
    staged_bytes_max: int = 24 * 1024 * 1024
    held_pulls_max: int = 100_000
    output_bytes_max: int = 64 * 1024 * 1024
    frame_bytes_max: int = 16 * 1024 * 1024
    unfinished_bytes_max: int = 64 * 1024 * 1024
    forwards_max: int = 10_000
    requests_max: int = 20_000
    open_transactions_max: int = 200_000


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The place where figures are given, and their number.

    Attributes:
        listen: the address of the HTTP port; None: there is none. Port 0 picks a free one.
        series_max: series of one figure.
    """

    listen: Address | None = None
    series_max: int = 50_000


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One broker node. Times in milliseconds.

    Attributes:
        group: name of the Raft group; also the broker name unless `broker_name` says otherwise.
        broker_name: what clients see in routes; equal on all nodes of the group.
        listen: where clients connect; port 0 picks a free one (tests).
        advertised_host: the address that clients get in routes.
        transaction_check_interval_ms: between two checks of an open transaction.
        transaction_timeout_ms: age of a half message at its first check, unless it asks for more.
        transaction_check_max: checks before an open transaction is given up.
        delay_levels_ms: delay of level 1, 2, ... .
        joins: whether the group exists, and this node waits to be added to it.
        recognise_repeats: whether a send that was stored before, and whose answer was lost, is answered
            with the earlier result instead of being stored again.
        timers, timer_delay_max_ms: whether messages may have due times, and how far ahead.
        recall: whether such messages can be taken back.
        stop_forward_s: for so long after it has led, a node that is to stop goes on for clients that have not learnt
            of the new leader; 0: not at all.
        slave_reads: whether clients that read far behind the log's end are sent to followers.
        reads: how much one pull or pop is given at most, and how far behind the log's end records count as in memory.
        unchangeable: keys that tools may not change while it runs.
        texts: every key that was read, as text; without secrets.
        times: of heartbeats, lease and elections.
        vip_port: whether listen port - 2 is served too, which the dashboard dials, and tools and clients that are told
            to; None: unless a member of the group has it, or anything else does.
        retention: what is deleted when.
        metrics: figures over HTTP.
        tls: of the port for clients, and of connections that this node opens there.
        secret_file: holds `secret`, and is looked after; None: it stands in broker.conf, or there is none.
        acl_file: where accounts and their rights stand; None: everybody may do everything.
    """

    group: str
    node_id: str
    peers: tuple[Peer, ...]
    store_path: str
    broker_name: str
    cluster: str = "DefaultCluster"
    joins: bool = False
    listen: Address = Address("127.0.0.1", 10911)
    advertised_host: str = "127.0.0.1"
    namesrvs: tuple[Address, ...] = ()
    preferred_leaders: tuple[str, ...] = ()
    secret: str | None = field(default=None, repr=False)
    secret_file: str | None = None
    fsync: bool = True
    segment_size_bytes: int = 256 * 1024 * 1024
    snapshot_log_bytes: int = 256 * 1024 * 1024
    scrub_bytes_per_s: int = 4 * 1024 * 1024
    read_cache_bytes_max: int = 32 * 1024 * 1024
    catch_up_bytes_max: int = 1024 * 1024 * 1024
    catch_up_bytes_per_s: int = 64 * 1024 * 1024
    snapshot_fetch_bytes_per_s: int = 32 * 1024 * 1024
    message_bytes_max: int = 4 * 1024 * 1024
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    default_topic_queues: int = 8
    trace_topic: str = ""
    delay_levels_ms: tuple[int, ...] = ()
    timers: bool = True
    timer_delay_max_ms: int = DELAY_MAX_SEC_DEFAULT * 1000
    recall: bool = True
    permission: int = 6
    long_polling: bool = True
    property_filters: bool = True
    reject_transactions: bool = False
    transaction_check_interval_ms: int = 30_000
    transaction_timeout_ms: int = 6_000
    transaction_check_max: int = 15
    region: str = "DefaultRegion"
    trace_on: bool = True
    register_interval_ms: int = 30_000
    recognise_repeats: bool = True
    slave_reads: bool = True
    reads: GetLimits = GetLimits()
    vip_port: bool | None = None
    stop_forward_s: int = STOP_FORWARD_S
    times: RaftTimes = field(default_factory=RaftTimes)
    retention: RetentionRules = RetentionRules()
    acl_file: str | None = None
    limits: Limits = field(default_factory=Limits)
    metrics: MetricsSettings = MetricsSettings()
    tls: TlsSettings = field(default_factory=TlsSettings)
    unchangeable: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def stand_in(cls) -> BrokerConfig:
        """Return settings of no broker, to read single values into."""
        return cls("", "n0", (Peer(NodeId("n0"), "127.0.0.1", 0),), "", "")

    @property
    def own_peer(self) -> Peer:
        """The entry of this node in the list of members."""
        return _own_peer(self.node_id, self.peers)

    def raft_config(self) -> RaftConfig:
        """Return the settings of the consensus core."""
        return RaftConfig(
            node_id=NodeId(self.node_id),
            voters=voters_of(self.peers, NodeId(self.node_id), joins=self.joins),
            preferred_leaders=tuple(NodeId(node) for node in self.preferred_leaders),
            heartbeat_interval_ms=self.times.heartbeat_ms,
            lease_ms=self.times.lease_ms,
            election_timeout_min_ms=self.times.election_min_ms,
            election_timeout_max_ms=self.times.election_max_ms,
            transfer_timeout_ms=self.times.transfer_ms,
            slow_disk_ms=self.times.slow_disk_ms,
            joins=self.joins,
        )

    @property
    def broker_id_as_follower(self) -> int:
        """The stable id of this node in routes while it follows."""
        return follower_id(self.node_id)


@dataclass(frozen=True, slots=True)
class Reading:
    """The outcome of reading a broker.conf and a command line.

    Attributes:
        config: the settings as they would hold; None: there are mistakes.
        mistakes: all of them, each with its line.
        warnings: settings that are not used, are passed over or risk something.
        passed_over: keys that `is_lenient` goes on without.
        settings: every key that is read or given, with its value and where that comes from.
        asked: the keys that were read, with their defaults and ranges.
    """

    config: BrokerConfig | None
    mistakes: tuple[str, ...]
    warnings: tuple[str, ...]
    passed_over: tuple[str, ...]
    settings: tuple[Setting, ...]
    asked: Mapping[str, ReadKey]


def read_config(
    file_values: Mapping[str, str], flags: Mapping[str, str]
) -> tuple[BrokerConfig, list[str]]:
    """Build the configuration from a broker.conf and the command line.

    Args:
        file_values: keys and values of broker.conf.
        flags: the same keys, given on the command line; they win. `secret` is one of them.

    Returns:
        The configuration and one warning for each key that is not used.

    Raises:
        ConfigError: something is missing, malformed, contradictory or not supported; names the keys.
    """
    reading = read_settings(file_values, flags)
    if reading.config is None:
        raise ConfigError(join_mistakes(reading.mistakes, None))
    return reading.config, list(reading.warnings)


def read_settings(
    file_values: Mapping[str, str],
    flags: Mapping[str, str],
    *,
    lines: Mapping[str, int] | None = None,
    is_lenient: bool = False,
) -> Reading:
    """Read a broker.conf and the command line to the end, whatever is wrong with them.

    Args:
        file_values: keys and values of broker.conf.
        flags: the same keys, given on the command line; they win. `secret` is one of them.
        lines: where in the file the keys stand.
        is_lenient: go on without keys that are unknown, and with the default for values that are wrong; not where
            that could let in, lose or show more than was asked for.
    """
    plain = {**file_values, **flags}
    added = complete(plain, os.environ.get("HOME", ""))
    given = Given(file_values, flags, added, lines or {})
    mistakes, notes = judge(plain, BROKER_KEYS)
    values = Values({**added, **plain})
    config = read_parts(_read_identity(values, names_members(plain)), values)
    mistakes = sorted([*mistakes, *values.mistakes], key=given.place)
    forgiven = [each for each in mistakes if is_lenient and each.is_forgivable]
    wrong = [given.placed(each) for each in mistakes if each not in forgiven]
    wrong = wrong or _contradictions(config) or _problems_of_log(config)
    passed_over = [f"passed over: {given.placed(each)}" for each in forgiven]
    unused = [f"{key} is not used: {why}" for key, why in notes]
    settings = list_settings(given.without(forgiven), values.asked, notes)
    texts = {each.key: each.value for each in settings if each.key in values.asked}
    shown = {key: text for key, text in texts.items() if key not in HIDDEN}
    return Reading(
        config=None if wrong else replace(config, texts=shown),
        mistakes=tuple(wrong),
        warnings=(*_lone(config, added), *passed_over, *unused, *_risks(config)),
        passed_over=tuple(each.key for each in forgiven),
        settings=settings,
        asked=values.asked,
    )


def read_parts(config: BrokerConfig, values: Values) -> BrokerConfig:
    """Read everything that does not say who the node is; mistakes are in `values`."""
    for read_part in (_with_log, _with_retention, _with_topics, _with_transactions, _with_service):
        config = read_part(config, values)
    return config


def _read_identity(values: Values, names_its_members: bool) -> BrokerConfig:
    """Return who this node is and where it is reached; everything else has its default still.

    After a mistake this is a stand-in, with which only the other mistakes are looked for.
    """
    if not values.boolean("enableDLegerCommitLog", default=names_its_members) and names_its_members:
        values.refuse(
            "enableDLegerCommitLog",
            "enableDLegerCommitLog=false: every node is a member of a Raft group here; remove the line",
        )
    group, node_id = values.text("dLegerGroup"), values.text("dLegerSelfId")
    peers = _read_peers(values, node_id)
    own_host = _own_peer(node_id, peers).host
    listen_host = values.text("bindAddress", values.text("brokerIP1", own_host))
    preferred = values.text("preferredLeaderId", "")
    _check_copies(values, len(peers))
    return BrokerConfig(
        group=group,
        node_id=node_id,
        peers=peers,
        store_path=values.text("storePathRootDir"),
        broker_name=values.text("brokerName", group),
        cluster=values.text("brokerClusterName", "DefaultCluster"),
        listen=Address(listen_host, values.number("listenPort", 10911, high=65535)),
        advertised_host=values.text(
            "brokerIP1", own_host if listen_host in ANY_HOSTS else listen_host
        ),
        namesrvs=_read_namesrvs(values),
        preferred_leaders=tuple(
            filter(None, map(str.strip, preferred.replace(",", ";").split(";")))
        ),
        secret=values.text("secret", "") or None,
        times=read_times(values),
        joins=values.boolean("raftJoin", default=False),
        acl_file=_read_acl_file(values),
    )


def _read_acl_file(values: Values) -> str | None:
    """Read where accounts stand; the name is read in any case, so that a wrong one is found early."""
    file = values.text("aclFile", "plain_acl.yml")
    return file if values.boolean("aclEnable", default=False) else None


def _read_peers(values: Values, node_id: str) -> tuple[Peer, ...]:
    """Read the members; after a mistake, this node alone."""
    text = values.text("dLegerPeers")
    stand_in = (Peer(NodeId(node_id), "127.0.0.1", 0),)
    if not text:
        return stand_in
    try:
        peers = parse_peers(text)
        _own_peer(node_id, peers)
    except ConfigError as error:
        if node_id:  # a missing one is a mistake already
            values.refuse("dLegerPeers", str(error))
        return stand_in
    return peers


def _read_namesrvs(values: Values) -> tuple[Address, ...]:
    try:
        return parse_addresses("namesrvAddr", values.text("namesrvAddr", ""))
    except ConfigError as error:
        values.refuse("namesrvAddr", str(error))
        return ()


def _check_copies(values: Values, member_count: int) -> None:
    """Refuse to promise more copies of an acknowledged send than a majority of the members."""
    majority = member_count // 2 + 1
    for key in ("inSyncReplicas", "minInSyncReplicas"):
        wanted = values.number(key, 1, low=1, high=100)
        if wanted > majority:
            values.refuse(
                key,
                f"{key}={wanted}: an acknowledged send is on a majority of the members, which is {majority} of "
                f"{member_count}; name more members in dLegerPeers",
            )


def _with_log(config: BrokerConfig, values: Values) -> BrokerConfig:
    """Add the settings of the log: what is durable when, and the sizes on disk."""
    flush = values.choice("flushDiskType", ("SYNC_FLUSH", "ASYNC_FLUSH"), "SYNC_FLUSH")
    return replace(
        config,
        fsync=flush == "SYNC_FLUSH",
        segment_size_bytes=values.number(
            "mappedFileSizeCommitLog", 256 * 1024 * 1024, low=1024 * 1024, high=2**40
        ),
        snapshot_log_bytes=values.number("snapshotLogBytes", 256 * 1024 * 1024, low=0, high=2**40),
        scrub_bytes_per_s=values.number("scrubBytesPerSecond", 4 * 1024 * 1024, low=0, high=2**30),
        read_cache_bytes_max=values.number(
            "readCacheBytesMax", 32 * 1024 * 1024, low=0, high=2**36
        ),
        catch_up_bytes_max=values.number("catchUpBytesMax", 1024 * 1024 * 1024, low=0, high=2**44),
        catch_up_bytes_per_s=values.number(
            "catchUpBytesPerSecond", 64 * 1024 * 1024, low=0, high=2**36
        ),
        snapshot_fetch_bytes_per_s=values.number(
            "snapshotFetchBytesPerSecond", 32 * 1024 * 1024, low=0, high=2**36
        ),
        message_bytes_max=values.number(
            "maxMessageSize", 4 * 1024 * 1024, low=1, high=12 * 1024 * 1024
        ),
    )


def _with_retention(config: BrokerConfig, values: Values) -> BrokerConfig:
    """Add what is deleted when; ratios are held to the bounds to which RocketMQ holds them."""
    reserved_h = values.number("fileReservedTime", RESERVED_HOURS, low=1, high=100 * 366 * 24)
    seconds = values.number("retentionSeconds", 0, high=100 * 366 * 86_400)
    try:
        delete_hours = parse_delete_hours(values.text("deleteWhen", "04"))
    except ValueError as error:
        values.refuse("deleteWhen", f"deleteWhen: {error}")
        delete_hours = frozenset()
    is_forcible = values.boolean("cleanFileForciblyEnable", default=True)
    forcibly = values.number("diskSpaceCleanForciblyRatio", FORCIBLY_PERCENTS[1], high=100)
    warning = values.number("diskSpaceWarningLevelRatio", WARNING_PERCENTS[1], high=100)
    return replace(
        config,
        retention=RetentionRules(
            reserved_ms=1000 * seconds or 3_600_000 * reserved_h,
            delete_hours=delete_hours,
            is_any_hour=seconds > 0,
            bytes_max=values.number("retentionBytes", 0),
            used_percent_max=_held(values.number("diskMaxUsedSpaceRatio", 75, high=100), (10, 95)),
            forcibly_percent=_held(forcibly, FORCIBLY_PERCENTS) if is_forcible else 0,
            warning_percent=_held(warning, WARNING_PERCENTS),
            round_ms=values.number("cleanResourceInterval", ROUND_MS, low=100, high=3_600_000),
        ),
    )


def _held(number: int, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return max(low, min(number, high))


def _with_topics(config: BrokerConfig, values: Values) -> BrokerConfig:
    """Add the settings of topics, groups and due times."""
    return replace(
        config,
        auto_create_topics=values.boolean("autoCreateTopicEnable", default=True),
        auto_create_groups=values.boolean("autoCreateSubscriptionGroup", default=True),
        default_topic_queues=values.number("defaultTopicQueueNums", 8, low=1, high=1024),
        trace_topic=_read_trace_topic(values),
        delay_levels_ms=_read_delay_levels(values),
        timers=values.boolean("timerWheelEnable", default=True),
        timer_delay_max_ms=1000
        * values.number("timerMaxDelaySec", DELAY_MAX_SEC_DEFAULT, low=1, high=10 * 366 * 86_400),
        recall=values.boolean("recallMessageEnable", default=True),
        recognise_repeats=values.boolean("recognizeRepeatedSends", default=True),
    )


def _read_trace_topic(values: Values) -> str:
    """Return the name of the trace topic; empty: there is none."""
    name = values.text("msgTraceTopicName", TRACE_TOPIC)
    if problem := topic_problem(name) or send_problem(name):
        values.refuse("msgTraceTopicName", f"msgTraceTopicName={name}: {problem}")
    return name if values.boolean("traceTopicEnable", default=False) else ""


def _with_transactions(config: BrokerConfig, values: Values) -> BrokerConfig:
    """Add the settings of transactions; intervals and timeouts in milliseconds."""
    return replace(
        config,
        reject_transactions=values.boolean("rejectTransactionMessage", default=False),
        transaction_check_interval_ms=values.number(
            "transactionCheckInterval", 30_000, low=100, high=86_400_000
        ),
        transaction_timeout_ms=values.number("transactionTimeOut", 6_000, high=86_400_000),
        transaction_check_max=values.number("transactionCheckMax", 15, low=1, high=1_000_000),
    )


def _read_bounds(values: Values) -> GetLimits:
    """Return how much one read is given, by RocketMQ's names; a client gets no more than it asks for."""
    usual = GetLimits()

    def messages(key: str, default: int) -> int:
        return values.number(key, default, low=1, high=TRANSFER_COUNT_MAX)

    def size_bytes(key: str, default: int) -> int:
        return values.number(key, default, low=1, high=TRANSFER_BYTES_MAX)

    return GetLimits(
        count_max_in_memory=messages(
            "maxTransferCountOnMessageInMemory", usual.count_max_in_memory
        ),
        bytes_max_in_memory=size_bytes(
            "maxTransferBytesOnMessageInMemory", usual.bytes_max_in_memory
        ),
        count_max_on_disk=messages("maxTransferCountOnMessageInDisk", usual.count_max_on_disk),
        bytes_max_on_disk=size_bytes("maxTransferBytesOnMessageInDisk", usual.bytes_max_on_disk),
        memory_span_bytes=_memory_bytes()
        * values.number("accessMessageInMemoryMaxRatio", MEMORY_PERCENT, high=100)
        // 100,
    )


def _with_service(config: BrokerConfig, values: Values) -> BrokerConfig:
    """Add how the node serves clients and registers with name servers, and its limits."""
    return replace(
        config,
        permission=values.number("brokerPermission", 6, high=7),
        long_polling=values.boolean("longPollingEnable", default=True),
        property_filters=values.boolean("enablePropertyFilter", default=True),
        slave_reads=values.boolean("slaveReadEnable", default=True),
        reads=_read_bounds(values),
        region=values.text("regionId", "DefaultRegion"),
        trace_on=values.boolean("traceOn", default=True),
        register_interval_ms=values.number(
            "registerNameServerPeriod", 30_000, low=10_000, high=60_000
        ),
        vip_port=_VIP_PORT[values.choice("vipListenEnable", tuple(_VIP_PORT), "auto")],
        stop_forward_s=values.number("stopForwardSec", STOP_FORWARD_S, high=STOP_FORWARD_S_MAX),
        unchangeable=tuple(
            key.strip()
            for key in values.text("configBlackList", "configBlackList;brokerConfigPath").split(";")
            if key.strip()
        ),
        limits=_read_limits(values),
        metrics=_read_metrics(values),
        tls=read_peer_tls(values, read_tls(values)),
    )


def _read_metrics(values: Values) -> MetricsSettings:
    """Read where figures are given; nobody but this machine gets them unless a host is named."""
    kind = values.choice("metricsExporterType", ("DISABLE", "PROM", "0", "2"), "DISABLE")
    host = values.text("metricsPromExporterHost", "127.0.0.1")
    port = values.number("metricsPromExporterPort", METRICS_PORT, high=65535)
    series_max = values.number("metricsOtelCardinalityLimit", 50_000, low=1, high=10_000_000)
    return MetricsSettings(Address(host, port) if kind in ("PROM", "2") else None, series_max)


def _read_limits(values: Values) -> Limits:
    """Read the bounds on memory; a key that is missing keeps the default of `Limits`, whose fields give the reasons."""
    usual = Limits()
    return Limits(
        connections_max=values.number("connectionsMax", usual.connections_max, low=1),
        staged_messages_max=values.number(
            "sendThreadPoolQueueCapacity", usual.staged_messages_max, low=1
        ),
        staged_bytes_max=values.number(
            "stagedBytesMax", usual.staged_bytes_max, low=1024, high=48 * 1024 * 1024
        ),
        held_pulls_max=values.number("pullThreadPoolQueueCapacity", usual.held_pulls_max, low=1),
        open_transactions_max=values.number(
            "transactionOpenMax", usual.open_transactions_max, low=1, high=10_000_000
        ),
        output_bytes_max=values.number("outputBytesMax", usual.output_bytes_max, low=64 * 1024),
        unfinished_bytes_max=values.number(
            "unfinishedFramesBytesMax",
            usual.unfinished_bytes_max,
            low=2 * usual.frame_bytes_max,
        ),
    )


def _risks(config: BrokerConfig) -> list[str]:
    """Return what may be meant so, and may be a mistake: members may have been added since the peers were written."""
    names = [peer.node_id for peer in config.peers]
    found = [
        f"preferredLeaderId={node} is not among the members {', '.join(names)} of dLegerPeers: it leads once it is "
        "added and votes"
        for node in config.preferred_leaders
        if node not in names
    ]
    figures = config.metrics.listen
    if figures is not None and not is_loopback(figures.host):
        found.append(
            f"metricsPromExporterHost={figures.host}: everybody who reaches port {figures.port} can read the figures, "
            "with the names of topics and groups; nobody is asked who he is"
        )
    if not config.fsync:
        found.append(
            "flushDiskType=ASYNC_FLUSH: sends are acknowledged before fsync; a power cut on a majority of "
            "the nodes may lose acknowledged messages"
        )
    tls = config.tls
    shows_certificates = tls.mode is TlsMode.ENFORCING and tls.client_auth is ssl.CERT_REQUIRED
    if config.acl_file is None and not shows_certificates and not is_loopback(config.listen.host):
        found.append(
            f"EVERYBODY who reaches {config.listen} can read, send and delete messages of all topics, move the offsets "
            "of all groups, delete topics and groups, and change settings: access control is off (aclEnable), and "
            "clients need no certificate (tls.server.mode=enforcing with tls.server.need.client.auth=require)"
        )
    return found


_VIP_PORT: Final[dict[str, bool | None]] = {"true": True, "false": False, "auto": None}


def _contradictions(config: BrokerConfig) -> list[str]:
    """Return the values that contradict each other."""
    found: list[str] = []
    own = config.own_peer
    if config.listen.port == own.port and config.listen.port != 0:
        found.append(
            f"listenPort={config.listen.port} is also the port of {own} in dLegerPeers: clients and members need two"
        )
    figures = config.metrics.listen
    if figures is not None and figures.port and figures.port in (config.listen.port, own.port):
        found.append(
            f"metricsPromExporterPort={figures.port} is also the port of clients or members: they need their own"
        )
    if config.vip_port and config.listen.port and config.listen.port - 2 == own.port:
        found.append(
            f"vipListenEnable=true needs port {own.port} (listenPort - 2), which is the one of {own} in dLegerPeers"
        )
    if config.tls.mode is TlsMode.ENFORCING and not config.tls.dials:
        found.append(
            "tls.enable=false: with tls.server.mode=enforcing the nodes of this group take nothing else from each other"
        )
    if config.acl_file is not None and config.secret is None and len(config.peers) > 1:
        found.append(
            "aclEnable=true needs the group's secret (--secret-file): without one whoever reaches a port can speak as "
            "a member, and pass requests on that nobody has checked"
        )
    return found + contradicting_times(config.times)


def _problems_of_log(config: BrokerConfig) -> list[str]:
    """Return what the log itself refuses, and would refuse at the start: names and counts."""
    try:
        log = LogConfig(
            group=config.group,
            peers=config.peers,
            store_path=config.store_path,
            raft=config.raft_config(),
            secret=config.secret,
            tls=_tls_to_check(config),
        )
        log.validate()
    except ConfigError as error:
        return [str(error)]
    return []


def _tls_to_check(config: BrokerConfig) -> MemberTls | None:
    """Return what members are to take from each other, without its certificates: nothing is connected with it."""
    mode = config.tls.peer_mode
    if mode is TlsMode.DISABLED:
        return None
    return MemberTls(
        _no_certificate, _no_certificate, takes_plain_text=mode is not TlsMode.ENFORCING
    )


def _no_certificate() -> ssl.SSLContext:
    raise AssertionError("settings are only checked with it")


def _lone(config: BrokerConfig, added: Mapping[str, str]) -> list[str]:
    """Say what a file without members was taken for."""
    if not added:
        return []
    notice = (
        f"no members are named (dLegerPeers): this is a group of one node, {config.group}, whose messages are on no "
        f"other machine. It is {config.own_peer}, its store is {config.store_path}, and clients reach it at "
        f"{config.listen} (brokerIP1, bindAddress and listenPort say otherwise)"
    )
    return [notice]


def _own_peer(node_id: str, peers: tuple[Peer, ...]) -> Peer:
    for peer in peers:
        if peer.node_id == node_id:
            return peer
    names = ", ".join(peer.node_id for peer in peers)
    raise ConfigError(f"--id {node_id} is not among the members {names} (dLegerPeers)")


def follower_id(node_id: str) -> int:
    """Return the stable id of a follower in routes: the number in its node id + 1, as DLedger does."""
    digits = "".join(re.findall("[0-9]", node_id))
    return (int(digits) if digits else 0) + 1


def why_same_follower_id(node_id: str, members: Iterable[str]) -> str | None:
    """Return why a node cannot be a member beside others, which clients would take for it; None: it can."""
    own = follower_id(node_id)
    same = [name for name in members if name != node_id and follower_id(name) == own]
    if not same:
        return None
    return (
        f"{node_id} and {same[0]} have the same number in their ids, so both would be broker {own} in routes while "
        "they follow, and only one would be found: give the new one an id with another number"
    )


def _memory_bytes() -> int:
    """Return the size of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def parse_addresses(key: str, text: str) -> tuple[Address, ...]:
    """Read `host:port;host:port` (`,` works too).

    Raises:
        ConfigError: an item is not host:port; names the key.
    """
    found: list[Address] = []
    for item in text.replace(",", ";").split(";"):
        plain = item.strip().removeprefix("http://")
        if not plain:
            continue
        host, colon, port = plain.rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536
        if not (host and colon and is_port):
            raise ConfigError(
                f"{key}: {item.strip()!r} is not host:port (for example 127.0.0.1:9876)"
            )
        found.append(Address(host, int(port)))
    return tuple(dict.fromkeys(found))


def _read_delay_levels(values: Values) -> tuple[int, ...]:
    try:
        return tuple(parse_delay_levels(values.text("messageDelayLevel", DELAY_LEVELS_TEXT)))
    except ValueError as error:
        values.refuse("messageDelayLevel", f"messageDelayLevel: {error}")
        return ()
