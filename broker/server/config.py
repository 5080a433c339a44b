"""The settings of a broker: from broker.conf and the command line, checked before anything starts.

A RocketMQ broker.conf is read as it is: keys that mean nothing here give one warning each, values
that contradict each other or ask for what this broker does not do are refused with a sentence
(docs/configuration.md lists every key). The command line beats the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from broker.service.timers import DELAY_MAX_SEC_DEFAULT
from broker.store.schedule import DELAY_LEVELS_TEXT, parse_delay_levels
from dledger import ConfigError, Peer, parse_peers
from dledger_mq.net.address import Address

STOP_FORWARD_S: Final = 35
"""RocketMQ's clients ask for routes every 30 s."""

MEMORY_PERCENT: Final = 40
"""RocketMQ's share of memory for the end of the log."""

STOP_FORWARD_S_MAX: Final = 50
"""For a minute after a hand-over the new leader does not give the lead back to who may be about to stop."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what a broker holds in memory; over each the answer is the protocol's own busy code.

    Attributes:
        connections_max: client connections; more are closed at once.
        staged_messages_max, staged_bytes_max: sends that wait for their commit; over it code 2.
        held_pulls_max: pulls that wait for a message; more are answered at once with 19.
        output_bytes_max: unsent answers of one connection; a reader that is slower is cut.
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
        recognise_repeats: whether a send that was stored before, and whose answer was lost, is answered
            with the earlier result instead of being stored again.
        timers, timer_delay_max_ms: whether messages may have due times, and how far ahead.
        recall: whether such messages can be taken back.
        stop_forward_s: for so long after it has led, a node that is to stop goes on for clients that have not learnt
            of the new leader; 0: not at all.
        slave_reads: whether clients that read far behind the log's end are sent to followers.
        memory_span_bytes: records at most this far behind the log's end count as in memory.
        vip_port: whether listen port - 2 is served too (clients of 4.3 and 4.4 send there).
    """

    group: str
    node_id: str
    peers: tuple[Peer, ...]
    store_path: str
    broker_name: str
    cluster: str = "DefaultCluster"
    listen: Address = Address("127.0.0.1", 10911)
    advertised_host: str = "127.0.0.1"
    namesrvs: tuple[Address, ...] = ()
    preferred_leaders: tuple[str, ...] = ()
    secret: str | None = None
    fsync: bool = True
    segment_size_bytes: int = 256 * 1024 * 1024
    snapshot_log_bytes: int = 256 * 1024 * 1024
    scrub_bytes_per_s: int = 4 * 1024 * 1024
    message_bytes_max: int = 4 * 1024 * 1024
    auto_create_topics: bool = True
    auto_create_groups: bool = True
    default_topic_queues: int = 8
    delay_levels_ms: tuple[int, ...] = ()
    timers: bool = True
    timer_delay_max_ms: int = DELAY_MAX_SEC_DEFAULT * 1000
    recall: bool = True
    permission: int = 6
    long_polling: bool = True
    reject_transactions: bool = False
    transaction_check_interval_ms: int = 30_000
    transaction_timeout_ms: int = 6_000
    transaction_check_max: int = 15
    region: str = "DefaultRegion"
    trace_on: bool = True
    register_interval_ms: int = 30_000
    recognise_repeats: bool = True
    slave_reads: bool = True
    memory_span_bytes: int = 8 << 30
    vip_port: bool = False
    stop_forward_s: int = STOP_FORWARD_S
    limits: Limits = field(default_factory=Limits)

    @property
    def own_peer(self) -> Peer:
        """The entry of this node in the list of members."""
        return _own_peer(self.node_id, self.peers)

    @property
    def broker_id_as_follower(self) -> int:
        """The stable id of this node in routes while it follows."""
        return self.follower_ids[self.node_id]

    @property
    def follower_ids(self) -> dict[str, int]:
        """The stable ids of followers in routes, by node id: the number in that + 1, as DLedger does."""
        return {str(peer.node_id): _follower_id(str(peer.node_id)) for peer in self.peers}


_NUMBER = re.compile("-?[0-9]{1,20}")
_ANY_HOST = ("0.0.0.0", "::")  # noqa: S104  compared with, not bound to

# Key of broker.conf -> what to call it on the command line.
_IDENTITY_KEYS = {
    "dLegerGroup": "--group",
    "dLegerSelfId": "--id",
    "dLegerPeers": "--peers",
    "storePathRootDir": "--store",
}

# Understood by RocketMQ, without meaning here: where our own way makes the setting needless.
_NEEDLESS = {
    "deleteWhen": "nothing is deleted yet, see docs/guarantees.md",
    "fileReservedTime": "nothing is deleted yet, see docs/guarantees.md",
    "brokerId": "the leader is id 0, a follower the number in its id + 1",
    "storePathCommitLog": "the log stands under storePathRootDir",
    "haListenPort": "members replicate over the ports in dLegerPeers",
}


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
        ConfigError: something is missing, malformed, contradictory or not supported; names the key.
    """
    values = _Values({**file_values, **flags})
    _refuse_unsupported(values)
    config = _read_identity(values)
    config = _with_log(config, values)
    config = _with_topics(config, values)
    config = _with_transactions(config, values)
    config = _with_service(config, values)
    _check(config)
    return config, [*values.warnings(), *_risks(config)]


def _read_identity(values: _Values) -> BrokerConfig:
    """Return who this node is and where it is reached; everything else has its default still."""
    group = values.text("dLegerGroup")
    node_id = values.text("dLegerSelfId")
    peers = parse_peers(values.text("dLegerPeers"))
    own_host = _own_peer(node_id, peers).host
    listen_host = values.text("bindAddress", values.text("brokerIP1", own_host))
    preferred = values.text("preferredLeaderId", "")
    return BrokerConfig(
        group=group,
        node_id=node_id,
        peers=peers,
        store_path=values.text("storePathRootDir"),
        broker_name=values.text("brokerName", group),
        cluster=values.text("brokerClusterName", "DefaultCluster"),
        listen=Address(listen_host, values.number("listenPort", 10911, high=65535)),
        advertised_host=values.text(
            "brokerIP1", own_host if listen_host in _ANY_HOST else listen_host
        ),
        namesrvs=parse_addresses("namesrvAddr", values.text("namesrvAddr", "")),
        preferred_leaders=tuple(preferred.replace(",", ";").split(";")) if preferred else (),
        secret=values.text("secret", "") or None,
    )


def _with_log(config: BrokerConfig, values: _Values) -> BrokerConfig:
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
        message_bytes_max=values.number(
            "maxMessageSize", 4 * 1024 * 1024, low=1, high=12 * 1024 * 1024
        ),
    )


def _with_topics(config: BrokerConfig, values: _Values) -> BrokerConfig:
    """Add the settings of topics, groups and due times."""
    return replace(
        config,
        auto_create_topics=values.boolean("autoCreateTopicEnable", default=True),
        auto_create_groups=values.boolean("autoCreateSubscriptionGroup", default=True),
        default_topic_queues=values.number("defaultTopicQueueNums", 8, low=1, high=1024),
        delay_levels_ms=_delay_levels(values.text("messageDelayLevel", DELAY_LEVELS_TEXT)),
        timers=values.boolean("timerWheelEnable", default=True),
        timer_delay_max_ms=1000
        * values.number("timerMaxDelaySec", DELAY_MAX_SEC_DEFAULT, low=1, high=10 * 366 * 86_400),
        recall=values.boolean("recallMessageEnable", default=True),
        recognise_repeats=values.boolean("recognizeRepeatedSends", default=True),
    )


def _with_transactions(config: BrokerConfig, values: _Values) -> BrokerConfig:
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


def _with_service(config: BrokerConfig, values: _Values) -> BrokerConfig:
    """Add how the node serves clients and registers with name servers, and its limits."""
    return replace(
        config,
        permission=values.number("brokerPermission", 6, high=7),
        long_polling=values.boolean("longPollingEnable", default=True),
        slave_reads=values.boolean("slaveReadEnable", default=True),
        memory_span_bytes=_memory_bytes()
        * values.number("accessMessageInMemoryMaxRatio", MEMORY_PERCENT, high=100)
        // 100,
        region=values.text("regionId", "DefaultRegion"),
        trace_on=values.boolean("traceOn", default=True),
        register_interval_ms=values.number(
            "registerNameServerPeriod", 30_000, low=10_000, high=60_000
        ),
        vip_port=values.boolean("vipListenEnable", default=False),
        stop_forward_s=values.number("stopForwardSec", STOP_FORWARD_S, high=STOP_FORWARD_S_MAX),
        limits=_read_limits(values),
    )


def _read_limits(values: _Values) -> Limits:
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
    if config.fsync:
        return []
    risk = (
        "flushDiskType=ASYNC_FLUSH: sends are acknowledged before fsync; a power cut on a majority of "
        "the nodes may lose acknowledged messages"
    )
    return [risk]


def _refuse_unsupported(values: _Values) -> None:
    """Refuse settings whose silent neglect would surprise their owner."""
    if not values.boolean("enableDLegerCommitLog", default=True):
        raise ConfigError(
            "enableDLegerCommitLog=false: every node is a member of a Raft group here; remove the line"
        )
    role = values.text("brokerRole", "")
    if role == "SLAVE":
        raise ConfigError("brokerRole=SLAVE: the group elects its leader; remove the line")
    if values.boolean("enablePropertyFilter", default=False):
        raise ConfigError("enablePropertyFilter=true: SQL92 filters are not supported; use tags")
    for key in ("aclEnable", "authenticationEnabled", "authorizationEnabled"):
        if values.boolean(key, default=False):
            raise ConfigError(f"{key}=true: access control is not supported; remove the line")


def _check(config: BrokerConfig) -> None:
    """Refuse values that contradict each other."""
    names = [peer.node_id for peer in config.peers]
    for node in config.preferred_leaders:
        if node not in names:
            raise ConfigError(
                f"preferredLeaderId={node} is not among the members {', '.join(names)}"
            )
    own = config.own_peer
    if config.listen.port == own.port and config.listen.port != 0:
        raise ConfigError(
            f"listenPort={config.listen.port} is also the port of {own} in dLegerPeers: clients and members need two"
        )
    if config.vip_port and config.listen.port and config.listen.port - 2 == own.port:
        raise ConfigError(
            f"vipListenEnable=true needs port {own.port} (listenPort - 2), which is the one of {own} in dLegerPeers"
        )


def _own_peer(node_id: str, peers: tuple[Peer, ...]) -> Peer:
    for peer in peers:
        if peer.node_id == node_id:
            return peer
    names = ", ".join(peer.node_id for peer in peers)
    raise ConfigError(f"--id {node_id} is not among the members {names} (dLegerPeers)")


def _follower_id(node_id: str) -> int:
    digits = "".join(re.findall("[0-9]", node_id))
    return (int(digits) if digits else 0) + 1


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


def _delay_levels(text: str) -> tuple[int, ...]:
    try:
        return tuple(parse_delay_levels(text))
    except ValueError as error:
        raise ConfigError(f"messageDelayLevel: {error}") from error


class _Values:
    """Typed access that remembers which keys were asked for; the others are warned about."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._used: set[str] = set()

    def text(self, key: str, default: str | None = None) -> str:
        self._used.add(key)
        value = self._values.get(key, "").strip()
        if value:
            return value
        if default is None:
            flag = _IDENTITY_KEYS.get(key)
            raise ConfigError(
                f"{key} is missing{f': give {flag} or set it in broker.conf' if flag else ''}"
            )
        return default

    def number(self, key: str, default: int, *, low: int = 0, high: int = 2**62) -> int:
        text = self.text(key, str(default))
        if _NUMBER.fullmatch(text) is None or not low <= int(text) <= high:
            raise ConfigError(f"{key}={text} is not a number from {low} to {high}")
        return int(text)

    def boolean(self, key: str, *, default: bool) -> bool:
        return self.choice(key, ("true", "false"), "true" if default else "false") == "true"

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        text = self.text(key, default)
        for item in allowed:
            if text.lower() == item.lower():
                return item
        raise ConfigError(f"{key}={text} is not one of {', '.join(allowed)}")

    def warnings(self) -> list[str]:
        return [
            f"{key} is not used: {_NEEDLESS[key]}"
            if key in _NEEDLESS
            else f"{key} is unknown and not used"
            for key in self._values
            if key not in self._used
        ]
